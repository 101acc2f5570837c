//! The lookups: they tell what is there and change nothing.

use kvferry::{Config, LookupResult, PolicyKind, PrefixHits};

use crate::common::{Chunks, engine, look, offer_named, put, seen};

#[test]
fn a_lookup_tells_missing_pending_and_ready_apart() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(4).policy(policy));
        put(&mut manager, "a");
        let (ticket, ..) = offer_named(&mut manager, "b", None).expect("it fits");
        assert_eq!(seen(&manager, "a b c"), "hp.");
        let mut found = vec![LookupResult::Hit; 9];
        let keys = Chunks::named("c b a a");
        keys.with(|keys| manager.lookup_each(keys, &mut found))
            .expect("valid");
        let expected = [
            LookupResult::Miss,
            LookupResult::HitPending,
            LookupResult::Hit,
            LookupResult::Hit,
        ];
        assert_eq!(found, expected);
        assert_eq!(
            found.iter().map(|r| *r as u8).collect::<Vec<_>>(),
            [0, 2, 1, 1]
        );
        manager.complete_store(ticket, false);
        assert_eq!(seen(&manager, "a b c"), "h..");
    }
}

#[test]
fn a_prefix_is_the_leading_run_of_ready_chunks_and_of_known_ones() {
    let mut manager = engine(Config::new(8));
    put(&mut manager, "a b e");
    let _pending = offer_named(&mut manager, "c", None).expect("it fits");
    for (keys, ready, known) in [
        ("", 0, 0),
        ("a", 1, 1),
        ("a b c", 2, 3),
        ("a b c e", 2, 4),
        ("c a b", 0, 3),
        ("a x b", 1, 1),
        ("x a b", 0, 0),
        ("a c a c x", 1, 4),
    ] {
        let hits = Chunks::named(keys).with(|keys| manager.lookup_prefix(keys));
        assert_eq!(hits, Ok(PrefixHits { ready, known }), "{keys}");
        let hits = Chunks::named(keys).with(|keys| manager.reader().lookup_prefix(keys));
        assert_eq!(hits, Ok(PrefixHits { ready, known }), "{keys}");
    }
}

#[test]
fn prefixes_of_any_length_are_found_in_runs_upwards_downwards_and_scattered() {
    let mut manager = engine(Config::new(1000));
    let up: Vec<u64> = (0..300).collect();
    let down: Vec<u64> = (300..600).rev().collect();
    let scattered: Vec<u64> = (0..300).map(|i| 600 + i * 7 % 300).collect();
    for run in [&up, &down, &scattered] {
        crate::common::store(&mut manager, &Chunks::numbered(run.iter().copied()));
    }
    let all = [up, down, scattered].concat();
    for hole in [0, 1, 7, 8, 9, 63, 64, 65, 300, 555, 899] {
        let mut keys = Chunks::numbered(all.iter().copied());
        keys.0[hole] = b"hole".to_vec();
        let hits = keys
            .with(|keys| manager.lookup_prefix(keys))
            .expect("valid");
        assert_eq!((hits.ready, hits.known), (hole, hole));
        let mut found = Vec::new();
        keys.with(|keys| manager.lookup_each(keys, &mut found))
            .expect("valid");
        let misses: Vec<usize> = (0..900)
            .filter(|&i| found[i] == LookupResult::Miss)
            .collect();
        assert_eq!(misses, [hole]);
    }
}

#[test]
fn lookups_change_nothing_at_all() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(4).policy(policy).events(true));
        put(&mut manager, "a b c d");
        put(&mut manager, "e");
        manager.take_events();
        let before = look(&manager);
        for _ in 0..50 {
            seen(&manager, "a b c d e f");
            let keys = Chunks::named("b c d a e");
            let reader = manager.reader();
            keys.with(|keys| manager.lookup_prefix(keys))
                .expect("valid");
            keys.with(|keys| reader.lookup_prefix(keys)).expect("valid");
            keys.with(|keys| reader.lookup_each(keys, &mut Vec::new()))
                .expect("valid");
            assert_eq!(reader.lookup(b"b"), Ok(LookupResult::Hit));
        }
        assert_eq!(look(&manager), before);
        assert_eq!(manager.take_events(), kvferry::Events::default());
    }
}
