//! Hashes of keys: one for the index, and the fingerprint by which a ghost is remembered.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// How keys are hashed for the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyHashing {
    /// XXH3 with a seed of this process: right for any key, short or made up by a stranger.
    Random,
    /// XXH3 with this seed: the same layout of the index in every run.
    Seeded(u64),
    /// The keys are uniformly distributed already (a cryptographic block hash): their own bytes are
    /// the hash.
    Uniform,
}

/// A 128-bit name for a key that is remembered without its bytes. Never used to answer a hit.
pub(crate) type Fingerprint = u128;

/// Hashes keys, the same way for as long as an engine lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHasher {
    seed: u64,
    uniform: bool,
}

impl KeyHasher {
    pub(crate) fn new(hashing: KeyHashing) -> Self {
        match hashing {
            KeyHashing::Random => Self {
                seed: random_u64(),
                uniform: false,
            },
            KeyHashing::Seeded(seed) => Self {
                seed,
                uniform: false,
            },
            KeyHashing::Uniform => Self {
                seed: random_u64(),
                uniform: true,
            },
        }
    }

    /// The index hash; all 64 bits are used.
    #[inline]
    pub(crate) fn index_hash(self, key: &[u8]) -> u64 {
        if self.uniform {
            return fold(key);
        }
        xxh3_64_with_seed(key, self.seed)
    }

    /// The name of a ghost.
    #[inline]
    pub(crate) fn fingerprint(self, key: &[u8]) -> Fingerprint {
        xxh3_128_with_seed(key, self.seed)
    }
}

/// The first eight bytes, with the last eight mixed in: keys of one block differ in their group
/// alone.
fn fold(key: &[u8]) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |w, b| w << 8 | u64::from(*b));
    let head = word(&key[..key.len().min(8)]);
    let tail = word(&key[key.len().saturating_sub(8)..]);
    let hash = (head ^ tail.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 32
}

/// A number that differs between engines and processes, from the randomness that `std` seeds its
/// maps with.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(all(test, not(loom)))]
mod tests;
