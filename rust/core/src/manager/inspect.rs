//! Inspection for tests: the order in full, and the invariants.

use xxhash_rust::xxh3::xxh3_64;

use super::{Manager, WRITER};
use crate::policy::Lists;
use crate::slot::state::{self, Phase};
use crate::slot::{PENDING, PINNED};

/// The lists of a policy with the keys of their slots, least recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugLists {
    /// Keys seen once; all keys of a policy with one list.
    pub t1: Vec<Vec<u8>>,
    /// Keys seen again.
    pub t2: Vec<Vec<u8>>,
    /// Fingerprints of keys that left `t1`.
    pub b1: Vec<u128>,
    /// Fingerprints of keys that left `t2`.
    pub b2: Vec<u128>,
}

impl Manager {
    /// The policy's lists.
    #[must_use]
    pub fn debug_lists(&self) -> DebugLists {
        let Lists { t1, t2, b1, b2 } = self.policy.lists();
        let keys = |slots: Vec<u32>| slots.into_iter().map(|slot| self.key_of(slot)).collect();
        DebugLists {
            t1: keys(t1),
            t2: keys(t2),
            b1,
            b2,
        }
    }

    /// A hash of the policy's lists with their order, without a copy of a key: equal as long as
    /// none of them changes.
    #[must_use]
    pub fn debug_digest(&self) -> u64 {
        let Lists { t1, t2, b1, b2 } = self.policy.lists();
        let mut bytes = Vec::new();
        for list in [t1, t2] {
            bytes.extend((list.len() as u64).to_le_bytes());
            for slot in list {
                // A slot holds the same key for as long as its generation stays.
                bytes.extend(slot.to_le_bytes());
                bytes.extend(self.slot_state(slot).generation().to_le_bytes());
            }
        }
        for ghosts in [b1, b2] {
            bytes.extend((ghosts.len() as u64).to_le_bytes());
            bytes.extend(ghosts.into_iter().flat_map(u128::to_le_bytes));
        }
        xxh3_64(&bytes)
    }

    /// The name under which a key is remembered as a ghost.
    #[must_use]
    pub fn debug_fingerprint(&self, key: &[u8]) -> u128 {
        self.shared.storage.hasher.fingerprint(key)
    }

    /// The slot of a resident key.
    #[must_use]
    pub fn debug_slot(&self, key: &[u8]) -> Option<u32> {
        self.shared.storage.find_one(key).slot()
    }

    /// How many entries of the index have been moved to make room for others.
    #[must_use]
    pub fn debug_moves(&self) -> u64 {
        self.shared.storage.index.moves()
    }

    /// The key that a slot's record holds, whatever its phase. For a reader that checks that its
    /// pin holds.
    #[must_use]
    pub fn debug_key(&self, slot: u32) -> Vec<u8> {
        self.key_of(slot)
    }

    fn key_of(&self, slot: u32) -> Vec<u8> {
        let mut key = Vec::new();
        self.records().read_key(slot, &mut key);
        key
    }

    /// Checks every invariant of the engine, for when no reader is in the middle of anything.
    ///
    /// # Errors
    ///
    /// The first invariant that does not hold, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.policy.check_invariants()?;
        let capacity = self.records().capacity();
        let mut free = vec![false; capacity as usize];
        for slot in self.slots.iter_free() {
            if std::mem::replace(&mut free[slot as usize], true) {
                return Err(format!("slot {slot} is on the free list twice"));
            }
        }
        let Lists { t1, t2, .. } = self.policy.lists();
        let mut listed = vec![0u8; capacity as usize];
        for slot in t1.iter().chain(&t2) {
            listed[*slot as usize] += 1;
        }
        let mut held = vec![[false; 2]; capacity as usize];
        for list in [PENDING, PINNED] {
            self.slots
                .iter(list)
                .for_each(|slot| held[slot as usize][list] = true);
        }
        let mut entries = vec![0u32; capacity as usize];
        for slot in self.shared.storage.index.slots() {
            entries[slot as usize] += 1;
        }
        for slot in 0..capacity {
            let i = slot as usize;
            self.check_slot(slot, free[i], listed[i], held[i], entries[i])
                .map_err(|what| format!("slot {slot} ({:?}): {what}", self.slot_state(slot)))?;
        }
        self.check_counts(&t1, &t2)
    }

    fn slot_state(&self, slot: u32) -> state::State {
        state::load(self.records().state(slot))
    }

    fn check_slot(
        &self,
        slot: u32,
        free: bool,
        listed: u8,
        held: [bool; 2],
        entries: u32,
    ) -> Result<(), String> {
        let state = self.slot_state(slot);
        let pins = self.owner_pins[slot as usize];
        let resident = matches!(state.phase(), Phase::Pending | Phase::Ready);
        let expect = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        expect(state.phase() != Phase::Evicting, "evicting between calls")?;
        expect(
            free == (state.phase() == Phase::Free),
            "I1: free list and phase differ",
        )?;
        expect(listed == u8::from(resident), "I2: order and phase differ")?;
        expect(entries == u32::from(resident), "I2: index and phase differ")?;
        expect(
            !resident || self.debug_slot(&self.key_of(slot)) == Some(slot),
            "I2: its key leads elsewhere",
        )?;
        let evictable = state.phase() == Phase::Ready && !state.is_parked() && pins == 0;
        expect(
            !resident || self.policy.is_evictable(slot) == evictable,
            "I3: evictable bit is wrong",
        )?;
        let held_by_owner = if pins == WRITER { 1 } else { pins };
        expect(
            state.pins() >= held_by_owner,
            "I4: fewer pins than the owner holds",
        )?;
        expect(
            pins != WRITER || state.phase() == Phase::Draining,
            "I4: a cancelled writer of a slot that does not drain",
        )?;
        expect(
            held[PENDING] == (state.phase() == Phase::Pending),
            "I5: pending list is wrong",
        )?;
        expect(
            held[PINNED] == (state.phase() == Phase::Ready && pins > 0),
            "I5: pinned list is wrong",
        )?;
        expect(
            resident || !self.is_dropped(slot),
            "a drop mark on a slot without a key",
        )
    }

    fn check_counts(&self, t1: &[u32], t2: &[u32]) -> Result<(), String> {
        let draining = (0..self.records().capacity())
            .filter(|&slot| self.slot_state(slot).phase() == Phase::Draining)
            .count();
        let free = self.slots.free() as usize;
        let all = t1.len() + t2.len() + draining + free;
        if all != self.capacity() || draining as u64 != self.counters.draining {
            return Err(format!(
                "{} listed + {draining} draining + {free} free of {} slots, {} counted as draining",
                t1.len() + t2.len(),
                self.capacity(),
                self.counters.draining
            ));
        }
        if u64::from(self.policy.ghosts()) > 2 * self.counters.capacity {
            return Err("more ghosts than twice the capacity".to_owned());
        }
        Ok(())
    }
}
