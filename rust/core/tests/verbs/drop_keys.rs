//! `drop_keys`: these will not come back.

use kvferry::{Config, EventKind, Manager, PolicyKind, ResetMode};

use crate::common::{
    Chunks, engine, lists, look, names, offer_named, owned, pin, put, reader_pin, seen, touch,
};

fn both(capacity: usize) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| engine(Config::new(capacity).policy(policy).events(true)))
}

fn drop_keys(manager: &mut Manager, keys: &str) -> usize {
    let dropped = Chunks::named(keys).with(|keys| manager.drop_keys(keys));
    dropped.expect("valid keys")
}

fn removed(manager: &mut Manager) -> String {
    let events = manager.take_events().events;
    let removed = events
        .iter()
        .filter(|event| event.kind == EventKind::Removed);
    names(
        &removed
            .flat_map(|event| owned(&event.keys))
            .collect::<Vec<_>>(),
    )
}

#[test]
fn chunks_that_nobody_holds_leave_at_once_without_a_ghost() {
    for mut manager in both(4) {
        put(&mut manager, "a b c");
        touch(&mut manager, "b");
        assert_eq!(drop_keys(&mut manager, "b x a b"), 2);
        assert_eq!(seen(&manager, "a b c"), "..h");
        assert_eq!(removed(&mut manager), "b a");
        let seen = look(&manager);
        assert_eq!(
            (seen.stats.dropped, seen.stats.evicted, seen.stats.free),
            (2, 0, 3)
        );
        assert!(seen.lists.b1.is_empty() && seen.lists.b2.is_empty());
    }
}

#[test]
fn a_chunk_that_is_loaded_leaves_with_its_last_pin() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let first = pin(&mut manager, "a a");
        assert_eq!(drop_keys(&mut manager, "a"), 0);
        assert_eq!(seen(&manager, "a"), "h", "it can still be loaded meanwhile");
        let second = pin(&mut manager, "a");
        manager.complete_load(first);
        assert_eq!(seen(&manager, "a"), "h");
        assert_eq!(removed(&mut manager), "");
        manager.complete_load(second);
        assert_eq!(seen(&manager, "a"), ".");
        assert_eq!(removed(&mut manager), "a");
        assert_eq!(look(&manager).stats.dropped, 1);
    }
}

#[test]
fn a_chunk_that_is_loaded_leaves_with_its_last_pin_by_key_too() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let _load = pin(&mut manager, "a b a");
        drop_keys(&mut manager, "a b");
        let done = Chunks::named("a b a").with(|keys| manager.complete_load_keys(keys));
        assert_eq!(done, Ok(()));
        assert_eq!(removed(&mut manager), "b a");
        assert_eq!(look(&manager).stats.free, 2);
    }
}

#[test]
fn a_chunk_that_a_reader_holds_leaves_when_the_owner_learns_that_it_does_not() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        assert_eq!(drop_keys(&mut manager, "a b"), 1);
        assert!(offer_named(&mut manager, "x y", None).is_none());
        let again = reader_pin(&reader, "a");
        let _ = reader.unpin(held);
        manager.advance_to(1);
        assert_eq!(seen(&manager, "a b"), "h.");
        let _ = reader.unpin(again);
        assert_eq!(removed(&mut manager), "b");
        manager.advance_to(2);
        assert_eq!(seen(&manager, "a b"), "..");
        assert_eq!(removed(&mut manager), "a");
        assert_eq!(look(&manager).stats.free, 2);
    }
}

#[test]
fn a_chunk_that_owner_and_reader_hold_leaves_with_the_last_of_them() {
    for reader_first in [true, false] {
        for mut manager in both(1) {
            put(&mut manager, "a");
            let reader = manager.reader();
            let (load, held) = (pin(&mut manager, "a"), reader_pin(&reader, "a"));
            drop_keys(&mut manager, "a");
            if reader_first {
                let _ = reader.unpin(held);
                manager.advance_to(1);
                assert_eq!(seen(&manager, "a"), "h");
                manager.complete_load(load);
            } else {
                manager.complete_load(load);
                manager.advance_to(1);
                assert_eq!(seen(&manager, "a"), "h");
                let _ = reader.unpin(held);
                manager.advance_to(2);
            }
            assert_eq!(seen(&manager, "a"), ".");
            assert_eq!(look(&manager).stats.free, 1);
        }
    }
}

