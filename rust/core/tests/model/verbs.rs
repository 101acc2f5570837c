//! The verbs of the owner, on the model's lists.

use kvferry::{EventKind, PolicyKind, ResetMode};

use crate::access::AccessModel;
use crate::reference::{Chunk, Id, Key, LoadFault, MAX_PINS, Model, Phase, StoreModel};

impl Model {
    // Requests.

    pub(crate) fn advance_to(&mut self, now_us: u64) {
        self.clock_us = self.clock_us.max(now_us);
        self.settle();
    }

    pub(crate) fn begin_request(&mut self, now_us: u64) -> AccessModel {
        self.advance_to(now_us);
        AccessModel::new(self.epoch)
    }

    pub(crate) fn finish_request(&mut self, mut access: AccessModel) {
        access.enter(self.epoch);
        self.settle();
        for key in access
            .in_prefix_order(self.settings.group_bytes)
            .iter()
            .rev()
        {
            let Some(id) = self.resident(key).map(|chunk| chunk.id) else {
                continue;
            };
            let reused = access.reused.contains(key);
            let applies = reused || access.inserted.contains(key);
            if applies || self.settings.policy == PolicyKind::Lru {
                self.touch_chunk(id, reused);
            }
        }
    }

    pub(crate) fn touch(&mut self, keys: &[Key]) {
        self.settle();
        for key in keys.iter().rev() {
            match self.resident(key).map(|chunk| (chunk.id, chunk.phase)) {
                Some((id, phase)) => self.touch_chunk(id, phase == Phase::Ready),
                None => self.adapt(key),
            }
        }
    }

    // Stores.

