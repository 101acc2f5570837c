//! `prepare_load` and `complete_load`: pins of the owner.

use super::Manager;
use crate::access::RequestAccess;
use crate::error::LoadError;
use crate::event::EventKind;
use crate::index::Found;
use crate::key::{KeyList, Keys};
use crate::slot::PINNED;
use crate::slot::state::{self, PinAnswer, State};
use crate::ticket::{Completion, LoadTicket, Ticket};

impl Manager {
    /// Pins chunks, so that a transfer may read their slots: `ticket.slots()[i]` belongs to key
    /// `i`. A key twice is pinned twice. The access, if one is given, records a reuse.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a key is missing, pending, at its most pins, or cannot be held. All or
    /// nothing: no pin is taken and nothing is recorded then.
    pub fn prepare_load(
        &mut self,
        keys: Keys<'_>,
        access: Option<&mut RequestAccess>,
    ) -> Result<LoadTicket, LoadError> {
        keys.check(self.shared.key_bytes)?;
        let access = match access {
            Some(access) => {
                self.enter(access)?;
                Some(access)
            }
            None => None,
        };
        let mut found = std::mem::take(&mut self.scratch.found);
        self.find_all(keys, &mut found);
        let ticket = self.pin_all(&found);
        self.scratch.found = found;
        let ticket = ticket?;
        self.record_load(keys, access);
        self.publish();
        Ok(LoadTicket(ticket))
    }

    fn pin_all(&mut self, found: &[Found]) -> Result<Ticket, LoadError> {
        for (index, found) in found.iter().enumerate() {
            match found {
                Found::Miss(_) => return Err(LoadError::NotResident { index }),
                Found::Slot(..) if !found.is_ready() => return Err(LoadError::NotReady { index }),
                Found::Slot(..) => {}
            }
        }
        let mut ticket = Ticket::new(self.shared.incarnation, found.len());
        for (index, found) in found.iter().enumerate() {
            if let Found::Slot(slot, seen) = *found {
                if !self.pin(slot, seen) {
                    // Backwards, so that a slot that is named twice loses its pins in the order in
                    // which it got them.
                    let mut gone = KeyList::default();
                    for (slot, generation) in ticket.iter().rev() {
                        self.release_owner_pin(slot, generation, &mut gone);
                    }
                    self.emit(EventKind::Removed, gone);
                    self.publish();
                    return Err(LoadError::TooManyPins { index });
                }
                ticket.push(slot, seen.generation());
            }
        }
        Ok(ticket)
    }

    /// One pin more for the owner; false at the most pins.
    fn pin(&mut self, slot: u32, seen: State) -> bool {
        let pinned = state::try_pin(self.records().state(slot), seen.generation());
        if pinned != PinAnswer::Pinned {
            return false;
        }
        self.owner_pins[slot as usize] += 1;
        if self.owner_pins[slot as usize] == 1 {
            self.policy.set_evictable(slot, false);
            self.slots.push(PINNED, slot, self.clock);
        }
        true
    }

    fn record_load(&mut self, keys: Keys<'_>, access: Option<&mut RequestAccess>) {
        let Some(access) = access else {
            self.counters.hits += keys.len() as u64;
            return;
        };
        access.reserve(keys.len());
        let mut last = None;
        for key in keys.iter() {
            let id = access.entry_after(last, key);
            access.mark_seen(id);
            self.counters.hits += u64::from(access.mark_reused(id));
            last = Some(id);
        }
    }

    /// Ends a load: its pins are released, each once. Slots that have changed hands since, by a
    /// reset, are counted as late.
    pub fn complete_load(&mut self, ticket: LoadTicket) -> Completion {
        let mut done = Completion::default();
        let mut gone = KeyList::default();
        let ours = ticket.0.incarnation == self.shared.incarnation;
        for (slot, generation) in ticket.0.iter() {
            if ours && self.release_owner_pin(slot, generation, &mut gone) {
                done.applied += 1;
            } else {
                done.late += 1;
            }
        }
        self.counters.late += done.late as u64;
        self.emit(EventKind::Removed, gone);
        self.publish();
        done
    }

    /// Ends loads by key, for callers that keep no tickets and guarantee that no completion crosses
    /// a reset. Pins of readers are never released.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a key is not resident, or not pinned by the owner as often as the call
    /// names it. Nothing changes then.
    pub fn complete_load_keys(&mut self, keys: Keys<'_>) -> Result<(), LoadError> {
        keys.check(self.shared.key_bytes)?;
        let mut found = std::mem::take(&mut self.scratch.found);
        self.find_all(keys, &mut found);
        let checked = self.check_pins(&found);
        if checked.is_ok() {
            let mut gone = KeyList::default();
            for found in &found {
                if let Found::Slot(slot, seen) = *found {
                    self.release_owner_pin(slot, seen.generation(), &mut gone);
                }
            }
            self.emit(EventKind::Removed, gone);
        }
        self.scratch.found = found;
        self.publish();
        checked
    }

    /// Whether every slot is pinned as often as it is named: takes the pins off the count, and puts
    /// them back.
    fn check_pins(&mut self, found: &[Found]) -> Result<(), LoadError> {
        let mut taken = 0;
        let mut checked = Ok(());
        for (index, found) in found.iter().enumerate() {
            checked = match found.slot() {
                None => Err(LoadError::NotResident { index }),
                Some(slot) if self.owner_pins[slot as usize] == 0 => {
                    Err(LoadError::NotPinned { index })
                }
                Some(slot) => {
                    self.owner_pins[slot as usize] -= 1;
                    Ok(())
                }
            };
            if checked.is_err() {
                break;
            }
            taken += 1;
        }
        for slot in found[..taken].iter().filter_map(|found| found.slot()) {
            self.owner_pins[slot as usize] += 1;
        }
        checked
    }
}
