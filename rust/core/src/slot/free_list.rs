//! The owner's list of free slots: slots never used first, in ascending order, then the one freed last.
//!
//! Ascending slots for a prefix that is stored together are what lets a lookup find a chunk next to its predecessor.

use std::collections::TryReserveError;

/// A stack of free slots; pops and pushes are O(1) and allocate nothing.
#[derive(Debug)]
pub(crate) struct FreeList {
    freed: Vec<u32>,
    fresh: u32,
    capacity: u32,
}

impl FreeList {
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        let mut freed = Vec::new();
        freed.try_reserve_exact(capacity as usize)?;
        Ok(Self {
            freed,
            fresh: 0,
            capacity,
        })
    }

    pub(crate) fn len(&self) -> u32 {
        let freed = u32::try_from(self.freed.len()).unwrap_or(u32::MAX);
        freed + (self.capacity - self.fresh)
    }

    pub(crate) fn pop(&mut self) -> Option<u32> {
        if self.fresh < self.capacity {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        self.freed.pop()
    }

    pub(crate) fn push(&mut self, slot: u32) {
        self.freed.push(slot);
    }

    /// The slots that the next `n` pops would give if `victims` were pushed first; nothing changes.
    pub(crate) fn plan<'a>(
        &'a self,
        victims: &'a [u32],
        n: usize,
    ) -> impl Iterator<Item = u32> + 'a {
        (self.fresh..self.capacity)
            .chain(victims.iter().rev().copied())
            .chain(self.freed.iter().rev().copied())
            .take(n)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.freed.capacity() * size_of::<u32>()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (self.fresh..self.capacity).chain(self.freed.iter().copied())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::FreeList;

    #[test]
    fn fresh_slots_come_first_and_in_order_then_the_last_freed() {
        let mut list = FreeList::new(3).expect("small");
        assert_eq!([list.pop(), list.pop()], [Some(0), Some(1)]);
        list.push(1);
        list.push(0);
        assert_eq!(
            [list.pop(), list.pop(), list.pop(), list.pop()],
            [Some(2), Some(0), Some(1), None]
        );
    }

    #[test]
    fn a_plan_is_what_pushes_and_pops_then_give() {
        let mut list = FreeList::new(5).expect("small");
        for _ in 0..4 {
            list.pop();
        }
        list.push(2);
        let victims = [3, 1, 0];
        let plan: Vec<u32> = list.plan(&victims, 4).collect();
        for v in victims {
            list.push(v);
        }
        let popped: Vec<u32> = (0..4).filter_map(|_| list.pop()).collect();
        assert_eq!(plan, popped);
    }
}
