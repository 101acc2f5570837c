//! What readers left for the owner: notices and touches; and what follows when a slot has lost its
//! last pin.

use super::{Manager, WRITER};
use crate::event::EventKind;
use crate::key::KeyList;
use crate::slot::PINNED;
use crate::slot::state::{self, Claim, Phase};
use crate::sync::Arc;

impl Manager {
    /// Takes the notices and touches that readers have left: first thing in every verb that changes
    /// an order. Each costs what one pin or one touched key costs.
    pub(super) fn settle_readers(&mut self) {
        if self.shared.notices.is_empty() && self.shared.touches.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut gone = KeyList::default();
        shared
            .notices
            .drain(|slot| self.settle_notice(slot, &mut gone));
        self.emit(EventKind::Removed, gone);
        // As many as there are now: readers that go on touching cannot keep the owner here.
        for _ in 0..shared.touches.len() {
            let Some(touch) = shared.touches.pop() else {
                break;
            };
            self.apply_touch(touch);
        }
    }

    fn apply_touch(&mut self, touch: u64) {
        let Ok(slot) = u32::try_from(touch >> 32) else {
            return;
        };
        let state = state::load(self.records().state(slot));
        // A slot that has changed hands since was touched in its earlier life.
        if state.is_visible() && u64::from(state.generation()) == touch & 0xffff_ffff {
            self.policy.on_touch(slot, state.phase() == Phase::Ready);
            self.stamp(slot);
        }
    }

    /// The last pin of a parked slot has gone, at some time since it was parked. What the slot is
    /// now decides.
    fn settle_notice(&mut self, slot: u32, gone: &mut KeyList) {
        let state = state::load(self.records().state(slot));
        let held = self.owner_pins[slot as usize] > 0;
        match state.phase() {
            Phase::Ready if state.is_parked() && !held => self.settle_ready(slot, gone),
            Phase::Draining if state.pins() == 0 => self.finish_drain(slot),
            // Held again by the owner, whose unpin settles it; or the notice is from an earlier
            // life.
            _ => {}
        }
    }

    /// A `Ready` slot that the owner does not hold: evictable again, or gone if it was dropped.
    /// Readers may hold it; the eviction that meets it finds out.
    pub(super) fn settle_ready(&mut self, slot: u32, gone: &mut KeyList) {
        if self.is_dropped(slot) {
            if self.try_remove(slot, gone) {
                self.counters.dropped += 1;
            }
            return;
        }
        state::unpark(self.records().state(slot));
        self.policy.set_evictable(slot, true);
    }

    /// Removes a `Ready` slot if nobody holds it; else parks it, so that the last unpin brings it
    /// back here. The key goes to `gone`.
    pub(super) fn try_remove(&mut self, slot: u32, gone: &mut KeyList) -> bool {
        match state::claim_or_park(self.records().state(slot)) {
            Claim::Claimed => {
                self.append_key(slot, gone);
                self.forget(slot);
                self.release_slot(slot);
                true
            }
            Claim::Pinned => {
                self.policy.set_evictable(slot, false);
                false
            }
            Claim::Gone => false,
        }
    }

    /// One pin of the owner less. Returns whether there was one of this generation.
    pub(super) fn release_owner_pin(
        &mut self,
        slot: u32,
        generation: u32,
        gone: &mut KeyList,
    ) -> bool {
        let state = state::load(self.records().state(slot));
        let pins = self.owner_pins[slot as usize];
        if state.generation() != generation || pins == 0 || pins == WRITER {
            return false;
        }
        self.owner_pins[slot as usize] = pins - 1;
        // Without a notice: what follows from the last pin is settled right here.
        state::unpin(self.records().state(slot), generation);
        if pins > 1 {
            return true;
        }
        if state.phase() == Phase::Draining {
            self.settle_draining(slot);
        } else {
            self.slots.remove(PINNED, slot);
            self.settle_ready(slot, gone);
        }
        true
    }

    /// A draining slot that the owner has let go: free if no reader holds it; else the last of them
    /// leaves a notice.
    pub(super) fn settle_draining(&mut self, slot: u32) {
        if !state::park_draining(self.records().state(slot)) {
            self.finish_drain(slot);
        }
    }

    /// The last transfer of a draining slot has ended.
    fn finish_drain(&mut self, slot: u32) {
        self.counters.draining -= 1;
        self.owner_pins[slot as usize] = 0;
        self.release_slot(slot);
    }

    /// Takes a slot out of the index, the policy and the marks; its key is read before it goes.
    pub(super) fn forget(&mut self, slot: u32) {
        self.unindex(slot);
        self.policy.on_remove(slot);
        self.set_dropped(slot, false);
    }

    /// Takes the entry of a slot's key out of the index.
    pub(super) fn unindex(&mut self, slot: u32) {
        let mut key = std::mem::take(&mut self.scratch.key);
        key.clear();
        self.records().read_key(slot, &mut key);
        let storage = &self.shared.storage;
        storage.index.remove(storage.hasher.index_hash(&key), slot);
        self.scratch.key = key;
    }

    /// Frees a slot that nothing refers to any more.
    pub(super) fn release_slot(&mut self, slot: u32) {
        state::free(self.records().state(slot));
        self.slots.push_free(slot);
    }

    /// Appends the key of a slot to a list.
    pub(super) fn append_key(&mut self, slot: u32, keys: &mut KeyList) {
        let mut key = std::mem::take(&mut self.scratch.key);
        key.clear();
        self.records().read_key(slot, &mut key);
        keys.push(&key);
        self.scratch.key = key;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