    pub(crate) fn prepare_store(
        &mut self,
        keys: &[Key],
        access: Option<&mut AccessModel>,
    ) -> StoreModel {
        self.settle();
        self.tracker.offer(keys);
        let mut indices = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if self.resident(key).is_some() || keys[..i].contains(key) {
                continue;
            }
            if self.tracker.admits(key) {
                indices.push(i);
            } else {
                self.count("declined_threshold", 1);
            }
        }
        let missing: Vec<Key> = indices.iter().map(|&i| keys[i].clone()).collect();
        let mut access = access;
        match access.as_deref_mut() {
            Some(access) => {
                access.enter(self.epoch);
                self.record_offer(keys, &missing, access);
            }
            None => self.count("misses", missing.len()),
        }
        // A chunk that is offered again is wanted again.
        for chunk in &mut self.chunks {
            chunk.dropped &= !keys.contains(&chunk.key);
        }
        let free = self.settings.capacity - self.chunks.len();
        let Some(victims) = self.victims(missing.len().saturating_sub(free), keys) else {
            self.count("declined_full", 1);
            return StoreModel::Full;
        };
        let evicted = self.evict(&victims);
        self.count("evicted", evicted.len());
        self.emit(EventKind::Removed, evicted.clone());
        if let Some(access) = access {
            access.inserted.extend(missing.iter().cloned());
        }
        let ids = missing.iter().map(|key| self.insert(key)).collect();
        StoreModel::Stored {
            indices,
            evicted,
            ids,
        }
    }

    fn record_offer(&mut self, keys: &[Key], missing: &[Key], access: &mut AccessModel) {
        let mut news = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if missing.contains(key) && !keys[..i].contains(key) {
                access.see(key);
                if access.store_missed.insert(key.clone()) {
                    news.push(key);
                }
            } else if self.is_ready(key) {
                access.see(key);
                let hit = access.reuse(key);
                self.count("hits", usize::from(hit));
            }
        }
        self.count("misses", news.len());
        for key in news.into_iter().rev() {
            self.adapt(key);
        }
    }

    fn insert(&mut self, key: &Key) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        self.b1.retain(|ghost| ghost != key);
        self.b2.retain(|ghost| ghost != key);
        self.t1.push(id);
        self.chunks.push(Chunk {
            id,
            key: key.clone(),
            slot: u32::MAX,
            phase: Phase::Pending,
            writing: false,
            owner_pins: 0,
            reader_pins: 0,
            met_reader: false,
            dropped: false,
            since_us: self.clock_us,
        });
        id
    }

    /// The slots that the engine gave to new chunks, which nobody else may use.
    pub(crate) fn place(&mut self, ids: &[Id], slots: &[u32]) {
        assert_eq!(ids.len(), slots.len(), "a slot for each chunk");
        for (&id, &slot) in ids.iter().zip(slots) {
            assert!(
                (slot as usize) < self.settings.capacity,
                "a slot of the tier"
            );
            let taken = self.chunks.iter().any(|chunk| chunk.slot == slot);
            assert!(!taken, "slot {slot} is in use");
            self.chunk_mut(id).expect("it was inserted").slot = slot;
        }
    }

    /// Ends the store of one chunk: the key if it is ready now, or `None` if the chunk is late.
    fn complete_chunk(&mut self, id: Id, success: bool, stored: &mut Vec<Key>) -> bool {
        let Some(chunk) = self.chunk_mut(id) else {
            return false;
        };
        match chunk.phase {
            Phase::Pending if success && !chunk.dropped => {
                chunk.phase = Phase::Ready;
                stored.push(chunk.key.clone());
                self.count("stored", 1);
            }
            Phase::Pending => {
                self.count(if success { "dropped" } else { "failed" }, 1);
                self.forget(id);
            }
            Phase::Draining if chunk.writing => {
                chunk.writing = false;
                self.forget(id);
            }
            Phase::Ready | Phase::Draining => return false,
        }
        true
    }

    /// How many chunks it acted on, and how many were late.
    pub(crate) fn complete_store(&mut self, ids: &[Id], success: bool) -> (usize, usize) {
        let mut stored = Vec::new();
        let applied = ids
            .iter()
            .filter(|&&id| self.complete_chunk(id, success, &mut stored))
            .count();
        self.count("late", ids.len() - applied);
        self.emit(EventKind::Stored, stored);
        (applied, ids.len() - applied)
    }

    pub(crate) fn complete_store_keys(&mut self, keys: &[Key], success: bool) -> (usize, usize) {
        let (mut applied, mut late) = (0, 0);
        let mut stored = Vec::new();
        for id in self.ids(keys) {
            match id.and_then(|id| self.chunk(id)).map(|c| (c.id, c.phase)) {
                Some((id, Phase::Pending)) => {
                    self.complete_chunk(id, success, &mut stored);
                    applied += 1;
                }
                Some((_, Phase::Ready)) => {}
                _ => late += 1,
            }
        }
        self.count("late", late);
        self.emit(EventKind::Stored, stored);
        (applied, late)
    }

    pub(crate) fn cancel_store(&mut self, ids: &[Id]) -> (usize, usize) {
        let mut applied = 0;
        for &id in ids {
            if self.chunk(id).is_some_and(|c| c.phase == Phase::Pending) {
                self.cancel(id);
                applied += 1;
            }
        }
        (applied, ids.len() - applied)
    }

    fn cancel(&mut self, id: Id) {
        self.drain(id);
        self.count("cancelled", 1);
    }

    pub(crate) fn expire_pending(&mut self, now_us: u64) -> usize {
        self.advance_to(now_us);
        let Some(timeout) = self.settings.pending_timeout_us else {
            return 0;
        };
        let due = |c: &&Chunk| self.clock_us - c.since_us >= timeout;
        let due: Vec<Id> = self
            .of_phase(Phase::Pending)
            .filter(due)
            .map(|c| c.id)
            .collect();
        due.iter().for_each(|&id| self.cancel(id));
        due.len()
    }

    pub(crate) fn drop_keys(&mut self, keys: &[Key]) -> usize {
        self.settle();
        let mut gone = Vec::new();
        for id in self.ids(keys).into_iter().flatten() {
            let chunk = self.chunk_mut(id).expect("it is resident");
            if !chunk.evictable() {
                chunk.dropped = true;
            } else if !gone.contains(&id) {
                gone.push(id);
            }
        }
        self.remove_dropped(&gone);
        gone.len()
    }

    // Loads.

    pub(crate) fn prepare_load(
        &mut self,
        keys: &[Key],
        access: Option<&mut AccessModel>,
    ) -> Result<Vec<Id>, LoadFault> {
        let mut access = access;
        if let Some(access) = access.as_deref_mut() {
            access.enter(self.epoch);
        }
        let mut ids = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            match self.resident(key) {
                None => return Err(LoadFault::NotResident(i)),
                Some(chunk) if chunk.phase == Phase::Pending => return Err(LoadFault::NotReady(i)),
                Some(chunk) => ids.push(chunk.id),
            }
        }
        for (i, &id) in ids.iter().enumerate() {
            let chunk = self.chunk(id).expect("it is resident");
            let before = ids[..i].iter().filter(|&&it| it == id).count();
            if chunk.owner_pins + chunk.reader_pins + before == MAX_PINS {
                // What nobody holds after this and what was to be dropped then leaves.
                let mut freed: Vec<Id> = Vec::new();
                for &id in ids[..i].iter().rev() {
                    let chunk = self.chunk(id).expect("it is resident");
                    if chunk.dropped && !chunk.held() && !freed.contains(&id) {
                        freed.push(id);
                    }
                }
                self.remove_dropped(&freed);
                return Err(LoadFault::TooManyPins(i));
            }
        }
        for &id in &ids {
            let now = self.clock_us;
            let chunk = self.chunk_mut(id).expect("it is resident");
            if chunk.owner_pins == 0 {
                chunk.since_us = now;
            }
            chunk.owner_pins += 1;
        }
        match access {
            None => self.count("hits", keys.len()),
            Some(access) => {
                for key in keys {
                    access.see(key);
                    let hit = access.reuse(key);
                    self.count("hits", usize::from(hit));
                }
            }
        }
        Ok(ids)
    }

    /// Takes one pin of the owner; the chunk if it leaves by that, since it was dropped.
    fn unpin_owner(&mut self, id: Id, dropped: &mut Vec<Id>) -> bool {
        let Some(chunk) = self.chunk_mut(id).filter(|chunk| chunk.owner_pins > 0) else {
            return false;
        };
        chunk.owner_pins -= 1;
        let (phase, wanted, held) = (chunk.phase, !chunk.dropped, chunk.held());
        match phase {
            Phase::Draining if !held => self.forget(id),
            Phase::Ready if !held && !wanted => dropped.push(id),
            _ => {}
        }
        true
    }

    pub(crate) fn complete_load(&mut self, ids: &[Id]) -> (usize, usize) {
        let mut dropped = Vec::new();
        let applied = ids
            .iter()
            .filter(|&&id| self.unpin_owner(id, &mut dropped))
            .count();
        self.count("late", ids.len() - applied);
        self.remove_dropped(&dropped);
        (applied, ids.len() - applied)
    }

    pub(crate) fn complete_load_keys(&mut self, keys: &[Key]) -> Result<(), LoadFault> {
        let ids = self.ids(keys);
        let mut named = Vec::new();
        for (i, id) in ids.iter().enumerate() {
            let id = id.ok_or(LoadFault::NotResident(i))?;
            let pins = self.chunk(id).expect("it is resident").owner_pins;
            if named.iter().filter(|&&it| it == id).count() == pins {
                return Err(LoadFault::NotPinned(i));
            }
            named.push(id);
        }
        let mut dropped = Vec::new();
        for id in named {
            self.unpin_owner(id, &mut dropped);
        }
        self.remove_dropped(&dropped);
        Ok(())
    }

    // The end of everything.

    /// How many slots are draining then.
    pub(crate) fn reset(&mut self, mode: ResetMode) -> usize {
        self.settle();
        for id in self.chunks.iter().map(|c| c.id).collect::<Vec<_>>() {
            let chunk = self.chunk(id).expect("it exists");
            if mode == ResetMode::Fenced || chunk.evictable() {
                self.forget(id);
            } else if chunk.resident() {
                self.drain(id);
            }
        }
        self.b1.clear();
        self.b2.clear();
        self.target = 0.0;
        self.epoch += 1;
        self.emit_cleared();
        self.chunks.len()
    }

    /// A new engine over the storage of this one: ready chunks stay, in order, held by nobody.
    pub(crate) fn rebuild(&mut self) {
        let ready: Vec<Chunk> = self.of_phase(Phase::Ready).cloned().collect();
        let kept = |ids: &[Id]| -> Vec<Id> {
            let ready = |id: &&Id| ready.iter().any(|chunk| chunk.id == **id);
            ids.iter().filter(ready).copied().collect()
        };
        let mut model = Self::new(self.settings.clone());
        model.t1 = kept(&self.t1);
        model.t2 = kept(&self.t2);
        model.next_id = self.next_id;
        model.chunks = ready
            .into_iter()
            .map(|chunk| Chunk {
                owner_pins: 0,
                reader_pins: 0,
                met_reader: false,
                dropped: false,
                ..chunk
            })
            .collect();
        *self = model;
    }
}
