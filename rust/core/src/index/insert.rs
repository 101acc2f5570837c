//! Putting a key into the index, moving others out of its way where both its buckets are full.
//!
//! The keys of a store are entered before its victims leave, so that the store can still be
//! rejected: every write is noted and can be taken back. For that time the table would hold both;
//! where it has no room for both, an entry takes the place of a victim's. A lookup may then miss a
//! chunk that is being evicted, for as long as the call lasts.

use std::collections::HashSet;

use super::{Index, Place, WAYS, entry, unpack};
use crate::mutant::{Mutant, is};
use crate::shared::Storage;
use crate::slot::state::{self, Phase};

/// No room within two kicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexFull;

/// What one call has written into the index.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    log: Vec<Write>,
    /// Victims whose own entry is gone. An entry that names one of them is that of the key which
    /// will have its slot, even if the two keys have the same tag.
    displaced: HashSet<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    at: At,
    before: u64,
}

/// One way of one bucket.
#[derive(Clone, Copy, Debug)]
struct At {
    bucket: u32,
    way: usize,
}

impl Writes {
    pub(crate) fn clear(&mut self) {
        self.log.clear();
        self.displaced.clear();
    }

    /// Whether the entry of a victim has been written over.
    pub(crate) fn displaced(&self, slot: u32) -> bool {
        !self.displaced.is_empty() && self.displaced.contains(&slot)
    }
}

impl Index {
    /// Adds an entry from `hash` to `slot`. At most two other entries move. Owner only.
    ///
    /// The record of `slot` may be written later: until it holds the key, whoever follows the entry
    /// finds another key.
    pub(crate) fn insert(
        &self,
        storage: &Storage,
        hash: u64,
        slot: u32,
        writes: &mut Writes,
    ) -> Result<(), IndexFull> {
        let place = self.place(hash);
        let at = self
            .emptier(place)
            .or_else(|| self.victim_of_either(storage, place, writes))
            .or_else(|| self.make_room(storage, place, writes))
            .ok_or(IndexFull)?;
        self.write(at, entry(place.tag, slot), writes);
        Ok(())
    }

    /// Undoes all that was written, so that every entry is where it was. Owner only.
    pub(crate) fn take_back(&self, writes: &Writes) {
        for Write { at, before } in writes.log.iter().rev() {
            self.store(at.bucket, at.way, *before);
            if *before != 0 && !is(Mutant::TakeBackUncounted) {
                // A moved entry is in both its ways now, and leaves the one that it was moved to.
                self.count_move();
            }
        }
    }

    fn write(&self, at: At, entry: u64, writes: &mut Writes) {
        let before = self.load(at.bucket, at.way);
        writes.log.push(Write { at, before });
        self.store(at.bucket, at.way, entry);
    }

    /// An empty way in the emptier one of two buckets: filling the first one first would end at a
    /// third of the load.
    fn emptier(&self, place: Place) -> Option<At> {
        let (a, in_first) = self.empties(place.first);
        let (b, in_second) = self.empties(place.second);
        if a >= b { in_first } else { in_second }
    }

    /// How many ways of a bucket are empty, and one of them. Without branches, like the lookup.
    #[inline]
    fn empties(&self, bucket: u32) -> (u32, Option<At>) {
        let mask = (0..WAYS).fold(0u32, |mask, way| {
            mask | u32::from(self.load(bucket, way) == 0) << way
        });
        let way = mask.trailing_zeros() as usize;
        (mask.count_ones(), (mask != 0).then_some(At { bucket, way }))
    }

    /// The entry of a victim in that one of two buckets which has more of them: that keeps the load
    /// even, as the choice of the emptier bucket does. The caller writes over it.
    fn victim_of_either(&self, storage: &Storage, place: Place, writes: &mut Writes) -> Option<At> {
        let (a, in_first) = self.victims(storage, place.first, writes);
        let (b, in_second) = self.victims(storage, place.second, writes);
        let at = if a >= b { in_first } else { in_second }?;
        Some(self.displace(at, writes))
    }

    /// How many entries of a bucket are victims', and one of them.
    fn victims(&self, storage: &Storage, bucket: u32, writes: &Writes) -> (usize, Option<At>) {
        let ways = (0..WAYS).map(|way| At { bucket, way });
        let mut victims = ways.filter(|at| self.is_of_victim(storage, *at, writes));
        let first = victims.next();
        (usize::from(first.is_some()) + victims.count(), first)
    }

    /// Notes that a victim's entry is to be written over.
    fn displace(&self, at: At, writes: &mut Writes) -> At {
        writes
            .displaced
            .insert(unpack(self.load(at.bucket, at.way)).1);
        at
    }

    /// Whether an entry is that of a claimed chunk, and not that of the key which will have its
    /// slot. Rare enough that an allocation here does not show.
    fn is_of_victim(&self, storage: &Storage, at: At, writes: &Writes) -> bool {
        let (tag, slot) = unpack(self.load(at.bucket, at.way));
        let records = &storage.records;
        if slot >= records.capacity()
            || state::load(records.state(slot)).phase() != Phase::Evicting
            || writes.displaced(slot)
        {
            return false;
        }
        let mut key = Vec::with_capacity(records.key_bytes() + 8);
        records.read_key(slot, &mut key);
        self.place(storage.hasher.index_hash(&key)).tag == tag
    }

    /// Empties one way of the two full buckets of `place`: by one kick if that is possible, else by
    /// two.
    fn make_room(&self, storage: &Storage, place: Place, writes: &mut Writes) -> Option<At> {
        let buckets = [place.first, place.second];
        let kicked = buckets
            .into_iter()
            .find_map(|bucket| self.kick(storage, bucket, writes));
        kicked.or_else(|| {
            buckets.into_iter().find_map(|bucket| {
                (0..WAYS).find_map(|way| {
                    let from = At { bucket, way };
                    let room = self.kick(storage, self.other_of(from), writes)?;
                    self.move_entry(from, room, writes);
                    Some(from)
                })
            })
        })
    }

    /// Moves one entry of a full bucket to its other bucket, if one of them has room there or a
    /// victim's entry to write over; returns the way that is free now.
    fn kick(&self, storage: &Storage, bucket: u32, writes: &mut Writes) -> Option<At> {
        (0..WAYS).find_map(|way| {
            let from = At { bucket, way };
            let other = self.other_of(from);
            let room = match self.empties(other).1 {
                Some(room) => room,
                None => self.displace(self.victims(storage, other, writes).1?, writes),
            };
            self.move_entry(from, room, writes);
            Some(from)
        })
    }

    /// The other bucket of the entry that stands there.
    fn other_of(&self, at: At) -> u32 {
        self.other(at.bucket, unpack(self.load(at.bucket, at.way)).0)
    }

    /// The order in which a move writes. See the table in the module above.
    fn move_entry(&self, from: At, to: At, writes: &mut Writes) {
        let moved = self.load(from.bucket, from.way);
        // The mutant is the protocol in the wrong order.
        if is(Mutant::MoveClearsFirst) {
            self.write(from, 0, writes);
            self.write(to, moved, writes);
            self.count_move();
            return;
        }
        self.write(to, moved, writes);
        self.count_move();
        self.write(from, 0, writes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
