//! Hashes: the same for as long as an engine lives, different where they must be.

use std::collections::BTreeSet;

use super::*;

/// Keys as a cryptographic hash would make them, and a group.
fn keys() -> Vec<Vec<u8>> {
    let word = |n: u64| xxh3_64_with_seed(&n.to_le_bytes(), 99).to_be_bytes();
    let key = |n: u64| [0, 1, 2, 3].map(|i| word(4 * n + i)).concat();
    (0..2000)
        .map(|n| [key(n), vec![0, 0, 0, 1]].concat())
        .collect()
}

#[test]
fn a_seed_gives_the_same_hashes_in_every_engine_and_another_seed_others() {
    let hash = |hashing, key: &[u8]| {
        let hasher = KeyHasher::new(hashing);
        (hasher.index_hash(key), hasher.fingerprint(key))
    };
    for key in [&b"a"[..], b"", &[0; 36], &[255; 100]] {
        let one = hash(KeyHashing::Seeded(1), key);
        assert_eq!(hash(KeyHashing::Seeded(1), key), one);
        let two = hash(KeyHashing::Seeded(2), key);
        assert!(one.0 != two.0 && one.1 != two.1);
        let random = [(); 2].map(|()| hash(KeyHashing::Random, key));
        assert_ne!(random[0], random[1], "two engines differ");
        let uniform = [(); 2].map(|()| hash(KeyHashing::Uniform, key));
        assert_eq!(uniform[0].0, uniform[1].0, "the key's own bytes");
        assert_ne!(uniform[0].1, uniform[1].1, "ghosts are seeded all the same");
    }
}

#[test]
fn keys_of_one_block_in_different_groups_have_different_hashes() {
    for hashing in [KeyHashing::Uniform, KeyHashing::Seeded(5)] {
        let hasher = KeyHasher::new(hashing);
        let mut hashes = BTreeSet::new();
        let mut buckets = BTreeSet::new();
        for group in 0..64u32 {
            let key = [vec![0x5a; 32], group.to_be_bytes().to_vec()].concat();
            let hash = hasher.index_hash(&key);
            hashes.insert(hash & 0xffff_ffff);
            buckets.insert(hash >> 48);
        }
        assert_eq!((hashes.len(), buckets.len()), (64, 64), "{hashing:?}");
    }
}

#[test]
fn uniform_keys_spread_in_both_halves_of_their_hash() {
    let hasher = KeyHasher::new(KeyHashing::Uniform);
    for shift in [0, 32, 56] {
        let mut counts = [0; 16];
        for key in keys() {
            counts[(hasher.index_hash(&key) >> shift & 15) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (80..180).contains(count)),
            "{shift}: {counts:?}"
        );
    }
}

#[test]
fn fingerprints_of_keys_that_differ_in_length_or_one_bit_differ() {
    let hasher = KeyHasher::new(KeyHashing::Seeded(3));
    let mut seen = BTreeSet::new();
    let mut n = 0;
    for len in 0..=64 {
        assert!(
            seen.insert(hasher.fingerprint(&vec![0; len])),
            "zeros of {len}"
        );
        n += 1;
        for bit in 0..len * 8 {
            let mut key = vec![0; len];
            key[bit / 8] ^= 1 << (bit % 8);
            seen.insert(hasher.fingerprint(&key));
            n += 1;
        }
    }
    assert_eq!(seen.len(), n);
}

#[test]
fn incarnations_differ() {
    let numbers: BTreeSet<u64> = (0..1000).map(|_| random_u64()).collect();
    assert_eq!(numbers.len(), 1000);
}
