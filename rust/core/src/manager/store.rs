//! `prepare_store`: which chunks are stored, where, and what leaves for them.
//!
//! The steps are ordered so that a store that does not fit has changed no slot, resident key, order
//! or event:
//!
//! 1. look all keys up; count the offer (admission); sort the keys into stored ones and missing
//!    ones;
//! 2. tell the policy and the access what was offered: this stays even if the store does not fit,
//!    as in vLLM;
//! 3. claim the victims, all of them, sparing the keys of the call;
//! 4. take the victims out of the index and enter the missing keys at the slots that they will get:
//!    in this order, so that the index never holds more keys than the tier has slots;
//! 5. only now: let the victims go, write the records, insert into the order.
//!
//! A failure in 3 or 4 gives the claimed chunks back; 4 takes every change of the index back first.
//! A claimed chunk is a hit until step 4 and, should that step fail, a miss until it has been taken
//! back. A reader that follows an entry of step 4 before step 5 finds another key in the record.

use super::{Manager, Missing, Scratch};
use crate::access::RequestAccess;
use crate::error::StoreError;
use crate::event::EventKind;
use crate::hash::Fingerprint;
use crate::index::Found;
use crate::key::{KeyList, Keys};
use crate::shared::Storage;
use crate::slot::PENDING;
use crate::slot::state::{self, Claim};
use crate::ticket::{StoreTicket, Ticket};

/// Chunks that are worked on together: their cache misses overlap, and what they touch is still in
/// the nearest caches, its translations included, when each of them is worked on.
const GROUP: usize = 64;

/// What [`Manager::prepare_store`] decided.
#[derive(Debug)]
#[must_use]
pub enum StoreOutcome {
    /// The missing keys have slots; there may be none of them.
    Stored(StoreOutput),
    /// It did not fit. Nothing changed but the record of the offer.
    Rejected(StoreRejected),
}

impl StoreOutcome {
    /// The output, or nothing if the store did not fit.
    #[must_use]
    pub fn stored(self) -> Option<StoreOutput> {
        match self {
            Self::Stored(output) => Some(output),
            Self::Rejected(_) => None,
        }
    }
}

/// Why a store did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreRejected {
    /// More slots are needed than are free or held by nobody, the call's own chunks left aside.
    Full,
    /// The index has no room for one of the keys within two kicks. Below one in ten million at the
    /// load that the index is made for, unless the keys were chosen to collide.
    IndexFull,
}

/// What is to be transferred, and what left for it.
#[derive(Debug)]
pub struct StoreOutput {
    /// Which keys of the call are to be stored, by their place in it, ascending. Not the resident
    /// ones, nor those below the store threshold, nor a key a second time.
    pub indices: Vec<usize>,
    /// The slots, one for each of `indices`.
    pub ticket: StoreTicket,
    /// The keys that left, in the order of their leaving.
    pub evicted: KeyList,
}

impl Manager {
    /// Offers the chunks of a request. Missing ones get a slot each, pending until
    /// [`Manager::complete_store`]; chunks that nobody holds leave for them, never one of this
    /// call. With an access, the policy learns what was offered and missing, once per request and
    /// key; without one it learns from [`Manager::touch`] alone.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a key cannot be held or the access is another engine's; nothing was
    /// offered then.
    pub fn prepare_store(
        &mut self,
        keys: Keys<'_>,
        access: Option<&mut RequestAccess>,
    ) -> Result<StoreOutcome, StoreError> {
        keys.check(self.shared.key_bytes)?;
        let mut access = match access {
            Some(access) => {
                self.enter(access)?;
                Some(access)
            }
            None => None,
        };
        self.settle_readers();
        let mut scratch = std::mem::take(&mut self.scratch);
        self.find_all(keys, &mut scratch.found);
        self.partition(keys, &mut scratch);
        self.record_offer(keys, &mut scratch, access.as_deref_mut());
        let outcome = self.place(keys, &mut scratch, access);
        self.scratch = scratch;
        self.publish();
        Ok(outcome)
    }

