//! The index: which slot holds a key.
//!
//! A set-associative table of fixed size. A bucket is one cache line of eight entries; every key
//! has two candidate buckets; an entry is a 32-bit tag of the hash and the slot number plus one, or
//! zero. Either bucket of an entry follows from the other one and the tag, so that an entry moves
//! without a look at its key. A removal clears an entry, so there are no tombstones and nothing is
//! ever rebuilt. The table is made for a load of at most [`LOAD_PERCENT`] %.
//!
//! Invariants:
//!
//! * I1. A resident key has exactly one entry, in one of its two buckets; for the time of a move,
//!   two.
//! * I2. An entry is a hint. Whoever follows it compares the whole key in the record, its length
//!   included, under the generation of the slot. A wrong entry costs time, never a wrong hit.
//! * I3. Only the owner writes.
//!
//! Moving an entry while readers look:
//!
//! | step | by | operation | ordering | pairs with |
//! |---|---|---|---|---|
//! | 1 | owner | write the entry into the destination | Release | the reader's loads of entries |
//! | 2 | owner | advance the move counter | Release | the reader's two loads of the counter |
//! | 3 | owner | clear the source | Release | the reader's loads of entries: seeing it cleared means seeing step 2 |
//!
//! A reader that misses and finds the counter where it was before has seen each entry before its
//! move or after it. It looks again otherwise: lock-free, since the owner has made progress. Undoing
//! a move is a move.

mod batch;
mod insert;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::TryReserveError;

use crossbeam_utils::CachePadded;

use crate::mutant::{Mutant, is, weaken};
#[cfg(any(test, feature = "testing"))]
use crate::slot::NONE;
use crate::slot::state::State;
use crate::storage::{Line, Records, lines};
use crate::sync::{AtomicU64, Ordering};

pub(crate) use batch::Found;
#[cfg(all(test, not(loom)))]
use insert::IndexFull;
pub(crate) use insert::Journal;
use insert::Spot;

/// The load that the table is made for: it costs 10.7 bytes a chunk. 20 million replacements met a
/// key without room at none of 14 capacities from 13 to 100,000.
pub(crate) const LOAD_PERCENT: usize = 75;

/// Buckets beyond that load. A small table has so few pairs of buckets that many keys may share
/// one: without these, 89 of 20 million replacements in a table for 24 keys found no room.
const SPARE_BUCKETS: usize = 2;

/// Entries in a bucket. The models explore every load of one, and two show what eight do.
const WAYS: usize = if cfg!(loom) { 2 } else { 8 };

/// Where the entry of a hash may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) first: u32,
    pub(crate) second: u32,
    tag: u32,
}

/// The table. See the module.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Box<[Line]>,
    moves: CachePadded<AtomicU64>,
}

/// A uniform number scaled down to `0..n`.
#[inline]
fn scale(uniform: u32, n: usize) -> u32 {
    ((u64::from(uniform) * n as u64) >> 32) as u32
}

#[inline]
fn entry(tag: u32, slot: u32) -> u64 {
    u64::from(tag) << 32 | (u64::from(slot) + 1)
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of an entry are 32 bits each"
)]
fn unpack(entry: u64) -> (u32, u32) {
    ((entry >> 32) as u32, (entry as u32).wrapping_sub(1))
}

