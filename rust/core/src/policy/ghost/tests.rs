//! The ghost lists against two plain queues.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::table::{EMPTY, WAYS};
use super::*;

/// How keys become fingerprints.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// As a seeded hash would spread them.
    Uniform,
    /// All at home in one bucket, so that most are away from it.
    OneBucket,
    /// In few buckets.
    FewBuckets,
}

fn fingerprint(spread: Spread, key: u32) -> u128 {
    let key = u128::from(key);
    let low = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & u128::from(u64::MAX);
    match spread {
        Spread::Uniform => key << 64 | low,
        Spread::OneBucket => key << 64,
        Spread::FewBuckets => key << 64 | (low & 3 << 62),
    }
}

/// Runs `steps` on lists and model, and compares all after each.
fn run(capacity: u32, spread: Spread, steps: &[u32]) -> Result<(), TestCaseError> {
    let mut ghosts = GhostLists::new(capacity).expect("small lists fit memory");
    let mut model = [VecDeque::new(), VecDeque::new()];
    // A universe somewhat larger than both lists, so that hits and misses are both common.
    let universe = 2 * capacity + 4;
    for &entropy in steps {
        let key = fingerprint(spread, entropy / 64 % universe);
        let list = usize::from(entropy % 64 >= 32);
        let held = model.iter().position(|queue| queue.contains(&key));
        prop_assert_eq!(ghosts.find(key).map(usize::from), held);
        match entropy % 32 {
            0 if entropy % 8192 == 0 => {
                ghosts.clear();
                model.iter_mut().for_each(VecDeque::clear);
            }
            0..=7 => {
                let queue = held.map(|held| &mut model[held]);
                prop_assert_eq!(ghosts.remove(key), queue.is_some());
                if let Some(queue) = queue {
                    queue.retain(|&it| it != key);
                }
            }
            kind if held.is_some() || kind < 12 => {
                let queue = held.map(|held| &mut model[held]);
                prop_assert_eq!(ghosts.promote(key), queue.is_some());
                if let Some(queue) = queue {
                    queue.retain(|&it| it != key);
                    queue.push_back(key);
                }
            }
            _ => {
                ghosts.push(u8::from(list == 1), key);
                model[list].push_back(key);
                if model[list].len() > capacity as usize {
                    model[list].pop_front();
                }
            }
        }
        prop_assert_eq!(ghosts.check_invariants(), Ok(()));
        for (list, queue) in (0..).zip(&model) {
            prop_assert_eq!(ghosts.len(list) as usize, queue.len());
            prop_assert!(ghosts.iter(list).eq(queue.iter().copied()));
            for &ghost in queue {
                prop_assert_eq!(ghosts.find(ghost), Some(list));
            }
        }
    }
    Ok(())
}

fn spread() -> impl Strategy<Value = Spread> {
    prop_oneof![
        Just(Spread::Uniform),
        Just(Spread::OneBucket),
        Just(Spread::FewBuckets)
    ]
}