    /// Counts the offer and collects the keys to store: missing, named for the first time,
    /// admitted.
    fn partition(&mut self, keys: Keys<'_>, scratch: &mut Scratch) {
        let hasher = self.shared.storage.hasher;
        let ghosts = self.policy.uses_ghosts();
        if let Some(tracker) = &mut self.tracker {
            scratch.offered.clear();
            scratch
                .offered
                .extend(keys.iter().map(|key| hasher.fingerprint(key)));
            tracker.offer(&scratch.offered);
        }
        scratch.missing.clear();
        scratch.dedupe.begin(keys.len());
        for (index, found) in scratch.found.iter().enumerate() {
            let Found::Miss(hash) = *found else {
                continue;
            };
            if !scratch.dedupe.insert(keys, index, hash) {
                continue;
            }
            let fingerprint = match &self.tracker {
                Some(_) => scratch.offered[index],
                None if ghosts => hasher.fingerprint(keys.get(index)),
                None => 0,
            };
            if self
                .tracker
                .as_ref()
                .is_none_or(|tracker| tracker.admits(fingerprint))
            {
                scratch.missing.push(Missing {
                    index,
                    hash,
                    fingerprint,
                    entry: None,
                });
            } else {
                self.counters.declined_threshold += 1;
            }
        }
        if ghosts {
            scratch.offered.clear();
            scratch
                .offered
                .extend(scratch.missing.iter().map(|m| m.fingerprint));
            self.policy.warm(&scratch.offered);
        }
    }

    /// Tells the policy which keys are missing, and the access what this request saw.
    fn record_offer(
        &mut self,
        keys: Keys<'_>,
        scratch: &mut Scratch,
        access: Option<&mut RequestAccess>,
    ) {
        let Some(access) = access else {
            self.counters.misses += scratch.missing.len() as u64;
            return;
        };
        access.reserve(keys.len());
        let mut missing = scratch.missing.iter_mut().peekable();
        let mut last = None;
        let ghosts = self.policy.uses_ghosts();
        scratch.offered.clear();
        for (index, found) in scratch.found.iter().enumerate() {
            let accepted = missing.next_if(|m| m.index == index);
            let ready = found.is_ready();
            if accepted.is_none() && !ready {
                // Pending, below the threshold, or named before: not seen by this call.
                continue;
            }
            let hash = accepted.as_ref().map(|missing| missing.hash);
            let id = access.entry_hashed(last, keys.get(index), hash);
            last = Some(id);
            access.mark_seen(id);
            if let Some(missing) = accepted {
                missing.entry = Some(id);
                let first = access.mark_store_miss(id);
                self.counters.misses += u64::from(first);
                if first && ghosts {
                    scratch.offered.push(missing.fingerprint);
                }
            } else {
                self.counters.hits += u64::from(access.mark_reused(id));
            }
        }
        for key in scratch.offered.iter().rev() {
            self.policy.on_store_miss(*key);
        }
    }

    /// Steps 3 to 5 of the module.
    fn place(
        &mut self,
        keys: Keys<'_>,
        scratch: &mut Scratch,
        access: Option<&mut RequestAccess>,
    ) -> StoreOutcome {
        let n = scratch.missing.len();
        scratch.victims.clear();
        self.cancel_drops(&scratch.found);
        let needed = n.saturating_sub(self.slots.free() as usize);
        if needed > 0 && !self.claim_victims(needed, scratch) {
            self.counters.declined_full += 1;
            return StoreOutcome::Rejected(StoreRejected::Full);
        }
        let Some(evicted) = self.enter_index(scratch) else {
            self.give_back(&scratch.victims);
            self.counters.declined_index += 1;
            return StoreOutcome::Rejected(StoreRejected::IndexFull);
        };
        self.evict(scratch, &evicted);
        let ticket = self.write(keys, scratch, access);
        let indices = scratch.missing.iter().map(|m| m.index).collect();
        StoreOutcome::Stored(StoreOutput {
            indices,
            ticket: StoreTicket(ticket),
            evicted,
        })
    }

    /// A chunk that is offered again is wanted again.
    fn cancel_drops(&mut self, found: &[Found]) {
        for slot in found.iter().filter_map(|found| found.slot()) {
            if self.is_dropped(slot) {
                self.set_dropped(slot, false);
            }
        }
    }

    /// Claims `n` victims, sparing the call's own chunks; gives all back and answers false if there
    /// are not so many.
    fn claim_victims(&mut self, n: usize, scratch: &mut Scratch) -> bool {
        // Without a look at any chunk where it cannot succeed.
        if n > self.policy.evictable() as usize {
            return false;
        }
        scratch.protected.clear();
        for slot in scratch.found.iter().filter_map(|found| found.slot()) {
            if self.policy.is_evictable(slot) {
                self.policy.set_evictable(slot, false);
                scratch.protected.push(slot);
            }
        }
        let records = &self.shared.storage.records;
        let claimed = n <= self.policy.evictable() as usize
            && self.policy.select(
                n,
                &mut |slot| state::claim_or_park(records.state(slot)) == Claim::Claimed,
                &mut scratch.victims,
            );
        for &slot in &scratch.protected {
            self.policy.set_evictable(slot, true);
        }
        if !claimed {
            self.give_back(&scratch.victims);
        }
        claimed
    }

