//! `complete_store`, `cancel_store` and `expire_pending`: how a store ends.

use super::{Manager, WRITER};
use crate::error::KeyError;
use crate::event::EventKind;
use crate::key::{KeyList, Keys};
use crate::slot::PENDING;
use crate::slot::state::{self, Phase};
use crate::ticket::{Completion, StoreTicket};

impl Manager {
    /// Ends a store. In success its chunks may be loaded from now on; otherwise their slots are
    /// free again. A slot of a cancelled store is free now, its transfer having ended. Slots that
    /// have changed hands are counted as late.
    pub fn complete_store(&mut self, ticket: StoreTicket, success: bool) -> Completion {
        let mut done = Completion::default();
        let mut stored = KeyList::default();
        let ours = ticket.0.incarnation == self.shared.incarnation;
        for (slot, generation) in ticket.0.iter() {
            if ours && self.complete_slot(slot, generation, success, &mut stored) {
                done.applied += 1;
            } else {
                done.late += 1;
            }
        }
        self.counters.late += done.late as u64;
        self.emit(EventKind::Stored, stored);
        self.publish();
        done
    }

    /// Ends stores by key, for callers that keep no tickets and guarantee that no completion
    /// crosses a reset or a second store of the same key. Keys that are ready are left alone,
    /// unknown ones are counted as late.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held; nothing is completed then.
    pub fn complete_store_keys(
        &mut self,
        keys: Keys<'_>,
        success: bool,
    ) -> Result<Completion, KeyError> {
        keys.check(self.shared.key_bytes)?;
        let mut found = std::mem::take(&mut self.scratch.found);
        self.find_all(keys, &mut found);
        let mut done = Completion::default();
        let mut stored = KeyList::default();
        for found in &found {
            // The state again: a key that is named twice has been completed a moment ago.
            let state = found
                .slot()
                .map(|slot| (slot, state::load(self.records().state(slot))));
            match state {
                Some((slot, s)) if s.phase() == Phase::Pending => {
                    self.complete_slot(slot, s.generation(), success, &mut stored);
                    done.applied += 1;
                }
                Some((_, s)) if s.phase() == Phase::Ready => {}
                _ => done.late += 1,
            }
        }
        self.scratch.found = found;
        self.counters.late += done.late as u64;
        self.emit(EventKind::Stored, stored);
        self.publish();
        Ok(done)
    }

    /// Ends the store of one slot; false if it is late.
    fn complete_slot(
        &mut self,
        slot: u32,
        generation: u32,
        success: bool,
        stored: &mut KeyList,
    ) -> bool {
        let state = state::load(self.records().state(slot));
        if state.generation() != generation {
            return false;
        }
        match state.phase() {
            // Dropped meanwhile: nobody could hold it, so it leaves before it was ever there.
            Phase::Pending if success && !self.is_dropped(slot) => {
                self.slots.remove(PENDING, slot);
                state::publish(self.records().state(slot), generation);
                self.policy.set_evictable(slot, true);
                self.counters.stored += 1;
                if self.events.is_some() {
                    self.append_key(slot, stored);
                }
                true
            }
            Phase::Pending => {
                let count = if success {
                    &mut self.counters.dropped
                } else {
                    &mut self.counters.failed
                };
                *count += 1;
                self.slots.remove(PENDING, slot);
                self.forget(slot);
                self.release_slot(slot);
                true
            }
            Phase::Draining if self.owner_pins[slot as usize] == WRITER => {
                self.owner_pins[slot as usize] = 0;
                state::unpin(self.records().state(slot), generation);
                self.settle_draining(slot);
                true
            }
            _ => false,
        }
    }

    /// Gives up a store that will not come: its keys are a miss from now on, its slots drain until
    /// [`Manager::complete_store`] says that the transfer has ended. Slots that are not pending any
    /// more are left alone.
    pub fn cancel_store(&mut self, ticket: &StoreTicket) -> Completion {
        let mut done = Completion::default();
        let ours = ticket.0.incarnation == self.shared.incarnation;
        for (slot, generation) in ticket.0.iter() {
            let state = state::load(self.records().state(slot));
            if ours && state.generation() == generation && state.phase() == Phase::Pending {
                self.cancel_slot(slot);
                done.applied += 1;
            } else {
                done.late += 1;
            }
        }
        self.publish();
        done
    }

    /// Counts a completion whose ticket was given back before: for bindings to languages that cannot
    /// take a ticket by value.
    pub fn count_late(&mut self, slots: usize) -> Completion {
        self.counters.late += slots as u64;
        self.publish();
        Completion {
            applied: 0,
            late: slots,
        }
    }

    /// Cancels every store that has been pending for the configured time at `now_us`, so that its
    /// keys are a miss instead of "ask again" for ever. Returns how many chunks that were. Without
    /// a configured time nothing expires. The slots come back with the tickets of their stores:
    /// callers that complete by key have nothing that would end the wait.
    pub fn expire_pending(&mut self, now_us: u64) -> usize {
        self.advance_to(now_us);
        let mut expired = 0;
        if let Some(timeout) = self.pending_timeout_us {
            while let Some((slot, age)) = self.slots.oldest(PENDING, self.clock)
                && age >= timeout
            {
                self.cancel_slot(slot);
                expired += 1;
            }
        }
        self.publish();
        expired
    }

    fn cancel_slot(&mut self, slot: u32) {
        self.slots.remove(PENDING, slot);
        self.forget(slot);
        self.begin_drain(slot);
        self.counters.cancelled += 1;
    }

    /// Hides a pending slot until its transfer ends.
    pub(super) fn begin_drain(&mut self, slot: u32) {
        state::drain_pending(self.records().state(slot));
        self.owner_pins[slot as usize] = WRITER;
        self.counters.draining += 1;
    }
}
