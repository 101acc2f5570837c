//! The engine as one would write it down from its contracts: vectors and scans, nothing for speed.
//!
//! Everything that is a decision is here: which keys are stored and evicted, the lists and ghosts
//! in order, the target, pins, events, counters. Slot numbers are not: the engine gives them, and
//! the model only remembers which chunk got which.

use std::collections::BTreeMap;

use kvferry::{EventKind, PolicyKind};

use crate::tracker::TrackerModel;

pub(crate) type Key = Vec<u8>;

/// A chunk's name for as long as it is stored: a key that is stored again is another chunk.
pub(crate) type Id = u64;

/// The most pins of one slot.
pub(crate) const MAX_PINS: usize = 4095;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Ready,
    /// Its key is gone, somebody still uses its slot.
    Draining,
}

#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) id: Id,
    pub(crate) key: Key,
    pub(crate) slot: u32,
    pub(crate) phase: Phase,
    /// The transfer of a store that was cancelled.
    pub(crate) writing: bool,
    pub(crate) owner_pins: usize,
    pub(crate) reader_pins: usize,
    /// Whether a reader has ever held it.
    pub(crate) met_reader: bool,
    pub(crate) dropped: bool,
    /// Since when it has been pending, or pinned by the owner.
    pub(crate) since_us: u64,
}

impl Chunk {
    pub(crate) fn resident(&self) -> bool {
        self.phase != Phase::Draining
    }

    pub(crate) fn held(&self) -> bool {
        self.writing || self.owner_pins + self.reader_pins > 0
    }