proptest! {
    #[test]
    fn short_histories_agree_with_plain_queues(
        capacity in 0u32..=40,
        spread in spread(),
        steps in proptest::collection::vec(any::<u32>(), 0..600),
    ) {
        run(capacity, spread, &steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn long_histories_agree_with_plain_queues(
        capacity in 1u32..=40,
        spread in spread(),
        steps in proptest::collection::vec(any::<u32>(), 10_000..12_000),
    ) {
        run(capacity, spread, &steps)?;
    }
}

#[test]
fn a_full_list_forgets_its_oldest_and_leaves_the_other_alone() {
    let mut ghosts = GhostLists::new(2).expect("small lists fit memory");
    ghosts.push(1, 100);
    for key in [1, 2, 3] {
        ghosts.push(0, key);
    }
    assert!(ghosts.iter(0).eq([2, 3]) && ghosts.iter(1).eq([100]));
    assert!(ghosts.promote(2));
    ghosts.push(0, 4);
    assert!(ghosts.iter(0).eq([2, 4]));
    assert_eq!((ghosts.find(3), ghosts.find(100)), (None, Some(1)));
}

#[test]
fn fingerprints_that_differ_in_one_bit_are_different_ghosts() {
    let mut ghosts = GhostLists::new(200).expect("small lists fit memory");
    ghosts.push(0, 0);
    for bit in 0..128 {
        assert_eq!(ghosts.find(1 << bit), None);
        ghosts.push(0, 1 << bit);
    }
    assert_eq!(ghosts.len(0), 129);
    assert_eq!(ghosts.check_invariants(), Ok(()));
}

#[test]
fn a_ghost_takes_thirty_two_bytes() {
    let ghosts = GhostLists::new(1_000).expect("small lists fit memory");
    assert_eq!(ghosts.memory_bytes(), 2_000 * 32);
}

#[test]
fn lists_without_capacity_remember_nothing_and_take_no_memory() {
    let mut ghosts = GhostLists::new(0).expect("nothing fits memory");
    ghosts.push(0, 5);
    assert_eq!(
        (ghosts.find(5), ghosts.promote(5), ghosts.remove(5)),
        (None, false, false)
    );
    ghosts.clear();
    assert_eq!(
        (ghosts.len(0), ghosts.iter(0).count(), ghosts.memory_bytes()),
        (0, 0, 0)
    );
    assert_eq!(ghosts.check_invariants(), Ok(()));
}

#[test]
fn a_capacity_that_no_index_can_address_is_refused() {
    assert!(GhostLists::new(u32::MAX).is_err());
    assert!(GhostLists::new(MAX_CAPACITY + 1).is_err());
}

#[test]
fn uniform_fingerprints_spread_over_all_buckets() {
    let ghosts = GhostLists::new(40).expect("small lists fit memory");
    let mut hits = [0; 10];
    for key in 0..10_000 {
        let fingerprint = fingerprint(Spread::Uniform, key).to_le_bytes();
        hits[ghosts.table.home(fingerprint)] += 1;
    }
    assert!(
        hits.iter().all(|&count| (900..1_100).contains(&count)),
        "{hits:?}"
    );
}

#[test]
#[cfg(debug_assertions)]
#[should_panic = "is in neither list"]
fn a_fingerprint_that_is_present_is_not_pushed_again() {
    let mut ghosts = GhostLists::new(3).expect("small lists fit memory");
    ghosts.push(0, 1);
    ghosts.push(1, 1);
}

#[test]
fn a_list_that_does_not_exist_is_empty_and_stays_so() {
    let mut ghosts = GhostLists::new(3).expect("small lists fit memory");
    let push = std::panic::AssertUnwindSafe(|| ghosts.push(2, 1));
    assert_eq!(
        std::panic::catch_unwind(push).is_err(),
        cfg!(debug_assertions)
    );
    assert_eq!(
        (ghosts.len(2), ghosts.iter(2).count(), ghosts.find(1)),
        (0, 0, None)
    );
}

/// What the check says of two lists with a free node each, after `harm`.
fn verdict(harm: impl FnOnce(&mut GhostLists)) -> String {
    let mut ghosts = GhostLists::new(4).expect("small lists fit memory");
    for key in 0..4 {
        ghosts.push(0, fingerprint(Spread::OneBucket, key));
        ghosts.push(1, fingerprint(Spread::OneBucket, 10 + key));
    }
    assert!(ghosts.remove(fingerprint(Spread::OneBucket, 2)));
    assert_eq!(ghosts.check_invariants(), Ok(()));
    harm(&mut ghosts);
    ghosts
        .check_invariants()
        .expect_err("the harm breaks an invariant")
}

#[test]
fn the_check_sees_broken_list_links() {
    assert!(verdict(|ghosts| ghosts.lists[0].newest = NIL).starts_with("ghosts 1"));
    assert!(verdict(|ghosts| ghosts.lists[0].len = 2).starts_with("ghosts 1"));
    assert!(verdict(|ghosts| ghosts.lists[0].len = 5).starts_with("ghosts 1"));
    assert!(verdict(|ghosts| ghosts.nodes[3].newer = 0).starts_with("ghosts 1"));
    assert!(verdict(|ghosts| ghosts.lists.swap(0, 1)).starts_with("ghosts 1"));
}

#[test]
fn the_check_sees_entries_that_are_lost_doubled_or_misplaced() {
    let entry = |ghosts: &GhostLists| ghosts.table.buckets[0].entries.iter().position(|&e| e != 0);
    let first = |ghosts: &GhostLists| entry(ghosts).expect("there are ghosts");
    assert!(verdict(|ghosts| ghosts.table.buckets.fill(EMPTY)).starts_with("ghosts 2"));
    let lose = |ghosts: &mut GhostLists| ghosts.table.buckets[0].entries[first(ghosts)] = 0;
    assert!(verdict(lose).starts_with("ghosts 2"));
    let double = |ghosts: &mut GhostLists| {
        ghosts.table.buckets[0].entries[WAYS - 1] = ghosts.table.buckets[0].entries[first(ghosts)];
    };
    assert!(verdict(double).starts_with("ghosts 2"));
    assert!(verdict(|ghosts| ghosts.table.buckets[0].away = 1).starts_with("ghosts 2"));
    assert!(verdict(|ghosts| ghosts.nodes[0].fingerprint[15] = 0xff).starts_with("ghosts 2"));
}

#[test]
fn a_full_bucket_loses_no_ghost_and_forgets_that_it_was_full() {
    let mut ghosts = GhostLists::new(100).expect("small lists fit memory");
    for key in 0..100 {
        ghosts.push(0, fingerprint(Spread::OneBucket, key));
    }
    let away = |ghosts: &GhostLists| {
        (
            ghosts.table.buckets[0].away,
            ghosts.table.buckets[0].farthest,
        )
    };
    assert_eq!(away(&ghosts), (85, 6));
    for key in 0..100 {
        assert_eq!(ghosts.find(fingerprint(Spread::OneBucket, key)), Some(0));
    }
    assert_eq!(ghosts.find(fingerprint(Spread::OneBucket, 100)), None);
    for key in 0..100 {
        assert!(ghosts.remove(fingerprint(Spread::OneBucket, key)));
    }
    assert_eq!(away(&ghosts), (0, 0));
    assert_eq!(ghosts.check_invariants(), Ok(()));
}

#[test]
fn counts_that_stand_still_lose_no_ghost() {
    let mut ghosts = GhostLists::new(100).expect("small lists fit memory");
    ghosts.table.buckets[0].away = u16::MAX;
    ghosts.table.buckets[0].farthest = u16::MAX;
    for key in 0..30 {
        ghosts.push(1, fingerprint(Spread::OneBucket, key));
    }
    for key in 0..30 {
        assert!(ghosts.remove(fingerprint(Spread::OneBucket, key)), "{key}");
    }
    assert_eq!(ghosts.find(fingerprint(Spread::OneBucket, 0)), None);
    assert_eq!(ghosts.check_invariants(), Ok(()));
}

#[test]
fn the_check_sees_a_fingerprint_twice() {
    let harm = |ghosts: &mut GhostLists| ghosts.nodes[0].fingerprint = ghosts.nodes[1].fingerprint;
    assert!(verdict(harm).starts_with("ghosts 3"));
}

#[test]
fn the_check_sees_a_lost_or_shared_free_node() {
    assert!(verdict(|ghosts| ghosts.lists[0].free = NIL).starts_with("ghosts 4"));
    assert!(verdict(|ghosts| ghosts.lists[0].free = 0).starts_with("ghosts 4"));
    assert!(verdict(|ghosts| ghosts.nodes[2].newer = 2).starts_with("ghosts 4"));
}
