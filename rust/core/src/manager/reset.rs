//! `reset_cache`: a new epoch.

use super::Manager;
use crate::mutant::{Mutant, is};
use crate::slot::state::{self, Claim, Phase};

/// What happens to slots that a transfer still uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetMode {
    /// They come back one by one, as the tickets of their transfers and the pins of readers end.
    Drain,
    /// They come back at once: the caller guarantees that no earlier transfer touches a slot from
    /// now on. Completions and unpins that still come are late.
    Fenced,
}

impl Manager {
    /// Forgets everything: no key of before is visible from now on, ghosts and ARC's target
    /// included. One `Cleared` event tells it. The admission tracker stays. Returns how many slots
    /// are draining: once `stats().draining` is zero, no transfer of before is under way. What
    /// readers give back is seen by the next [`Manager::advance_to`] or verb that changes an order.
    ///
    /// O(capacity).
    pub fn reset_cache(&mut self, mode: ResetMode) -> usize {
        self.settle_readers();
        self.shared.storage.index.clear();
        self.policy.clear();
        self.slots.clear_held();
        self.dropped.fill(0);
        // Downwards, so that the lowest slot is the next one, as in an engine that is new.
        for slot in (0..self.records().capacity()).rev() {
            self.reset_slot(slot, mode);
        }
        self.counters.epoch += 1;
        if let Some(events) = &mut self.events {
            self.counters.events_lost += events.push_cleared() as u64;
        }
        self.publish();
        usize::try_from(self.counters.draining).unwrap_or(usize::MAX)
    }

    fn reset_slot(&mut self, slot: u32, mode: ResetMode) {
        let phase = state::load(self.records().state(slot)).phase();
        match (phase, mode) {
            (Phase::Free, _) | (Phase::Draining, ResetMode::Drain) => return,
            (Phase::Pending, ResetMode::Drain) => {
                self.begin_drain(slot);
                return;
            }
            (_, ResetMode::Drain) if self.drain_held(slot) => {
                self.counters.draining += 1;
                return;
            }
            (Phase::Draining, ResetMode::Fenced) => self.counters.draining -= 1,
            _ => {}
        }
        self.owner_pins[slot as usize] = 0;
        self.release_slot(slot);
    }

    /// Hides a ready slot that somebody holds; false once it is claimed instead, since nobody does.
    fn drain_held(&mut self, slot: u32) -> bool {
        let word = self.records().state(slot);
        loop {
            if state::drain_pinned(word) {
                return true;
            }
            // Each turn means that a reader pinned between the two. A claimed slot can be pinned by
            // nobody.
            if is(Mutant::DrainNotClaimed) || state::claim(word) != Claim::Pinned {
                return false;
            }
        }
    }
}
