//! The tier holds the capacity that was asked for, however it is filled and replaced.

use kvferry::{Config, KeyHashing, LookupResult, Manager, PolicyKind, StoreOutcome, StoreRejected};

use crate::common::{Chunks, Numbers, begin_store, engine, look, offer, owned, store};

#[test]
fn a_full_tier_is_replaced_whole_or_in_large_parts_by_one_call() {
    for policy in PolicyKind::ALL {
        for capacity in [1, 2, 5, 8, 10, 11, 12, 13, 16, 20, 100, 1000, 5000] {
            for parts in [1, 2, 3, 7] {
                let config = Config::new(capacity)
                    .policy(policy)
                    .hashing(KeyHashing::Seeded(capacity as u64));
                let mut manager = engine(config);
                let step = capacity.div_ceil(parts) as u64;
                for call in 0..4 * parts as u64 {
                    let evicted = store(
                        &mut manager,
                        &Chunks::numbered(call * step..(call + 1) * step),
                    );
                    let over = ((call + 1) * step).saturating_sub(capacity as u64);
                    assert_eq!(evicted.len() as u64, step.min(over));
                }
                let seen = look(&manager);
                assert_eq!(seen.stats.ready, capacity as u64);
                assert_eq!(
                    (seen.stats.declined_index, seen.stats.declined_full),
                    (0, 0)
                );
            }
        }
    }
}

#[test]
fn any_capacity_is_filled_by_any_keys_at_once_or_one_by_one_and_kept_full() {
    let mut numbers = Numbers(1);
    for capacity in (1..=80).chain([100, 128, 500, 3000]) {
        for seed in 0..6 {
            let config = Config::new(capacity).hashing(KeyHashing::Seeded(seed));
            let mut manager = engine(config);
            let at_once = Chunks::numbered((0..capacity).map(|_| numbers.next()));
            assert!(store(&mut manager, &at_once).is_empty());
            for _ in 0..40 {
                let one = Chunks::numbered([numbers.next()]);
                assert_eq!(store(&mut manager, &one).len(), 1);
            }
            let mut manager = engine(Config::new(capacity).hashing(KeyHashing::Seeded(seed)));
            for _ in 0..capacity {
                let one = Chunks::numbered([numbers.next()]);
                let output = begin_store(&mut manager, &one);
                assert!(output.evicted.is_empty());
                manager.complete_store(output.ticket, true);
            }
            let seen = look(&manager);
            assert_eq!(seen.stats.ready, capacity as u64);
        }
    }
}

/// Keys that are hashed by their first and last bytes, which are the same: all of them have the
/// same two buckets of eight.
fn colliding(names: std::ops::Range<u8>) -> Chunks {
    let key = |name: u8| {
        let mut key = vec![9; 36];
        key[20] = name;
        key
    };
    Chunks(names.map(key).collect())
}

fn uniform(policy: PolicyKind, capacity: usize) -> Manager {
    let config = Config::new(capacity).policy(policy).events(true);
    engine(config.hashing(KeyHashing::Uniform))
}

fn and(one: &Chunks, other: &Chunks) -> Chunks {
    Chunks([one.0.clone(), other.0.clone()].concat())
}

#[test]
fn keys_that_were_chosen_to_collide_are_declined_with_a_reason_of_their_own() {
    for policy in PolicyKind::ALL {
        let mut manager = uniform(policy, 400);
        store(&mut manager, &Chunks::numbered(0..390));
        let evicted = store(&mut manager, &colliding(0..16));
        assert_eq!(evicted, Chunks::numbered(0..6).0);
        manager.take_events();

        let before = look(&manager);
        for chunks in [
            colliding(16..17),
            and(&Chunks::numbered(1000..1020), &colliding(99..100)),
            and(&colliding(50..51), &Chunks::numbered(1000..1383)),
            colliding(16..40),
        ] {
            let outcome = offer(&mut manager, &chunks, None);
            assert!(matches!(
                outcome,
                StoreOutcome::Rejected(StoreRejected::IndexFull)
            ));
        }
        let mut after = look(&manager);
        assert_eq!(
            (after.stats.declined_index, after.stats.declined_full),
            (4, 0)
        );
        after.stats.declined_index = 0;
        after.stats.misses = before.stats.misses;
        assert_eq!(after, before);
        assert_eq!(manager.take_events(), kvferry::Events::default());
        let all = and(&Chunks::numbered(6..390), &colliding(0..16));
        for key in &all.0 {
            assert_eq!(manager.lookup(key), Ok(LookupResult::Hit));
        }

        // Room comes back as they leave, and everything else goes on as before.
        assert_eq!(store(&mut manager, &Chunks::numbered(2000..2024)).len(), 24);
        let one = colliding(3..4);
        assert_eq!(one.with(|keys| manager.drop_keys(keys)), Ok(1));
        assert!(store(&mut manager, &colliding(16..17)).is_empty());
        look(&manager);
    }
}

