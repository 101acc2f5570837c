//! Lookups, one at a time and many in a call, in tables whose entries and records disagree.

use std::ops::ControlFlow;

use super::*;
use crate::hash::{KeyHasher, KeyHashing};
use crate::key::Keys;
use crate::slot::state;

const SLOTS: u32 = 300;

/// Records and index as an engine would keep them, and the keys that are resident.
struct Tier {
    index: Index,
    records: Records,
    hasher: KeyHasher,
    resident: BTreeMap<Vec<u8>, u32>,
    journal: Journal,
}

impl Tier {
    fn new(hashing: KeyHashing, key_bytes: usize) -> Self {
        Self {
            index: Index::new(SLOTS).expect("fits memory"),
            records: Records::new(SLOTS, key_bytes).expect("fits memory"),
            hasher: KeyHasher::new(hashing),
            resident: BTreeMap::new(),
            journal: Journal::default(),
        }
    }

    fn store(&mut self, slot: u32, key: &[u8]) {
        let hash = self.hasher.index_hash(key);
        let entered = self.index.insert(hash, slot, &mut self.journal);
        entered.expect("there is room");
        self.records.write_key(slot, key, None);
        let generation = state::begin_store(self.records.state(slot));
        assert!(state::publish(self.records.state(slot), generation));
        self.resident.insert(key.to_vec(), slot);
    }

    /// The chunk goes; its entry stays, as a reader sees it that loaded the entry a moment ago.
    fn free_but_leave_the_entry(&mut self, key: &[u8]) {
        if let Some(slot) = self.resident.remove(key) {
            state::free(self.records.state(slot));
        }
    }

    fn find_each(&self, keys: Keys<'_>) -> Vec<Option<u32>> {
        let mut found = Vec::new();
        let _: ControlFlow<()> = self
            .index
            .find_each(&self.records, self.hasher, keys, |i, it| {
                assert_eq!(i, found.len(), "each key once, in order");
                if let Found::Miss(hash) = it {
                    assert_eq!(hash, self.hasher.index_hash(keys.get(i)));
                }
                found.push(it.slot());
                ControlFlow::Continue(())
            });
        found
    }

    /// Compares every form of a lookup with the map.
    fn check(&self, keys: &[Vec<u8>]) {
        let expected: Vec<Option<u32>> = keys
            .iter()
            .map(|key| self.resident.get(key).copied())
            .collect();
        let one = |key: &Vec<u8>| self.index.find_one(&self.records, self.hasher, key).slot();
        assert_eq!(keys.iter().map(one).collect::<Vec<_>>(), expected);
        let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        assert_eq!(self.find_each(Keys::slices(&slices)), expected);
        let width = keys.first().map_or(1, Vec::len);
        if keys.iter().all(|key| key.len() == width) {
            let bytes = keys.concat();
            let rows = Keys::rows(&bytes, width).expect("whole rows");
            assert_eq!(self.find_each(rows), expected);
        }
    }
}

fn key(number: u32, len: usize) -> Vec<u8> {
    let mut key = vec![0; len];
    let n = len.min(4);
    key[..n].copy_from_slice(&number.to_le_bytes()[..n]);
    key
}

#[test]
fn one_lookup_or_many_find_the_same_in_runs_gaps_and_any_order() {
    let mut numbers = Numbers(5);
    for len in [4, 36, 40, 41, 100] {
        let mut tier = Tier::new(KeyHashing::Seeded(9), 100);
        // Upwards, downwards, scattered: the neighbour is right for some and wrong for others.
        for number in 0..SLOTS {
            let slot = match number {
                0..100 => number,
                100..200 => 299 - number,
                _ => number,
            };
            if number % 17 != 0 {
                tier.store(slot, &key(number, len));
            }
        }
        let all: Vec<Vec<u8>> = (0..SLOTS + 40).map(|n| key(n, len)).collect();
        tier.check(&all);
        tier.check(&all.iter().rev().cloned().collect::<Vec<_>>());
        tier.check(&[]);
        for _ in 0..300 {
            let n = numbers.below(200) as usize;
            let mut keys = Vec::new();
            while keys.len() < n {
                let (at, run) = (numbers.below(SLOTS), 1 + numbers.below(20));
                keys.extend((at..at + run).map(|number| key(number, len)));
            }
            tier.check(&keys);
        }
    }
}

#[test]
fn a_lookup_stops_where_its_visitor_does() {
    let mut tier = Tier::new(KeyHashing::Seeded(9), 36);
    (0..200).for_each(|number| tier.store(number, &key(number, 36)));
    let keys: Vec<Vec<u8>> = (0..200).map(|number| key(number, 36)).collect();
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for stop in [0, 1, 7, 8, 9, 63, 64, 100, 199] {
        let ended =
            tier.index
                .find_each(&tier.records, tier.hasher, Keys::slices(&slices), |i, _| {
                    if i == stop {
                        ControlFlow::Break(i)
                    } else {
                        ControlFlow::Continue(())
                    }
                });
        assert_eq!(ended, ControlFlow::Break(stop));
    }
}