impl Index {
    /// A table for `capacity` keys.
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        let buckets = (capacity as usize * 100).div_ceil(WAYS * LOAD_PERCENT) + SPARE_BUCKETS;
        // Even: see `other`.
        let buckets = buckets.next_multiple_of(2);
        Ok(Self {
            buckets: lines(buckets)?,
            moves: CachePadded::new(AtomicU64::new(0)),
        })
    }

    /// The candidate buckets of a hash, always different, and its tag.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the tag is the low half of the hash"
    )]
    pub(crate) fn place(&self, hash: u64) -> Place {
        // Not zero, so that an empty entry never has the right tag.
        let tag = (hash as u32).max(1);
        let first = scale((hash >> 32) as u32, self.buckets.len());
        Place {
            first,
            second: self.other(first, tag),
            tag,
        }
    }

    /// The other bucket of an entry: the two add up, modulo the number of buckets, to a number that
    /// the tag gives. That number is odd and the number of buckets even, so that they differ.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the table has fewer than 2^28 buckets"
    )]
    fn other(&self, bucket: u32, tag: u32) -> u32 {
        let n = self.buckets.len();
        let sum = scale(tag.wrapping_mul(0x9e37_79b1), n / 2) * 2 + 1;
        if sum >= bucket {
            sum - bucket
        } else {
            sum + n as u32 - bucket
        }
    }

    #[inline]
    fn load(&self, bucket: u32, way: usize) -> u64 {
        // Acquire: pairs with the Release of `store`; a cleared entry, and whatever takes its place,
        // leads to the move counter.
        let order = weaken(Mutant::EntryLoadRelaxed, Ordering::Acquire);
        self.buckets[bucket as usize].0[way].load(order)
    }

    #[inline]
    fn store(&self, bucket: u32, way: usize, entry: u64) {
        // Release: pairs with the Acquire of `load`.
        let order = weaken(Mutant::EntryStoreRelaxed, Ordering::Release);
        self.buckets[bucket as usize].0[way].store(entry, order);
    }

    #[inline]
    pub(crate) fn moves(&self) -> u64 {
        // Acquire: pairs with the Release of `count_move`; the destination of a counted move is
        // visible.
        let order = weaken(Mutant::MovesLoadRelaxed, Ordering::Acquire);
        self.moves.load(order)
    }

    fn count_move(&self) {
        if !is(Mutant::MoveUncounted) {
            // Release: pairs with the Acquire of `moves`.
            let order = weaken(Mutant::CountMoveRelaxed, Ordering::Release);
            self.moves.fetch_add(1, order);
        }
    }

    /// The slot that holds `key`, and its state. Lock-free: it starts again only when the owner
    /// moved an entry meanwhile.
    #[inline]
    pub(crate) fn find(&self, records: &Records, hash: u64, key: &[u8]) -> Option<(u32, State)> {
        let place = self.place(hash);
        loop {
            let moves = self.moves();
            for bucket in [place.first, place.second] {
                for way in 0..WAYS {
                    let (tag, slot) = unpack(self.load(bucket, way));
                    if tag == place.tag
                        && let Some(state) = records.find(slot, key)
                    {
                        return Some((slot, state));
                    }
                }
            }
            if self.moves() == moves || is(Mutant::NoMoveRecheck) {
                return None;
            }
        }
    }

    /// Brings the buckets of these hashes into the processor's cache, the misses of all of them
    /// overlapping.
    pub(crate) fn warm(&self, hashes: impl Iterator<Item = u64>) {
        let mut touched = 0;
        for hash in hashes {
            let place = self.place(hash);
            // Relaxed: only brings the line; whoever uses it loads it again.
            touched ^= self.buckets[place.first as usize].0[0].load(Ordering::Relaxed);
            touched ^= self.buckets[place.second as usize].0[0].load(Ordering::Relaxed);
        }
        std::hint::black_box(touched);
    }

    /// Clears the entry that leads from `hash` to `slot`. Owner only.
    pub(crate) fn remove(&self, hash: u64, slot: u32) {
        if let Some(at) = self.locate(hash, slot) {
            self.write(at, 0);
        }
    }

    fn locate(&self, hash: u64, slot: u32) -> Option<Spot> {
        let place = self.place(hash);
        let wanted = entry(place.tag, slot);
        [place.first, place.second].into_iter().find_map(|bucket| {
            let way = (0..WAYS).find(|&way| self.load(bucket, way) == wanted)?;
            Some(Spot::new(bucket, way))
        })
    }

    /// Forgets every key. Owner only.
    pub(crate) fn clear(&self) {
        for line in &self.buckets {
            for entry in &line.0[..WAYS] {
                // Release: as for `store`.
                entry.store(0, Ordering::Release);
            }
        }
    }

    /// Every word.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.buckets.iter().flat_map(|line| &line.0)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Every slot that an entry names.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let entries = self.buckets.iter().flat_map(|line| &line.0);
        // Relaxed: called by the owner.
        entries
            .map(|e| unpack(e.load(Ordering::Relaxed)).1)
            .filter(|&slot| slot != NONE)
    }
}