#[test]
fn colliding_keys_of_one_call_are_stored_all_or_none() {
    for policy in PolicyKind::ALL {
        let mut manager = uniform(policy, 100);
        let before = look(&manager);
        assert!(
            offer(&mut manager, &colliding(0..17), None)
                .stored()
                .is_none()
        );
        let mut after = look(&manager);
        (after.stats.declined_index, after.stats.misses) = (0, 0);
        assert_eq!(after, before);
        store(&mut manager, &colliding(0..16));
        assert_eq!(look(&manager).stats.ready, 16);
    }
}

#[test]
fn a_store_that_finds_no_room_in_the_index_still_was_an_offer() {
    let mut manager = uniform(PolicyKind::Arc, 16);
    store(&mut manager, &colliding(0..16));
    store(&mut manager, &Chunks::numbered(0..16));
    let mut access = manager.begin_request(0, 0);
    let ghosts_and_more = and(&colliding(0..8), &colliding(20..29));
    let sixteen = Chunks(ghosts_and_more.0[..16].to_vec());
    // Seventeen do not fit sixteen slots; sixteen of them find their places.
    assert!(
        offer(&mut manager, &ghosts_and_more, Some(&mut access))
            .stored()
            .is_none()
    );
    assert_eq!(manager.stats().declined_full, 1);
    assert_eq!(manager.target_t1_size(), Some(8.0));
    let output = offer(&mut manager, &sixteen, Some(&mut access)).stored();
    assert_eq!(output.expect("it fits").indices.len(), 16);
    assert_eq!(
        manager.target_t1_size(),
        Some(8.0),
        "once a request and key"
    );

    let mut manager = uniform(PolicyKind::Arc, 20);
    store(&mut manager, &colliding(0..16));
    store(&mut manager, &Chunks::numbered(0..20));
    store(&mut manager, &colliding(20..36));
    let mut access = manager.begin_request(0, 0);
    for _ in 0..2 {
        let outcome = offer(&mut manager, &colliding(15..16), Some(&mut access));
        assert!(matches!(
            outcome,
            StoreOutcome::Rejected(StoreRejected::IndexFull)
        ));
    }
    let stats = look(&manager).stats;
    assert_eq!((stats.declined_index, stats.target_t1_size), (2, Some(1.0)));
    assert_eq!(access.seen(), 1);
}

#[test]
fn what_leaves_makes_room_in_the_index_for_what_comes() {
    for policy in PolicyKind::ALL {
        let mut manager = uniform(policy, 16);
        for round in 0..5u8 {
            let evicted = store(&mut manager, &colliding(round * 16..round * 16 + 16));
            assert_eq!(evicted.len(), if round > 0 { 16 } else { 0 });
            let seen = look(&manager);
            assert_eq!(seen.lists.t1, colliding(round * 16..round * 16 + 16).0);
        }
    }
}

#[test]
fn decisions_are_the_same_for_every_way_to_hash() {
    for policy in PolicyKind::ALL {
        let hashings = [
            KeyHashing::Random,
            KeyHashing::Seeded(0),
            KeyHashing::Seeded(u64::MAX),
            KeyHashing::Uniform,
        ];
        let histories = hashings.map(|hashing| {
            let config = Config::new(30).policy(policy).hashing(hashing).events(true);
            let mut manager = engine(config.store_threshold(2).max_tracker_size(60));
            let mut numbers = Numbers(77);
            let mut history = Vec::new();
            for _ in 0..1500 {
                let start = numbers.below(90) as u64;
                let keys = Chunks::numbered(start..start + 1 + numbers.below(12) as u64);
                let mut access = manager.begin_request(0, 0);
                if let Some(output) = offer(&mut manager, &keys, Some(&mut access)).stored() {
                    history.push((output.indices, owned(&output.evicted)));
                    manager.complete_store(output.ticket, numbers.below(5) > 0);
                }
                if numbers.below(3) == 0 {
                    keys.with(|keys| manager.touch(keys)).expect("valid");
                }
                manager
                    .finish_request(access, None)
                    .expect("its own engine");
            }
            let seen = look(&manager);
            (
                history,
                seen.stats,
                seen.lists.t1,
                seen.lists.t2,
                manager.take_events(),
            )
        });
        for other in &histories[1..] {
            assert_eq!(other, &histories[0]);
        }
    }
}
