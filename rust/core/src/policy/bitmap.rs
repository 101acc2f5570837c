//! A set of integers below a fixed bound, as a tree of bitmaps with 64 children a node.
//!
//! Invariants:
//!
//! 1. Level 0 holds one bit per integer. A bit of level `k + 1` is set exactly when the word of
//!    level `k` that it stands for is not zero.
//! 2. No bit at or above a level's length is set.
//! 3. The top level is one word.
//!
//! Cost: every operation but [`BitTree::clear_all`] reads at most two words a level, and there are
//! at most six levels (four for 16 M bits). A change goes up only when a word becomes empty or
//! stops being so, which is rare in dense sets. Memory is 0.127 bytes a bit. Owner-only: no
//! atomics.
//!
//! Own design, of the family of van Emde Boas trees with a fixed fan-out of one machine word. It is
//! chosen over a list of the members because membership changes in place, without knowing a
//! neighbour, and over a flat bitmap because the search skips empty stretches of any length.

use std::collections::TryReserveError;

use super::flat::filled;

#[cfg(test)]
mod tests;

/// Bits a word, and children a node.
const FAN_OUT: u32 = u64::BITS;
/// Enough for any `u32` bound: 64 to the sixth power is 2 to the 36th.
const MAX_LEVELS: usize = 6;

/// A set of `u32` below a fixed bound with ordered search.
#[derive(Debug)]
pub(crate) struct BitTree {
    /// All levels in one array, level 0 first.
    words: Box<[u64]>,
    /// Where each level starts in `words`, then where the last one ends.
    starts: [u32; MAX_LEVELS + 1],
    levels: usize,
    bits: u32,
}

/// The word and the mask of bit `i` within its level.
fn split(i: u32) -> (u32, u64) {
    (i / FAN_OUT, 1 << (i % FAN_OUT))
}

impl BitTree {
    /// Builds the empty set over `0..bits`. With `bits` of 0 nothing is allocated.
    ///
    /// # Errors
    ///
    /// The allocator's refusal.
    pub(crate) fn new(bits: u32) -> Result<Self, TryReserveError> {
        let mut starts = [0; MAX_LEVELS + 1];
        let mut levels = 0;
        let mut below = bits;
        while levels < MAX_LEVELS && below > 0 && (levels == 0 || below > 1) {
            below = below.div_ceil(FAN_OUT);
            starts[levels + 1] = starts[levels] + below;
            levels += 1;
        }
        let words = filled(starts[levels] as usize, 0)?;
        Ok(Self {
            words,
            starts,
            levels,
            bits,
        })
    }

    /// Adds `i`, and tells whether it was absent.
    #[inline]
    pub(crate) fn set(&mut self, i: u32) -> bool {
        debug_assert!(i < self.bits, "bit {i} is below the bound {}", self.bits);
        if i >= self.bits {
            return false;
        }
        let (word, mask) = split(i);
        let before = self.words[word as usize];
        self.words[word as usize] = before | mask;
        if before == 0 {
            self.announce(word);
        }
        before & mask == 0
    }

    /// Tells the levels above that word `at` of level 0 is no longer empty.
    fn announce(&mut self, mut at: u32) {
        for level in 1..self.levels {
            let (word, mask) = split(at);
            let above = &mut self.words[(self.starts[level] + word) as usize];
            let before = *above;
            *above = before | mask;
            if before != 0 {
                // A word that was not empty is known to every level above it.
                return;
            }
            at = word;
        }
    }

    /// Removes `i`, and tells whether it was present.
    #[inline]
    pub(crate) fn clear(&mut self, i: u32) -> bool {
        debug_assert!(i < self.bits, "bit {i} is below the bound {}", self.bits);
        if i >= self.bits {
            return false;
        }
        let (word, mask) = split(i);
        let before = self.words[word as usize];
        self.words[word as usize] = before & !mask;
        if before == mask {
            self.retract(word);
        }
        before & mask != 0
    }

    /// Tells the levels above that word `at` of level 0 has become empty.
    fn retract(&mut self, mut at: u32) {
        for level in 1..self.levels {
            let (word, mask) = split(at);
            let above = &mut self.words[(self.starts[level] + word) as usize];
            *above &= !mask;
            if *above != 0 {
                return;
            }
            at = word;
        }
    }

    /// Whether `i` is present. Nothing at or above the bound is.
    pub(crate) fn get(&self, i: u32) -> bool {
        let (word, mask) = split(i);
        i < self.bits && self.words[word as usize] & mask != 0
    }

    /// The smallest member that is `i` or more.
    pub(crate) fn first_from(&self, i: u32) -> Option<u32> {
        if i >= self.bits {
            return None;
        }
        let mut at = i;
        for level in 0..self.levels {
            let word = self.starts[level] + at / FAN_OUT;
            if word >= self.starts[level + 1] {
                // The climb left the level at its right edge: nothing follows.
                return None;
            }
            let rest = self.words[word as usize] & (!0 << (at % FAN_OUT));
            if rest != 0 {
                return Some(self.descend(level, at / FAN_OUT * FAN_OUT + rest.trailing_zeros()));
            }
            at = at / FAN_OUT + 1;
        }
        None
    }

    /// The smallest member below bit `at` of `level`, which is set.
    fn descend(&self, level: usize, mut at: u32) -> u32 {
        for lower in (0..level).rev() {
            let word = self.words[(self.starts[lower] + at) as usize];
            debug_assert!(word != 0, "a set bit stands for a word that is not zero");
            at = at * FAN_OUT + word.trailing_zeros();
        }
        at
    }

    /// Removes every member.
    pub(crate) fn clear_all(&mut self) {
        self.words.fill(0);
    }

    /// Heap memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Counts the members. O(bits).
    #[cfg(test)]
    pub(crate) fn count(&self) -> u32 {
        self.words[..self.starts[1] as usize]
            .iter()
            .map(|word| word.count_ones())
            .sum()
    }

    /// Checks the numbered invariants of the module.
    ///
    /// # Errors
    ///
    /// Says which invariant is broken, and where.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let mut below = self.bits;
        for level in 0..self.levels {
            let words = below.div_ceil(FAN_OUT);
            for word in 0..words {
                let value = self.words[(self.starts[level] + word) as usize];
                let used = below - word * FAN_OUT;
                if used < FAN_OUT && value >> used != 0 {
                    return Err(format!(
                        "bitmap 2: level {level} has a bit beyond its length"
                    ));
                }
                if level + 1 < self.levels {
                    let (up, mask) = split(word);
                    let summary = self.words[(self.starts[level + 1] + up) as usize] & mask != 0;
                    if summary != (value != 0) {
                        return Err(format!("bitmap 1: word {word} of level {level}: {summary}"));
                    }
                } else if words != 1 {
                    return Err(format!("bitmap 3: the top level has {words} words"));
                }
            }
            below = words;
        }
        Ok(())
    }
}