#[test]
fn keys_of_one_tag_and_one_pair_of_buckets_are_told_apart() {
    // Uniform keys are their own hash, by their first and last eight bytes.
    let mut tier = Tier::new(KeyHashing::Uniform, 36);
    let colliding: Vec<Vec<u8>> = (0..16u8)
        .map(|middle| {
            let mut key = vec![7; 36];
            key[20] = middle;
            key
        })
        .collect();
    let mut slot = 0;
    for key in colliding.iter().step_by(2) {
        tier.store(slot, key);
        slot += 1;
    }
    tier.check(&colliding);
    for key in colliding.iter().skip(1).step_by(2) {
        tier.store(slot, key);
        slot += 1;
    }
    tier.check(&colliding);
    tier.index.remove(tier.hasher.index_hash(&colliding[5]), 9);
    let gone = tier.resident.iter().find(|(_, slot)| **slot == 9);
    let gone = gone.map(|(key, _)| key.clone()).expect("slot 9 is used");
    tier.resident.remove(&gone);
    tier.check(&colliding);
}

#[test]
fn the_length_of_a_key_belongs_to_it() {
    for hashing in [KeyHashing::Uniform, KeyHashing::Seeded(1)] {
        let mut tier = Tier::new(hashing, 36);
        // All zeros: the words of their records are the same, and with `Uniform` their hash too.
        let zeros: Vec<Vec<u8>> = (1..=12).map(|len| vec![0; len]).collect();
        for (slot, key) in (0..).zip(zeros.iter().step_by(3)) {
            tier.store(slot, key);
        }
        tier.check(&zeros);
        let one: Vec<Vec<u8>> = vec![
            b"1".to_vec(),
            b"1\0".to_vec(),
            b"1\0\0\0\0\0\0\0\0".to_vec(),
        ];
        tier.store(10, &one[1]);
        tier.check(&one);
    }
}

#[test]
fn an_entry_whose_record_was_freed_or_rewritten_leads_nowhere() {
    let mut tier = Tier::new(KeyHashing::Seeded(4), 36);
    (0..200).for_each(|number| tier.store(number, &key(number, 36)));
    let keys: Vec<Vec<u8>> = (0..400).map(|number| key(number, 36)).collect();
    for number in (0..200).step_by(3) {
        tier.free_but_leave_the_entry(&keys[number]);
    }
    tier.check(&keys);
    for number in (0..200).step_by(6) {
        // The slot holds another key now, with an entry of its own beside the one that was left.
        let slot = u32::try_from(number).expect("small");
        tier.store(slot, &keys[number + 200]);
    }
    tier.check(&keys);
}

#[test]
fn an_entry_that_names_no_slot_is_passed_over() {
    let mut tier = Tier::new(KeyHashing::Seeded(4), 36);
    let keys: Vec<Vec<u8>> = (0..100).map(|number| key(number, 36)).collect();
    for key in &keys {
        // As shared memory might hold it: the right tag, and a slot beyond the last.
        let hash = tier.hasher.index_hash(key);
        for slot in [SLOTS, u32::MAX - 1] {
            let entered = tier.index.insert(hash, slot, &mut tier.journal);
            entered.expect("there is room");
        }
    }
    for number in (0..100).step_by(2) {
        tier.store(number, &keys[number as usize]);
    }
    tier.check(&keys);
}

#[test]
fn a_pending_or_claimed_chunk_is_found_and_a_draining_one_is_not() {
    let mut tier = Tier::new(KeyHashing::Seeded(4), 36);
    (0..5).for_each(|number| tier.store(number, &key(number, 36)));
    let word = |slot: u32| tier.records.state(slot);
    let pending = state::free(word(0));
    assert_eq!(state::begin_store(word(0)), pending);
    assert_eq!(state::claim(word(1)), state::Claim::Claimed);
    state::free(word(2));
    state::begin_store(word(2));
    state::drain_pending(word(2));
    let keys: Vec<Vec<u8>> = (0..5).map(|number| key(number, 36)).collect();
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = tier.find_each(Keys::slices(&slices));
    assert_eq!(found, [Some(0), Some(1), None, Some(3), Some(4)]);
    let ready = |slot: usize| {
        tier.index
            .find_one(&tier.records, tier.hasher, &keys[slot])
            .is_ready()
    };
    assert_eq!([ready(0), ready(1), ready(3)], [false, true, true]);
}
