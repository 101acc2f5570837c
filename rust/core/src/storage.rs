//! The flat arrays of atomics that readers see.
//!
//! One record per slot, at `u32` offsets and without pointers, so that the same arrays can later
//! live in memory that processes share. Every bit pattern is valid and every number read from here
//! is range-checked where it is used.
//!
//! ```text
//! word 0    state      see slot::state
//! word 1    meta       bits 63..32 position in the prefix + 1, or 0 | 15..0 length of the key
//! word 2    stamp      bits 63..1 number of the last touch | 0 list (T1 or T2)
//! word 3..  key        little-endian words, the last one padded with zeros
//! ```
//!
//! Ordering: key and meta words are stored with Release and loaded with Acquire. A reader that sees
//! any word of a later chunk therefore also sees that the state word has left the generation it
//! began with: a sequence lock without fences, which loom cannot model well. The stamp is read by a
//! rebuild alone and is relaxed.

use std::collections::TryReserveError;

use crate::mutant::{Mutant, weaken};
use crate::slot::state::{self, State};
use crate::sync::{AtomicU64, Ordering};

const WORDS_PER_LINE: usize = 8;
const META: usize = 1;
const STAMP: usize = 2;
const KEY: usize = 3;

/// One cache line of words.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line(pub(crate) [AtomicU64; WORDS_PER_LINE]);

impl Line {
    fn zeroed() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The records of all slots.
#[derive(Debug)]
pub(crate) struct Records {
    lines: Box<[Line]>,
    lines_per_record: usize,
    capacity: u32,
    key_bytes: usize,
}

impl Records {
    pub(crate) fn new(capacity: u32, key_bytes: usize) -> Result<Self, TryReserveError> {
        let lines_per_record = (KEY + key_bytes.div_ceil(8)).div_ceil(WORDS_PER_LINE);
        let lines = lines(capacity as usize * lines_per_record)?;
        Ok(Self {
            lines,
            lines_per_record,
            capacity,
            key_bytes,
        })
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    #[inline]
    fn word(&self, slot: u32, word: usize) -> &AtomicU64 {
        let line = slot as usize * self.lines_per_record + word / WORDS_PER_LINE;
        &self.lines[line].0[word % WORDS_PER_LINE]
    }

    /// The state word of a slot below the capacity.
    #[inline]
    pub(crate) fn state(&self, slot: u32) -> &AtomicU64 {
        self.word(slot, 0)
    }

    /// The state of `slot` if it holds exactly `key` and a lookup may find it.
    #[inline]
    pub(crate) fn find(&self, slot: u32, key: &[u8]) -> Option<State> {
        if slot >= self.capacity {
            return None;
        }
        self.find_seen(slot, key, state::load(self.state(slot)))
    }

    /// Like [`Records::find`], with the state already loaded.
    #[inline]
    pub(crate) fn find_seen(&self, slot: u32, key: &[u8], before: State) -> Option<State> {
        if !before.is_visible() || !self.key_is(slot, key) {
            return None;
        }
        let after = state::load(self.state(slot));
        let same =
            after.generation() == before.generation() || crate::mutant::is(Mutant::NoStateRecheck);
        (same && after.is_visible()).then_some(after)
    }

    #[inline]
    fn key_is(&self, slot: u32, key: &[u8]) -> bool {
        // Acquire: pairs with the Release of `write_key`; see the module.
        let order = weaken(Mutant::KeyLoadRelaxed, Ordering::Acquire);
        if self.word(slot, META).load(order) & 0xffff != key.len() as u64 {
            return false;
        }
        let whole = key.chunks_exact(8);
        let rest = whole.remainder();
        let mut word = KEY;
        for chunk in whole {
            if self.word(slot, word).load(order) != le_word(chunk) {
                return false;
            }
            word += 1;
        }
        rest.is_empty() || self.word(slot, word).load(order) == le_word(rest)
    }

    /// Writes the key of a `Free` slot. Owner only.
    pub(crate) fn write_key(&self, slot: u32, key: &[u8], position: Option<u32>) {
        // Release: pairs with the Acquire of `key_is`; see the module.
        let order = weaken(Mutant::KeyStoreRelaxed, Ordering::Release);
        let position = position.map_or(0, |p| u64::from(p) + 1) << 32;
        self.word(slot, META)
            .store(position | key.len() as u64 & 0xffff, order);
        for (i, chunk) in key.chunks(8).enumerate() {
            self.word(slot, KEY + i).store(le_word(chunk), order);
        }
    }

    /// Appends the key of a slot to `out`. Owner only: the key does not change meanwhile.
    pub(crate) fn read_key(&self, slot: u32, out: &mut Vec<u8>) {
        // Relaxed: the owner itself wrote these words.
        let len = (self.word(slot, META).load(Ordering::Relaxed) & 0xffff) as usize;
        let start = out.len();
        for i in 0..len.min(self.key_bytes).div_ceil(8) {
            out.extend_from_slice(
                &self
                    .word(slot, KEY + i)
                    .load(Ordering::Relaxed)
                    .to_le_bytes(),
            );
        }
        out.truncate(start + len.min(self.key_bytes));
    }

    /// Notes the last touch of a slot and the list it is in. Owner only.
    #[inline]
    pub(crate) fn write_stamp(&self, slot: u32, touch: u64, list: u8) {
        // Relaxed: read only when a storage is taken over, after its engine is gone.
        self.word(slot, STAMP)
            .store(touch << 1 | u64::from(list & 1), Ordering::Relaxed);
    }

    /// The last touch of a slot and its list.
    pub(crate) fn read_stamp(&self, slot: u32) -> (u64, u8) {
        // Relaxed: as above.
        let stamp = self.word(slot, STAMP).load(Ordering::Relaxed);
        (stamp >> 1, u8::from(stamp & 1 == 1))
    }

    /// Every word.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.lines.iter().flat_map(|line| &line.0)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }
}

/// Up to eight bytes as a little-endian word.
#[inline]
fn le_word(bytes: &[u8]) -> u64 {
    if let Ok(word) = bytes.try_into() {
        return u64::from_le_bytes(word);
    }
    if bytes.len() == 4 {
        // The usual rest of a 36-byte key; one load.
        let mut word = [0; 4];
        word.copy_from_slice(bytes);
        return u64::from(u32::from_le_bytes(word));
    }
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// `n` lines of zeros, or the allocator's refusal.
pub(crate) fn lines(n: usize) -> Result<Box<[Line]>, TryReserveError> {
    let mut lines = Vec::new();
    lines.try_reserve_exact(n)?;
    lines.resize_with(n, Line::zeroed);
    Ok(lines.into_boxed_slice())
}

/// `n` atomics of value zero, or the allocator's refusal.
pub(crate) fn zeroed_words(n: usize) -> Result<Box<[AtomicU64]>, TryReserveError> {
    let mut words = Vec::new();
    words.try_reserve_exact(n)?;
    words.resize_with(n, || AtomicU64::new(0));
    Ok(words.into_boxed_slice())
}

#[cfg(all(test, not(loom)))]
mod tests;