#[test]
fn a_chunk_that_is_being_stored_leaves_when_its_store_ends_without_having_been_there() {
    for success in [true, false] {
        for mut manager in both(2) {
            let (ticket, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
            assert_eq!(drop_keys(&mut manager, "a a"), 0);
            assert_eq!(seen(&manager, "a b"), "pp");
            manager.complete_store(ticket, success);
            assert_eq!(seen(&manager, "a b"), if success { ".h" } else { ".." });
            let events = manager.take_events().events;
            let told: Vec<_> = events
                .iter()
                .map(|e| (e.kind, names(&owned(&e.keys))))
                .collect();
            let expected = success.then(|| (EventKind::Stored, "b".to_owned()));
            assert_eq!(told, Vec::from_iter(expected));
            let stats = look(&manager).stats;
            let [dropped, failed, stored] = if success { [1, 0, 1] } else { [0, 2, 0] };
            assert_eq!(
                [stats.dropped, stats.failed, stats.stored],
                [dropped, failed, stored]
            );
        }
    }
}

#[test]
fn offering_a_key_again_takes_the_mark_back_even_if_the_offer_is_declined() {
    for mut manager in both(3) {
        put(&mut manager, "a b");
        let (ticket, ..) = offer_named(&mut manager, "c", None).expect("it fits");
        let load = pin(&mut manager, "a b");
        drop_keys(&mut manager, "a b c");
        assert!(offer_named(&mut manager, "a c", None).is_some());
        assert!(offer_named(&mut manager, "a b x", None).is_none());
        manager.complete_load(load);
        manager.complete_store(ticket, true);
        assert_eq!(seen(&manager, "a b c"), "hhh");
        let stats = look(&manager).stats;
        assert_eq!((stats.dropped, stats.evictable), (0, 3));
        assert_eq!(put(&mut manager, "x y z").split(' ').count(), 3);
    }
}

#[test]
fn a_chunk_that_is_offered_again_while_a_reader_holds_it_stays_and_can_leave_later() {
    for mut manager in both(1) {
        put(&mut manager, "a");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        drop_keys(&mut manager, "a");
        assert!(offer_named(&mut manager, "a", None).is_some());
        assert!(offer_named(&mut manager, "b", None).is_none());
        let _ = reader.unpin(held);
        manager.advance_to(1);
        assert_eq!(seen(&manager, "a"), "h");
        assert_eq!(look(&manager).stats.evictable, 1);
        assert_eq!(put(&mut manager, "b"), "a");
    }
}

#[test]
fn a_mark_does_not_outlive_its_chunk() {
    for mut manager in both(1) {
        let (ticket, ..) = offer_named(&mut manager, "a", None).expect("it fits");
        drop_keys(&mut manager, "a");
        manager.cancel_store(&ticket);
        manager.complete_store(ticket, true);
        put(&mut manager, "a");
        assert_eq!(seen(&manager, "a"), "h");
        let load = pin(&mut manager, "a");
        drop_keys(&mut manager, "a");
        for mode in [ResetMode::Drain, ResetMode::Fenced] {
            manager.reset_cache(mode);
            look(&manager);
        }
        assert_eq!(manager.complete_load(load).late, 1);
        put(&mut manager, "b");
        let load = pin(&mut manager, "b");
        manager.complete_load(load);
        assert_eq!(seen(&manager, "a b"), ".h");
        assert_eq!(lists(&manager).0, "b");
    }
}

#[test]
fn dropping_what_is_not_there_is_nothing() {
    for mut manager in both(2) {
        put(&mut manager, "a");
        let before = look(&manager);
        assert_eq!(drop_keys(&mut manager, ""), 0);
        assert_eq!(drop_keys(&mut manager, "x y"), 0);
        assert_eq!(look(&manager), before);
        manager.take_events();
        drop_keys(&mut manager, "z");
        assert_eq!(manager.take_events(), kvferry::Events::default());
    }
}
