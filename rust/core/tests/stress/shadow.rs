//! The bytes of the chunks, outside the engine: what transfers write and readers read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a chunk: enough that two threads at one chunk overlap.
const WORDS: usize = 8;

/// A word that no chunk has.
const POISON: u64 = u64::MAX;

pub(crate) struct Shadow(Box<[[AtomicU64; WORDS]]>);

impl Shadow {
    pub(crate) fn new(slots: usize) -> Self {
        let empty = |_| std::array::from_fn(|_| AtomicU64::new(POISON));
        Self((0..slots).map(empty).collect())
    }

    /// Begins a transfer: whoever reads the slot from now on sees it.
    pub(crate) fn poison(&self, slot: u32) {
        for word in &self.0[slot as usize] {
            // Relaxed, here and below: what orders the bytes is the engine's to do.
            word.store(POISON, Ordering::Relaxed);
        }
    }

    /// Writes the first `words` words of a key's chunk.
    pub(crate) fn fill(&self, slot: u32, key: usize, words: usize) {
        for (i, word) in self.0[slot as usize][..words].iter().enumerate() {
            word.store(Self::word(key, i), Ordering::Relaxed);
        }
    }

    /// Writes a key's chunk.
    pub(crate) fn write(&self, slot: u32, key: usize) {
        self.fill(slot, key, WORDS);
    }

    /// Writes all of a key's chunk but its last word.
    pub(crate) fn tear(&self, slot: u32, key: usize) {
        self.fill(slot, key, WORDS - 1);
    }

    /// Whether the slot holds the whole chunk of a key.
    pub(crate) fn holds(&self, slot: u32, key: usize) -> bool {
        let words = self.0[slot as usize].iter().enumerate();
        words
            .into_iter()
            .all(|(i, word)| word.load(Ordering::Relaxed) == Self::word(key, i))
    }

    fn word(key: usize, i: usize) -> u64 {
        (key * WORDS + i) as u64
    }
}