    pub(crate) fn evictable(&self) -> bool {
        self.phase == Phase::Ready && !self.held()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) capacity: usize,
    pub(crate) policy: PolicyKind,
    pub(crate) group_bytes: usize,
    pub(crate) store_threshold: u32,
    pub(crate) max_tracker_size: usize,
    pub(crate) events: bool,
    pub(crate) max_event_keys: usize,
    pub(crate) touch_log_capacity: usize,
    pub(crate) pending_timeout_us: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreModel {
    Stored {
        indices: Vec<usize>,
        evicted: Vec<Key>,
        ids: Vec<Id>,
    },
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFault {
    NotResident(usize),
    NotReady(usize),
    NotPinned(usize),
    TooManyPins(usize),
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) settings: Settings,
    pub(crate) chunks: Vec<Chunk>,
    /// Chunks, least recently used first.
    pub(crate) t1: Vec<Id>,
    pub(crate) t2: Vec<Id>,
    pub(crate) b1: Vec<Key>,
    pub(crate) b2: Vec<Key>,
    pub(crate) target: f64,
    pub(crate) epoch: u64,
    pub(crate) clock_us: u64,
    pub(crate) counters: BTreeMap<&'static str, u64>,
    pub(crate) events: Vec<(EventKind, Vec<Key>)>,
    pub(crate) events_lost: u64,
    pub(crate) tracker: TrackerModel,
    pub(crate) touches: Vec<Id>,
    pub(crate) next_id: Id,
}

impl Model {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            tracker: TrackerModel::new(settings.store_threshold, settings.max_tracker_size),
            settings,
            chunks: Vec::new(),
            t1: Vec::new(),
            t2: Vec::new(),
            b1: Vec::new(),
            b2: Vec::new(),
            target: 0.0,
            epoch: 0,
            clock_us: 0,
            counters: BTreeMap::new(),
            events: Vec::new(),
            events_lost: 0,
            touches: Vec::new(),
            next_id: 0,
        }
    }

    // Looking.

    pub(crate) fn resident(&self, key: &[u8]) -> Option<&Chunk> {
        let mut those = self.chunks.iter().filter(|c| c.resident() && c.key == key);
        let found = those.next();
        assert!(those.next().is_none(), "a key is resident twice");
        found
    }

    pub(crate) fn chunk(&self, id: Id) -> Option<&Chunk> {
        self.chunks.iter().find(|chunk| chunk.id == id)
    }

    pub(crate) fn chunk_mut(&mut self, id: Id) -> Option<&mut Chunk> {
        self.chunks.iter_mut().find(|chunk| chunk.id == id)
    }

    pub(crate) fn is_ready(&self, key: &[u8]) -> bool {
        self.resident(key).is_some_and(|c| c.phase == Phase::Ready)
    }

    pub(crate) fn of_phase(&self, phase: Phase) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(move |chunk| chunk.phase == phase)
    }

    pub(crate) fn ids(&self, keys: &[Key]) -> Vec<Option<Id>> {
        let id = |key: &Key| self.resident(key).map(|chunk| chunk.id);
        keys.iter().map(id).collect()
    }

    /// Every number but `evictable`, which depends on when the engine meets a reader's pin.
    pub(crate) fn stats(&self) -> BTreeMap<&'static str, u64> {
        let count = |phase| self.of_phase(phase).count() as u64;
        let pinned = || self.of_phase(Phase::Ready).filter(|c| c.owner_pins > 0);
        let age = |chunk: &Chunk| self.clock_us - chunk.since_us;
        let mut stats = self.counters.clone();
        let capacity = self.settings.capacity as u64;
        stats.insert("capacity", capacity);
        stats.insert("free", capacity - self.chunks.len() as u64);
        stats.insert("ready", count(Phase::Ready));
        stats.insert("pending", count(Phase::Pending));
        stats.insert("draining", count(Phase::Draining));
        stats.insert("pinned", pinned().count() as u64);
        stats.insert("ghosts", (self.b1.len() + self.b2.len()) as u64);
        stats.insert("longest_pin_us", pinned().map(age).max().unwrap_or(0));
        let pending = self.of_phase(Phase::Pending).map(age).max();
        stats.insert("longest_pending_us", pending.unwrap_or(0));
        stats.insert("epoch", self.epoch);
        stats
    }

    /// How many chunks the engine counts as evictable, at least and at most: a chunk that a reader
    /// has held may be out of that count until the engine has seen that nobody does.
    pub(crate) fn evictable(&self) -> (u64, u64) {
        let open = || self.of_phase(Phase::Ready).filter(|c| c.owner_pins == 0);
        let least = open().filter(|c| !c.met_reader).count();
        (least as u64, open().count() as u64)
    }

    pub(crate) fn count(&mut self, counter: &'static str, by: usize) {
        *self.counters.entry(counter).or_default() += by as u64;
    }

    // The lists.

    pub(crate) fn unlist(&mut self, id: Id) {
        self.t1.retain(|&it| it != id);
        self.t2.retain(|&it| it != id);
    }

    pub(crate) fn touch_chunk(&mut self, id: Id, reused: bool) {
        let in_t2 = self.t2.contains(&id);
        self.unlist(id);
        if in_t2 || reused && self.settings.policy == PolicyKind::Arc {
            self.t2.push(id);
        } else {
            self.t1.push(id);
        }
    }

    /// A ghost that is asked for moves the target, and to the recent end of its list.
    pub(crate) fn adapt(&mut self, key: &Key) {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if let Some(at) = self.b1.iter().position(|ghost| ghost == key) {
            let most = self.settings.capacity as f64;
            self.target = (self.target + f64::max(1.0, b2 / b1)).min(most);
            let ghost = self.b1.remove(at);
            self.b1.push(ghost);
        } else if let Some(at) = self.b2.iter().position(|ghost| ghost == key) {
            self.target = (self.target - f64::max(1.0, b1 / b2)).max(0.0);
            let ghost = self.b2.remove(at);
            self.b2.push(ghost);
        }
    }

    pub(crate) fn victims(&self, n: usize, spared: &[Key]) -> Option<Vec<Id>> {
        let open = |id: &&Id| {
            let chunk = self.chunk(**id).expect("a listed chunk exists");
            chunk.evictable() && !spared.contains(&chunk.key)
        };
        let mut t1 = self.t1.iter().filter(open);
        let mut t2 = self.t2.iter().filter(open);
        let mut t1_len = self.t1.len();
        let mut victims = Vec::new();
        for _ in 0..n {
            let from_t1 =
                self.settings.policy == PolicyKind::Lru || t1_len as f64 >= self.target.trunc();
            let victim = if from_t1 {
                t1.next()
                    .map(|id| (id, true))
                    .or_else(|| t2.next().map(|id| (id, false)))
            } else {
                t2.next()
                    .map(|id| (id, false))
                    .or_else(|| t1.next().map(|id| (id, true)))
            };
            let (id, was_in_t1) = victim?;
            t1_len -= usize::from(was_in_t1);
            victims.push(*id);
        }
        Some(victims)
    }

    pub(crate) fn evict(&mut self, victims: &[Id]) -> Vec<Key> {
        let mut keys = Vec::new();
        for &id in victims {
            let key = self.chunk(id).expect("a victim exists").key.clone();
            if self.settings.policy == PolicyKind::Arc {
                if self.t1.contains(&id) {
                    self.b1.push(key.clone());
                } else {
                    self.b2.push(key.clone());
                }
            }
            self.forget(id);
            keys.push(key);
        }
        for ghosts in [&mut self.b1, &mut self.b2] {
            let over = ghosts.len().saturating_sub(self.settings.capacity);
            ghosts.drain(..over);
        }
        keys
    }

    /// A chunk leaves, its slot with it.
    pub(crate) fn forget(&mut self, id: Id) {
        self.unlist(id);
        self.chunks.retain(|chunk| chunk.id != id);
    }

    /// A chunk's key leaves; the slot stays with whoever uses it.
    pub(crate) fn drain(&mut self, id: Id) {
        self.unlist(id);
        let chunk = self.chunk_mut(id).expect("it exists");
        chunk.writing = chunk.phase == Phase::Pending;
        chunk.phase = Phase::Draining;
        chunk.dropped = false;
    }

    // Events.

    /// Events that are queued, by their keys; one that clears everything counts as one.
    fn queued(&self) -> usize {
        self.events.iter().map(|(_, keys)| keys.len().max(1)).sum()
    }

    pub(crate) fn emit(&mut self, kind: EventKind, keys: Vec<Key>) {
        if !self.settings.events || keys.is_empty() {
            return;
        }
        if self.events_lost > 0 || self.queued() + keys.len() > self.settings.max_event_keys {
            self.events_lost += 1;
            self.count("events_lost", 1);
        } else {
            self.events.push((kind, keys));
        }
    }

    /// After this event no earlier one matters: if it does not fit, it takes their place.
    pub(crate) fn emit_cleared(&mut self) {
        if !self.settings.events {
            return;
        }
        if self.events_lost > 0 || self.queued() + 1 > self.settings.max_event_keys {
            self.count("events_lost", self.events.len());
            self.events.clear();
            self.events_lost = 0;
        }
        self.events.push((EventKind::Cleared, Vec::new()));
    }

    pub(crate) fn take_events(&mut self) -> (Vec<(EventKind, Vec<Key>)>, u64) {
        let lost = std::mem::take(&mut self.events_lost);
        (std::mem::take(&mut self.events), lost)
    }

    // Readers.

    /// Whether the reader got a pin; `None` for "busy".
    pub(crate) fn try_pin(&mut self, id: Id) -> Option<()> {
        let chunk = self.chunk_mut(id).expect("it exists");
        if chunk.owner_pins + chunk.reader_pins == MAX_PINS {
            return None;
        }
        chunk.reader_pins += 1;
        chunk.met_reader = true;
        Some(())
    }

    /// Whether there was a pin to give back.
    pub(crate) fn unpin(&mut self, id: Id) -> bool {
        let Some(chunk) = self.chunk_mut(id) else {
            self.count("unpins_stale", 1);
            return false;
        };
        chunk.reader_pins -= 1;
        true
    }

    pub(crate) fn reader_touch(&mut self, keys: &[Key]) {
        for id in self.ids(keys).into_iter().rev().flatten() {
            if self.touches.len() == self.settings.touch_log_capacity {
                self.count("touches_dropped", 1);
            } else {
                self.touches.push(id);
            }
        }
    }

    /// What readers left is taken first by every verb that changes an order.
    pub(crate) fn settle(&mut self) {
        let mut chunks: Vec<&Chunk> = self.chunks.iter().filter(|c| !c.held()).collect();
        chunks.sort_by_key(|chunk| chunk.slot);
        let drained: Vec<Id> = chunks
            .iter()
            .filter(|c| !c.resident())
            .map(|c| c.id)
            .collect();
        let ready = |c: &&&Chunk| c.phase == Phase::Ready && c.dropped;
        let dropped: Vec<Id> = chunks.iter().filter(ready).map(|c| c.id).collect();
        drained.into_iter().for_each(|id| self.forget(id));
        self.remove_dropped(&dropped);
        for id in std::mem::take(&mut self.touches) {
            let seen = self.chunk(id).filter(|c| c.resident()).map(|c| c.phase);
            if let Some(phase) = seen {
                self.touch_chunk(id, phase == Phase::Ready);
            }
        }
    }

    pub(crate) fn remove_dropped(&mut self, ids: &[Id]) {
        let mut gone = Vec::new();
        for &id in ids {
            gone.push(self.chunk(id).expect("it exists").key.clone());
            self.forget(id);
        }
        self.count("dropped", gone.len());
        self.emit(EventKind::Removed, gone);
    }
}
