//! The tier holds the capacity that was asked for, however it is filled and replaced.

use kvferry::{Config, KeyHashing, PolicyKind};

use crate::common::{Chunks, Numbers, begin_store, engine, look, store};

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
