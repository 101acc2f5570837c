//! Which slots are held, in the order in which they came to be: pending ones, and those that the owner has pinned.
//!
//! Two intrusive lists over one pair of arrays, since a slot is never in both. The heads answer "is a store overdue" and
//! "how old is the oldest pin" without a scan. Owner only; every operation is O(1) and allocates nothing.

use std::collections::TryReserveError;

use super::NONE;

/// The list of slots that a store writes.
pub(crate) const PENDING: usize = 0;
/// The list of slots that the owner has pinned.
pub(crate) const PINNED: usize = 1;

/// Milliseconds since the clock's zero, modulo 2^32: half of a 64-bit time is enough to order 49 days.
type Millis = u32;

/// Two lists of held slots, oldest first.
#[derive(Debug)]
pub(crate) struct HeldLists {
    next: Box<[u32]>,
    prev: Box<[u32]>,
    since: Box<[Millis]>,
    heads: [u32; 2],
    tails: [u32; 2],
    lens: [u32; 2],
}

impl HeldLists {
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            next: crate::storage::filled(capacity as usize, NONE)?,
            prev: crate::storage::filled(capacity as usize, NONE)?,
            since: crate::storage::filled(capacity as usize, 0)?,
            heads: [NONE; 2],
            tails: [NONE; 2],
            lens: [0; 2],
        })
    }

    /// Appends a slot that is in neither list.
    pub(crate) fn push(&mut self, list: usize, slot: u32, now_us: u64) {
        let tail = self.tails[list];
        self.prev[slot as usize] = tail;
        self.next[slot as usize] = NONE;
        self.since[slot as usize] = millis(now_us);
        if tail == NONE {
            self.heads[list] = slot;
        } else {
            self.next[tail as usize] = slot;
        }
        self.tails[list] = slot;
        self.lens[list] += 1;
    }

    /// Takes a slot out of the list that holds it.
    pub(crate) fn remove(&mut self, list: usize, slot: u32) {
        let (prev, next) = (self.prev[slot as usize], self.next[slot as usize]);
        if prev == NONE {
            self.heads[list] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next == NONE {
            self.tails[list] = prev;
        } else {
            self.prev[next as usize] = prev;
        }
        self.lens[list] -= 1;
    }

    pub(crate) fn len(&self, list: usize) -> u32 {
        self.lens[list]
    }

    /// The oldest slot of a list and its age in microseconds, to the millisecond.
    pub(crate) fn oldest(&self, list: usize, now_us: u64) -> Option<(u32, u64)> {
        let head = self.heads[list];
        (head != NONE).then(|| {
            let age = millis(now_us).wrapping_sub(self.since[head as usize]);
            (head, u64::from(age) * 1000)
        })
    }

    pub(crate) fn clear(&mut self) {
        self.heads = [NONE; 2];
        self.tails = [NONE; 2];
        self.lens = [0; 2];
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.next.len() + self.prev.len() + self.since.len()) * size_of::<u32>()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        let some = |slot| Some(slot).filter(|&slot| slot != NONE);
        std::iter::successors(some(self.heads[list]), move |&slot| {
            some(self.next[slot as usize])
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the time is kept modulo 2^32 milliseconds"
)]
fn millis(now_us: u64) -> Millis {
    (now_us / 1000) as Millis
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{HeldLists, PENDING, PINNED};

    #[test]
    fn the_oldest_held_slot_and_its_age_are_known_without_a_scan() {
        let mut held = HeldLists::new(4).expect("small");
        held.push(PENDING, 2, 1_000_000);
        held.push(PENDING, 0, 2_000_000);
        held.push(PINNED, 3, 2_500_000);
        assert_eq!(held.oldest(PENDING, 3_000_000), Some((2, 2_000_000)));
        held.remove(PENDING, 2);
        assert_eq!(held.oldest(PENDING, 3_000_000), Some((0, 1_000_000)));
        assert_eq!(held.oldest(PINNED, 3_000_000), Some((3, 500_000)));
        held.remove(PENDING, 0);
        assert_eq!(
            (held.oldest(PENDING, 9), held.len(PENDING), held.len(PINNED)),
            (None, 0, 1)
        );
    }

    #[test]
    fn a_slot_in_the_middle_can_leave() {
        let mut held = HeldLists::new(3).expect("small");
        for slot in 0..3 {
            held.push(PINNED, slot, 0);
        }
        held.remove(PINNED, 1);
        assert_eq!(held.iter(PINNED).collect::<Vec<_>>(), [0, 2]);
    }
}
