//! Notices from readers to the owner: "the last pin of this parked slot is gone".
//!
//! A bitmap with summaries above it, 64 bits each, up to one word. A notice sets its bit on every
//! level from the bottom up; the owner takes the words from the top down. Setting is wait-free and
//! idempotent, and a drain with nothing to do is one load.
//!
//! | step | by | operation | ordering | pairs with |
//! |---|---|---|---|---|
//! | 1 | reader | set the bit of the slot | Release | the owner's swap of that word: the unpin before it is visible |
//! | 2 | reader | set the bit of that word one level up, and so on | Release | the owner's swap: step 1 is visible |
//! | 3 | owner | swap each summary with zero, then the words that it names | Acquire | steps 1 and 2 |
//!
//! No notice is lost: if the owner took a word before step 1, it cleared the summary before that,
//! and step 2 sets it again.

use std::collections::TryReserveError;

use crate::mutant::{Mutant, is, weaken};
use crate::storage::zeroed_words;
use crate::sync::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Notices {
    /// The bits of the slots first, one word last.
    levels: Vec<Box<[AtomicU64]>>,
}

impl Notices {
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        let mut levels = Vec::new();
        let mut bits = capacity as usize;
        loop {
            bits = bits.div_ceil(64).max(1);
            levels.push(zeroed_words(bits)?);
            if bits == 1 {
                return Ok(Self { levels });
            }
        }
    }

    /// Leaves a notice for a slot.
    pub(crate) fn notify(&self, slot: u32) {
        let set = |level: usize| {
            let bit = slot as usize >> (6 * level);
            // Release: pairs with the Acquire of `take`; see the module.
            let order = match level {
                0 => weaken(Mutant::NotifyRelaxed, Ordering::Release),
                _ => Ordering::Release,
            };
            self.levels[level][bit >> 6].fetch_or(1 << (bit & 63), order);
        };
        if is(Mutant::NoticeSummaryFirst) {
            (0..self.levels.len()).rev().for_each(set);
        } else {
            (0..self.levels.len()).for_each(set);
        }
    }

    /// Whether no notice has been left completely.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a hint; what is left a moment later is taken by the next drain.
        self.levels[self.levels.len() - 1][0].load(Ordering::Relaxed) == 0
    }

    /// Takes every notice that has been left completely.
    pub(crate) fn drain(&self, mut visit: impl FnMut(u32)) {
        if !self.is_empty() {
            self.take(self.levels.len() - 1, 0, &mut visit);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "bit numbers are below the capacity, which is a u32"
    )]
    fn take(&self, level: usize, index: usize, visit: &mut impl FnMut(u32)) {
        let word = &self.levels[level][index];
        // The mutant reads the word now and clears it after what lies below it.
        let late = level > 0 && is(Mutant::NoticeSummaryLate);
        // Acquire: pairs with the Release of `notify`.
        let mut bits = if late {
            word.load(Ordering::Acquire)
        } else if level == 0 {
            word.swap(0, weaken(Mutant::TakeRelaxed, Ordering::Acquire))
        } else {
            word.swap(0, Ordering::Acquire)
        };
        while bits != 0 {
            let child = index << 6 | bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if level == 0 {
                visit(child as u32);
            } else {
                self.take(level - 1, child, visit);
            }
        }
        if late {
            word.swap(0, Ordering::Acquire);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(&**level)).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Notices;

    #[test]
    fn every_notice_is_taken_once_in_order() {
        let notices = Notices::new(70_000).expect("small");
        let slots = [0, 1, 63, 64, 4095, 4096, 69_999];
        for slot in slots.into_iter().rev().chain(slots) {
            notices.notify(slot);
        }
        let mut taken = Vec::new();
        notices.drain(|slot| taken.push(slot));
        notices.drain(|_| panic!("taken twice"));
        assert_eq!(taken, slots);
    }
}