    /// Makes claimed chunks ready and evictable again, each where it was.
    fn give_back(&mut self, victims: &[u32]) {
        for &slot in victims {
            state::restore(self.records().state(slot));
            self.policy.set_evictable(slot, true);
        }
    }

    /// Enters the missing keys at the slots that they will get, in place of the victims, whose keys
    /// it returns; or changes nothing.
    fn enter_index(&self, scratch: &mut Scratch) -> Option<KeyList> {
        let Storage {
            records,
            index,
            hasher,
        } = &self.shared.storage;
        let journal = &mut scratch.journal;
        journal.begin();
        let mut evicted = KeyList::with_capacity(scratch.victims.len(), self.shared.key_bytes);
        let hashes = &mut scratch.leaving.hashes;
        for victims in scratch.victims.chunks(GROUP) {
            hashes.clear();
            hashes.extend(victims.iter().map(|&slot| {
                records.read_key(slot, evicted.grow());
                hasher.index_hash(evicted.seal())
            }));
            index.warm(hashes.iter().copied());
            for (&slot, &hash) in victims.iter().zip(&*hashes) {
                index.take_out(hash, slot, journal);
            }
        }
        let mut slots = self.slots.plan(&scratch.victims, scratch.missing.len());
        for group in scratch.missing.chunks(GROUP) {
            index.warm(group.iter().map(|missing| missing.hash));
            for (missing, slot) in group.iter().zip(&mut slots) {
                if index.insert(missing.hash, slot, journal).is_err() {
                    index.undo(journal);
                    return None;
                }
            }
        }
        Some(evicted)
    }

    /// Lets claimed chunks go, in order.
    fn evict(&mut self, scratch: &mut Scratch, evicted: &KeyList) {
        if evicted.is_empty() {
            return;
        }
        let ghosts = self.policy.uses_ghosts();
        let hasher = self.shared.storage.hasher;
        let name = |key| if ghosts { hasher.fingerprint(key) } else { 0 };
        let fingerprints = &mut scratch.leaving.fingerprints;
        let mut keys = evicted.iter();
        for victims in scratch.victims.chunks(GROUP) {
            fingerprints.clear();
            fingerprints.extend(keys.by_ref().take(victims.len()).map(name));
            self.policy.warm(fingerprints);
            for (&slot, &fingerprint) in victims.iter().zip(&*fingerprints) {
                self.policy.on_evict(slot, fingerprint);
                self.release_slot(slot);
            }
        }
        self.counters.evicted += evicted.len() as u64;
        if self.events.is_some() {
            self.emit(EventKind::Removed, evicted.clone());
        }
    }

    /// Writes the records of the missing keys and inserts them into the order, pending, in call
    /// order.
    fn write(
        &mut self,
        keys: Keys<'_>,
        scratch: &mut Scratch,
        mut access: Option<&mut RequestAccess>,
    ) -> Ticket {
        let ghosts = self.policy.uses_ghosts();
        let mut ticket = Ticket::new(self.shared.incarnation, scratch.missing.len());
        for group in scratch.missing.chunks(GROUP) {
            if ghosts {
                let fingerprints = &mut scratch.leaving.fingerprints;
                fingerprints.clear();
                fingerprints.extend(group.iter().map(|missing| missing.fingerprint));
                self.policy.warm(fingerprints);
            }
            for missing in group {
                let key = keys.get(missing.index);
                let recorded = access.as_deref_mut().zip(missing.entry);
                let position = recorded.and_then(|(access, entry)| {
                    access.mark_inserted(entry);
                    access.position(entry)
                });
                self.write_one(key, position, missing.fingerprint, &mut ticket);
            }
        }
        ticket
    }

    fn write_one(
        &mut self,
        key: &[u8],
        position: Option<u32>,
        fingerprint: Fingerprint,
        ticket: &mut Ticket,
    ) {
        // As many slots are free as are needed: enough were, or enough victims left.
        let Some(slot) = self.slots.pop_free() else {
            return;
        };
        self.records().write_key(slot, key, position);
        let generation = state::begin_store(self.records().state(slot));
        self.policy.on_insert(slot, fingerprint);
        self.stamp(slot);
        self.slots.push(PENDING, slot, self.clock);
        ticket.push(slot, generation);
    }
}
