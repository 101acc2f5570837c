//! `rebuild`: a new engine over the storage of one that is gone.

use kvferry::{
    Config, ConfigError, KeyHashing, LookupResult, Manager, PolicyKind, Storage, Unpinned,
};

use crate::common::{
    Chunks, Numbers, engine, lists, look, numbered_key, offer_named, pin, put, reader_pin, seen,
    touch,
};

fn config(policy: PolicyKind, capacity: usize) -> Config {
    Config::new(capacity).policy(policy).events(true)
}

fn rebuild(manager: Manager, config: &Config) -> Manager {
    let storage = manager.into_storage().expect("no reader is left");
    let manager = Manager::rebuild(config, storage).expect("the same configuration");
    look(&manager);
    manager
}

#[test]
fn ready_chunks_are_there_again_in_their_order_and_lists() {
    for policy in PolicyKind::ALL {
        let config = config(policy, 6);
        let mut manager = engine(config.clone());
        put(&mut manager, "a b c d e");
        touch(&mut manager, "d b");
        let slots = ["a", "b", "c", "d", "e"].map(|key| manager.debug_slot(key.as_bytes()));
        let before = lists(&manager);
        let mut manager = rebuild(manager, &config);
        assert_eq!(lists(&manager), before);
        assert_eq!(seen(&manager, "a b c d e f"), "hhhhh.");
        let after = ["a", "b", "c", "d", "e"].map(|key| manager.debug_slot(key.as_bytes()));
        assert_eq!(after, slots, "the bytes are where they were");
        assert_eq!(put(&mut manager, "x y z"), "a c");
    }
}

#[test]
fn what_was_in_flight_is_free_and_what_was_held_is_not_held() {
    for policy in PolicyKind::ALL {
        let config = config(policy, 8);
        let mut manager = engine(config.clone());
        put(&mut manager, "a b c d");
        let load = pin(&mut manager, "a b");
        let reader = manager.reader();
        let held = reader_pin(&reader, "c");
        let (pending, ..) = offer_named(&mut manager, "p", None).expect("it fits");
        let (cancelled, ..) = offer_named(&mut manager, "q", None).expect("it fits");
        manager.cancel_store(&cancelled);
        Chunks::named("a")
            .with(|keys| manager.drop_keys(keys))
            .expect("valid");
        let access = manager.begin_request(0, 0);
        drop(reader);

        let mut manager = rebuild(manager, &config);
        let stats = look(&manager).stats;
        assert_eq!((stats.ready, stats.free, stats.evictable), (4, 4, 4));
        assert_eq!(seen(&manager, "a b c d p q"), "hhhh..");
        // Everything of before is another engine's.
        assert_eq!(manager.complete_load(load).late, 2);
        assert_eq!(manager.complete_store(pending, true).late, 1);
        assert_eq!(manager.complete_store(cancelled, true).late, 1);
        assert_eq!(manager.reader().unpin(held), Unpinned::Stale);
        assert!(manager.finish_request(access, None).is_err());
        assert_eq!(look(&manager).stats.ready, 4);
        assert_eq!(put(&mut manager, "1 2 3 4 5").split(' ').count(), 1);
    }
}

#[test]
fn a_chunk_that_a_request_only_offered_keeps_its_place() {
    let config = config(PolicyKind::Arc, 2).group_bytes(0);
    let mut manager = engine(config.clone());
    put(&mut manager, "p q");
    let held = pin(&mut manager, "p q");
    let mut access = manager.begin_request(0, 0);
    assert!(offer_named(&mut manager, "a", Some(&mut access)).is_none());
    manager.complete_load(held);
    put(&mut manager, "a b");
    manager
        .finish_request(access, None)
        .expect("its own engine");
    let before = lists(&manager);
    assert_eq!(before.0, "a b");
    assert_eq!(lists(&rebuild(manager, &config)), before);
}

#[test]
fn an_engine_is_rebuilt_again_and_again_without_loss_through_any_history() {
    for policy in PolicyKind::ALL {
        let config = config(policy, 40);
        let mut numbers = Numbers(31);
        let mut manager = engine(config.clone());
        for _ in 0..60 {
            for _ in 0..30 {
                let start = numbers.below(100) as u64;
                let keys = Chunks::numbered(start..start + 1 + numbers.below(9) as u64);
                let mut access = manager.begin_request(0, 0);
                let outcome = crate::common::offer(&mut manager, &keys, Some(&mut access));
                if let Some(output) = outcome.stored() {
                    manager.complete_store(output.ticket, numbers.below(4) > 0);
                }
                if numbers.below(3) == 0 {
                    keys.with(|keys| manager.touch(keys)).expect("valid");
                }
                if numbers.below(2) == 0 {
                    manager
                        .finish_request(access, None)
                        .expect("its own engine");
                }
            }
            let before = lists(&manager);
            manager = rebuild(manager, &config);
            assert_eq!(lists(&manager), before);
        }
    }
}

