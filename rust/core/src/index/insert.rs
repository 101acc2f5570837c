//! Putting a key into the index, moving others out of its way where both its buckets are full, and
//! taking a whole call back.

use super::{Index, Place, WAYS, entry, unpack};
use crate::mutant::{Mutant, is};

/// No room within two kicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexFull;

/// One way of one bucket: the bucket, then three bits for the way. Fits 32 bits: the table has
/// fewer than 2^28 buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot(u32);

impl Spot {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a way is a number below eight"
    )]
    pub(super) fn new(bucket: u32, way: usize) -> Self {
        Self(bucket << 3 | way as u32)
    }

    fn bucket(self) -> u32 {
        self.0 >> 3
    }

    fn way(self) -> usize {
        self.0 as usize & 7
    }
}

/// One change of the table.
#[derive(Clone, Copy, Debug)]
enum Step {
    Entered(Spot),
    Removed(Spot, u64),
    Moved { from: Spot, to: Spot },
}

/// What one call changed, so that it can be taken back.
#[derive(Debug, Default)]
pub(crate) struct Journal(Vec<Step>);

impl Journal {
    /// Begins a call.
    pub(crate) fn begin(&mut self) {
        self.0.clear();
    }

    /// How many entries moved.
    #[cfg(all(test, not(loom)))]
    pub(super) fn moves(&self) -> usize {
        let moved = |step: &&Step| matches!(step, Step::Moved { .. });
        self.0.iter().filter(moved).count()
    }
}

impl Index {
    /// Adds an entry from `hash` to `slot`. At most two other entries move. Owner only.
    ///
    /// The record of `slot` may be written later: until it holds the key, whoever follows the entry
    /// finds another key.
    pub(crate) fn insert(
        &self,
        hash: u64,
        slot: u32,
        journal: &mut Journal,
    ) -> Result<(), IndexFull> {
        let place = self.place(hash);
        let at = self
            .emptier(place.first, place.second)
            .or_else(|| self.make_room(place, journal))
            .ok_or(IndexFull)?;
        self.write(at, entry(place.tag, slot));
        journal.0.push(Step::Entered(at));
        Ok(())
    }

    /// Clears the entry that leads from `hash` to `slot`, in a way that can be taken back. Owner
    /// only.
    pub(crate) fn take_out(&self, hash: u64, slot: u32, journal: &mut Journal) {
        if let Some(at) = self.locate(hash, slot) {
            journal.0.push(Step::Removed(at, self.read(at)));
            self.write(at, 0);
        }
    }

    /// Takes back all that `journal` holds, the last change first: the table is what it was. Owner
    /// only.
    pub(crate) fn undo(&self, journal: &mut Journal) {
        while let Some(step) = journal.0.pop() {
            match step {
                Step::Entered(at) => self.write(at, 0),
                Step::Removed(at, entry) => self.write(at, entry),
                Step::Moved { from, to } => move_entry(self, to, from),
            }
        }
    }

    fn read(&self, at: Spot) -> u64 {
        self.load(at.bucket(), at.way())
    }

    pub(super) fn write(&self, at: Spot, entry: u64) {
        self.store(at.bucket(), at.way(), entry);
    }

    /// An empty way in the emptier one of two buckets: filling the first one first would end at a
    /// third of the load.
    fn emptier(&self, first: u32, second: u32) -> Option<Spot> {
        let (a, in_first) = self.empties(first);
        let (b, in_second) = self.empties(second);
        if a >= b { in_first } else { in_second }
    }

    /// How many ways of a bucket are empty, and one of them. Without branches, like the lookup.
    #[inline]
    fn empties(&self, bucket: u32) -> (u32, Option<Spot>) {
        let mask = (0..WAYS).fold(0u32, |mask, way| {
            mask | u32::from(self.load(bucket, way) == 0) << way
        });
        (
            mask.count_ones(),
            (mask != 0).then(|| Spot::new(bucket, mask.trailing_zeros() as usize)),
        )
    }

    /// Empties one way of the two full buckets of `place`: by one kick if that is possible, else by
    /// two.
    fn make_room(&self, place: Place, journal: &mut Journal) -> Option<Spot> {
        let buckets = [place.first, place.second];
        buckets
            .into_iter()
            .find_map(|bucket| self.kick(bucket, journal))
            .or_else(|| {
                let mut ways = buckets
                    .into_iter()
                    .flat_map(|bucket| (0..WAYS).map(move |way| Spot::new(bucket, way)));
                ways.find_map(|at| {
                    let room = self.kick(self.alternative(at), journal)?;
                    self.shift(at, room, journal);
                    Some(at)
                })
            })
    }

    /// Moves one entry of a full bucket to its other bucket, if one of them has room; returns the
    /// way that is empty now.
    fn kick(&self, bucket: u32, journal: &mut Journal) -> Option<Spot> {
        (0..WAYS).find_map(|way| {
            let at = Spot::new(bucket, way);
            let room = self.empties(self.alternative(at)).1?;
            self.shift(at, room, journal);
            Some(at)
        })
    }

    /// The other bucket of the entry at `at`.
    fn alternative(&self, at: Spot) -> u32 {
        self.other(at.bucket(), unpack(self.read(at)).0)
    }

    fn shift(&self, from: Spot, to: Spot, journal: &mut Journal) {
        move_entry(self, from, to);
        journal.0.push(Step::Moved { from, to });
    }
}

/// The order in which a move writes, for the owner. See the table in the module above.
pub(super) fn move_entry(index: &Index, from: Spot, to: Spot) {
    let moved = index.read(from);
    // The mutant is the protocol in the wrong order.
    let clear_first = is(Mutant::MoveClearsFirst);
    if clear_first {
        index.write(from, 0);
    }
    index.write(to, moved);
    index.count_move();
    if !clear_first {
        index.write(from, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
