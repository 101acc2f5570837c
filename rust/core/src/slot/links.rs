//! Which slots are free, and which are held in the order in which they came to be: pending ones,
//! and those that the owner has pinned.
//!
//! Three intrusive lists over one array of links, since a slot is in at most one of them. The heads
//! answer "where does the next chunk go", "is a store overdue" and "how old is the oldest pin"
//! without a scan. Free slots are used in ascending order at first, then the one freed last:
//! ascending slots for a prefix that is stored together are what lets a lookup find a chunk next to
//! its predecessor.
//!
//! Owner only; every operation is O(1) and allocates nothing.

use std::collections::TryReserveError;

use super::NONE;
use crate::policy::flat::filled;

/// The list of slots that a store writes.
pub(crate) const PENDING: usize = 0;
/// The list of slots that the owner has pinned.
pub(crate) const PINNED: usize = 1;

/// The lists of slots that hold no ready, unpinned chunk.
#[derive(Debug)]
pub(crate) struct SlotLists {
    next: Box<[u32]>,
    prev: Box<[u32]>,
    /// When a held slot came to its list, in microseconds of the caller's clock.
    since: Box<[u64]>,
    heads: [u32; 2],
    tails: [u32; 2],
    lens: [u32; 2],
    /// Slots below this one have been used.
    fresh: u32,
    /// The slot freed last; `next` leads to the one before.
    freed: u32,
    free: u32,
}

impl SlotLists {
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            next: filled(capacity as usize, NONE)?,
            prev: filled(capacity as usize, NONE)?,
            since: filled(capacity as usize, 0)?,
            heads: [NONE; 2],
            tails: [NONE; 2],
            lens: [0; 2],
            fresh: 0,
            freed: NONE,
            free: capacity,
        })
    }

    fn capacity(&self) -> u32 {
        self.fresh + self.fresh_left()
    }

    fn fresh_left(&self) -> u32 {
        u32::try_from(self.next.len()).unwrap_or(NONE) - self.fresh
    }

    /// How many slots are free.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Takes the next free slot.
    pub(crate) fn pop_free(&mut self) -> Option<u32> {
        let slot = if self.fresh_left() > 0 {
            self.fresh += 1;
            self.fresh - 1
        } else if self.freed == NONE {
            return None;
        } else {
            let next = self.next[self.freed as usize];
            std::mem::replace(&mut self.freed, next)
        };
        self.free -= 1;
        Some(slot)
    }

    /// Frees a slot that is in no list.
    pub(crate) fn push_free(&mut self, slot: u32) {
        self.next[slot as usize] = std::mem::replace(&mut self.freed, slot);
        self.free += 1;
    }

    fn iter_freed(&self) -> impl Iterator<Item = u32> + '_ {
        let some = |slot| Some(slot).filter(|&slot| slot != NONE);
        std::iter::successors(some(self.freed), move |&slot| {
            some(self.next[slot as usize])
        })
    }

    /// The slots that the next `n` pops would give if `victims` were freed first; nothing changes.
    pub(crate) fn plan<'a>(
        &'a self,
        victims: &'a [u32],
        n: usize,
    ) -> impl Iterator<Item = u32> + 'a {
        (self.fresh..self.capacity())
            .chain(victims.iter().rev().copied())
            .chain(self.iter_freed())
            .take(n)
    }

    /// Every free slot.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter_free(&self) -> impl Iterator<Item = u32> + '_ {
        (self.fresh..self.capacity()).chain(self.iter_freed())
    }

    /// Appends a slot that is in no list.
    pub(crate) fn push(&mut self, list: usize, slot: u32, now_us: u64) {
        let tail = self.tails[list];
        self.prev[slot as usize] = tail;
        self.next[slot as usize] = NONE;
        self.since[slot as usize] = now_us;
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

    /// The oldest slot of a list and its age in microseconds.
    pub(crate) fn oldest(&self, list: usize, now_us: u64) -> Option<(u32, u64)> {
        let head = self.heads[list];
        (head != NONE).then(|| {
            let age = now_us.saturating_sub(self.since[head as usize]);
            (head, age)
        })
    }

    /// Empties the lists of held slots.
    pub(crate) fn clear_held(&mut self) {
        self.heads = [NONE; 2];
        self.tails = [NONE; 2];
        self.lens = [0; 2];
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.next) + size_of_val(&*self.prev) + size_of_val(&*self.since)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        let some = |slot| Some(slot).filter(|&slot| slot != NONE);
        std::iter::successors(some(self.heads[list]), move |&slot| {
            some(self.next[slot as usize])
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{PENDING, PINNED, SlotLists};

    #[test]
    fn the_oldest_held_slot_and_its_age_are_known_without_a_scan() {
        let mut held = SlotLists::new(4).expect("small");
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
        let mut held = SlotLists::new(3).expect("small");
        for slot in 0..3 {
            held.push(PINNED, slot, 0);
        }
        held.remove(PINNED, 1);
        assert_eq!(held.iter(PINNED).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn fresh_slots_come_first_and_in_order_then_the_last_freed() {
        let mut list = SlotLists::new(3).expect("small");
        assert_eq!([list.pop_free(), list.pop_free()], [Some(0), Some(1)]);
        list.push_free(1);
        list.push_free(0);
        assert_eq!(list.free(), 3);
        let popped: Vec<u32> = std::iter::from_fn(|| list.pop_free()).collect();
        assert_eq!((popped, list.free()), (vec![2, 0, 1], 0));
    }

    #[test]
    fn a_plan_is_what_pushes_and_pops_then_give() {
        let mut list = SlotLists::new(5).expect("small");
        for _ in 0..4 {
            list.pop_free();
        }
        list.push_free(2);
        let victims = [3, 1, 0];
        let plan: Vec<u32> = list.plan(&victims, 4).collect();
        for v in victims {
            list.push_free(v);
        }
        let popped: Vec<u32> = (0..4).filter_map(|_| list.pop_free()).collect();
        assert_eq!(plan, popped);
    }
}