#[test]
fn what_was_learned_beyond_the_order_starts_anew() {
    let config = config(PolicyKind::Arc, 2).store_threshold(2);
    let mut manager = engine(config.clone());
    for keys in ["a b", "a b", "c d", "c d"] {
        if let Some((ticket, ..)) = offer_named(&mut manager, keys, None) {
            manager.complete_store(ticket, true);
        }
    }
    touch(&mut manager, "a");
    let _none = offer_named(&mut manager, "x", None).expect("below the threshold");
    let mut manager = rebuild(manager, &config);
    let stats = look(&manager).stats;
    assert_eq!((stats.ghosts, stats.epoch, stats.stored), (0, 0, 0));
    assert_eq!(stats.target_t1_size, Some(0.0));
    assert_eq!(manager.take_events(), kvferry::Events::default());
    let (_, stored, _) = offer_named(&mut manager, "x", None).expect("below the threshold");
    assert_eq!(stored, "");
}

#[test]
fn another_policy_takes_the_order_over() {
    let lru = config(PolicyKind::Lru, 4);
    let arc = config(PolicyKind::Arc, 4);
    let mut manager = engine(arc.clone());
    put(&mut manager, "a b c d");
    touch(&mut manager, "b");
    assert_eq!(lists(&manager), ("a c d".into(), "b".into()));
    let manager = rebuild(manager, &lru);
    assert_eq!(lists(&manager), ("a c d b".into(), String::new()));
    let manager = rebuild(manager, &arc);
    assert_eq!(lists(&manager), ("a c d b".into(), String::new()));
}

#[test]
fn the_hash_of_the_storage_is_kept_whatever_the_configuration_says() {
    let old = Config::new(50).hashing(KeyHashing::Seeded(1));
    let mut manager = engine(old.clone());
    let keys = Chunks::numbered(0..50);
    crate::common::store(&mut manager, &keys);
    let manager = rebuild(manager, &old.hashing(KeyHashing::Seeded(2)));
    let mut found = Vec::new();
    keys.with(|keys| manager.lookup_each(keys, &mut found))
        .expect("valid");
    assert!(found.iter().all(|result| *result == LookupResult::Hit));
}

#[test]
fn a_storage_of_another_size_is_refused() {
    let old = Config::new(4);
    for other in [Config::new(5), Config::new(3), Config::new(4).key_bytes(40)] {
        let storage = Storage::new(&old).expect("it fits memory");
        let refused = Manager::rebuild(&other, storage).expect_err("another size");
        let (capacity, key_bytes) = (4, 36);
        assert_eq!(
            refused,
            ConfigError::Storage {
                capacity,
                key_bytes
            }
        );
    }
    let storage = Storage::new(&old).expect("it fits memory");
    assert!(Manager::rebuild(&Config::new(0), storage).is_err());
    let storage = Storage::new(&old).expect("it fits memory");
    let manager = Manager::rebuild(&old, storage).expect("an empty storage");
    assert_eq!(look(&manager).stats.free, 4);
}

#[test]
fn a_storage_is_not_given_back_while_a_reader_has_it() {
    let mut manager = engine(Config::new(4));
    crate::common::store(&mut manager, &Chunks(vec![numbered_key(1, 0)]));
    let reader = manager.reader();
    assert!(manager.into_storage().is_none());
    assert_eq!(reader.lookup(&numbered_key(1, 0)), Ok(LookupResult::Hit));
}

#[test]
fn slots_are_used_from_the_lowest_on_after_a_rebuild() {
    let config = Config::new(6);
    let mut manager = engine(config.clone());
    put(&mut manager, "a b c d e f");
    Chunks::named("a c e")
        .with(|keys| manager.drop_keys(keys))
        .expect("valid");
    let mut manager = rebuild(manager, &config);
    let (ticket, ..) = offer_named(&mut manager, "x y z", None).expect("it fits");
    assert_eq!(ticket.slots(), [0, 2, 4]);
}
