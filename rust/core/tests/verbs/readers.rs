//! Readers: what they see and hold beside the owner, in one thread, where each step is known.

use kvferry::{
    Config, LookupResult, Manager, Pin, PolicyKind, Reader, ResetMode, TryPin, Unpinned,
};

use crate::common::{Chunks, engine, lists, look, offer_named, pin, put, reader_pin, seen, touch};

fn both(capacity: usize) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| engine(Config::new(capacity).policy(policy)))
}

fn reader_touch(reader: &Reader, keys: &str) {
    let done = Chunks::named(keys).with(|keys| reader.touch(keys));
    done.expect("valid keys");
}

#[test]
fn a_reader_pins_what_is_ready_and_nothing_else() {
    for mut manager in both(4) {
        put(&mut manager, "a");
        let (ticket, ..) = offer_named(&mut manager, "b", None).expect("it fits");
        let reader = manager.reader();
        assert_eq!(reader.try_pin(b"x"), Ok(TryPin::Miss));
        assert_eq!(reader.try_pin(b"b"), Ok(TryPin::Pending));
        let first = reader_pin(&reader, "a");
        let second = reader_pin(&reader.clone(), "a");
        assert_eq!(Some(first.slot()), manager.debug_slot(b"a"));
        assert_eq!(
            (first.slot(), first.generation()),
            (second.slot(), second.generation())
        );
        manager.complete_store(ticket, true);
        let third = reader_pin(&reader, "b");
        for pin in [first, second, third] {
            assert_eq!(reader.unpin(pin), Unpinned::Released);
        }
        look(&manager);
    }
}

#[test]
fn pins_of_readers_change_no_order_and_no_number_of_the_owner() {
    for mut manager in both(3) {
        put(&mut manager, "a b c");
        let before = look(&manager);
        let reader = manager.reader();
        let pins = ["a", "b", "a"].map(|key| reader_pin(&reader, key));
        assert_eq!(look(&manager), before);
        for pin in pins {
            let _ = reader.unpin(pin);
        }
        assert_eq!(look(&manager), before);
    }
}

#[test]
fn a_pin_of_another_engine_is_stale_and_releases_nothing() {
    for (mut manager, mut other) in both(1).into_iter().zip(both(1)) {
        put(&mut manager, "a");
        put(&mut other, "a");
        let (mine, theirs) = (manager.reader(), other.reader());
        let (held, foreign) = (reader_pin(&mine, "a"), reader_pin(&theirs, "a"));
        assert_eq!(mine.unpin(foreign), Unpinned::Stale);
        assert!(offer_named(&mut manager, "b", None).is_none());
        assert_eq!(mine.unpin(held), Unpinned::Released);
        assert_eq!(put(&mut manager, "b"), "a");
        assert_eq!(manager.stats().unpins_stale, 1);
        assert!(
            offer_named(&mut other, "b", None).is_none(),
            "theirs is held for good"
        );
    }
}

#[test]
fn a_pin_that_is_dropped_holds_its_chunk_until_a_reset() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        drop(reader_pin(&manager.reader(), "a"));
        assert_eq!(put(&mut manager, "c"), "b");
        assert_eq!(seen(&manager, "a"), "h");
        assert_eq!(manager.reset_cache(ResetMode::Drain), 1);
        assert_eq!(manager.reset_cache(ResetMode::Fenced), 0);
        assert_eq!(look(&manager).stats.free, 2);
    }
}

#[test]
fn handles_outlive_the_manager() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        drop(manager);
        assert_eq!(reader.lookup(b"a"), Ok(LookupResult::Hit));
        let keys = Chunks::named("a b x");
        assert_eq!(
            keys.with(|keys| reader.lookup_prefix(keys))
                .map(|h| h.ready),
            Ok(2)
        );
        let again = reader_pin(&reader, "b");
        assert_eq!(reader.unpin(again), Unpinned::Released);
        assert_eq!(reader.unpin(held), Unpinned::Released);
        reader_touch(&reader, "a b");
    }
}

#[test]
fn touches_of_readers_are_applied_by_the_next_verb_that_changes_an_order() {
    let verbs: [fn(&mut Manager); 6] = [
        |manager| touch(manager, ""),
        |manager| drop(offer_named(manager, "", None)),
        |manager| drop(Chunks::named("").with(|keys| manager.drop_keys(keys))),
        |manager| {
            let access = manager.begin_request(0, 0);
            manager
                .finish_request(access, None)
                .expect("its own engine");
        },
        |manager| manager.advance_to(0),
        |manager| assert_eq!(manager.expire_pending(0), 0),
    ];
    for verb in verbs {
        for mut manager in both(4) {
            put(&mut manager, "a b c");
            reader_touch(&manager.reader(), "a b x");
            assert_eq!(lists(&manager).0, "a b c");
            verb(&mut manager);
            let order = lists(&manager);
            assert_eq!(format!("{} {}", order.0, order.1).trim(), "c b a");
            look(&manager);
        }
    }
}

#[test]
fn a_touch_is_left_out_if_its_chunk_has_left_even_if_the_key_is_back() {
    for mut manager in both(4) {
        put(&mut manager, "x y");
        let (failed, ..) = offer_named(&mut manager, "a", None).expect("it fits");
        reader_touch(&manager.reader(), "a");
        manager.complete_store(failed, false);
        put(&mut manager, "a b");
        assert_eq!(lists(&manager), ("x y a b".into(), String::new()));
        // By a reset while it is in the log.
        reader_touch(&manager.reader(), "x y");
        manager.reset_cache(ResetMode::Fenced);
        put(&mut manager, "x y a");
        assert_eq!(lists(&manager), ("x y a".into(), String::new()));
    }
}

#[test]
fn a_full_touch_log_drops_touches_and_counts_them() {
    for policy in PolicyKind::ALL {
        let config = Config::new(8).policy(policy).touch_log_capacity(3);
        let mut manager = engine(config);
        put(&mut manager, "a b c d e f");
        let reader = manager.reader();
        // Tail first: the log holds e, d, c.
        reader_touch(&reader, "a b c d e");
        assert_eq!(reader.stats().touches_dropped, 2);
        reader_touch(&reader, "x y z");
        assert_eq!(
            reader.stats().touches_dropped,
            2,
            "what is not there is not logged"
        );
        manager.advance_to(0);
        let order = lists(&manager);
        assert_eq!(
            format!("{} {}", order.0, order.1),
            match policy {
                PolicyKind::Arc => "a b f e d c",
                _ => "a b f e d c ",
            }
        );
        reader_touch(&reader, "a");
        assert_eq!(manager.stats().touches_dropped, 2);
    }
}

#[test]
fn a_touch_of_a_reader_leaves_a_pending_chunk_in_t1() {
    let mut manager = engine(Config::new(4).policy(PolicyKind::Arc));
    put(&mut manager, "a");
    let (ticket, ..) = offer_named(&mut manager, "b", None).expect("it fits");
    put(&mut manager, "c");
    reader_touch(&manager.reader(), "b a");
    manager.advance_to(0);
    assert_eq!(lists(&manager), ("c b".into(), "a".into()));
    manager.complete_store(ticket, true);
}

#[test]
fn a_chunk_that_two_readers_hold_leaves_after_the_second() {
    for mut manager in both(1) {
        put(&mut manager, "a");
        let reader = manager.reader();
        let mut pins: Vec<Pin> = (0..3).map(|_| reader_pin(&reader, "a")).collect();
        while let Some(pin) = pins.pop() {
            assert!(offer_named(&mut manager, "b", None).is_none());
            assert_eq!(reader.unpin(pin), Unpinned::Released);
        }
        assert_eq!(put(&mut manager, "b"), "a");
    }
}

#[test]
fn a_chunk_that_was_met_while_a_reader_held_it_can_be_loaded_pinned_and_evicted_again() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        assert_eq!(put(&mut manager, "c"), "b");
        let load = pin(&mut manager, "a");
        let _ = reader.unpin(held);
        assert!(
            offer_named(&mut manager, "x y", None).is_none(),
            "the load holds it"
        );
        manager.complete_load(load);
        let held = reader_pin(&reader, "a");
        assert!(offer_named(&mut manager, "x y", None).is_none());
        let _ = reader.unpin(held);
        let held = reader_pin(&reader, "c");
        let _ = reader.unpin(held);
        assert_eq!(put(&mut manager, "x y"), "a c");
        look(&manager);
    }
}

#[test]
fn a_notice_of_a_chunk_that_the_owner_holds_again_does_not_make_it_a_victim() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        assert_eq!(put(&mut manager, "c"), "b");
        // The last pin of a chunk that was met goes, and a load takes it before the owner looks.
        let _ = reader.unpin(held);
        let load = pin(&mut manager, "a");
        manager.advance_to(1);
        assert_eq!(look(&manager).stats.evictable, 1);
        assert!(offer_named(&mut manager, "x y", None).is_none());
        manager.complete_load(load);
        assert_eq!(put(&mut manager, "x y"), "a c");
    }
}

#[test]
fn a_quarter_of_a_million_pins_of_readers_come_and_go_without_a_trace() {
    let n = 250_000;
    let mut manager = engine(Config::new(n + 16));
    let all = Chunks::numbered(0..n as u64 + 16);
    crate::common::store(&mut manager, &all);
    let reader = manager.reader();
    let pins: Vec<Pin> = all.0[..n]
        .iter()
        .map(|key| match reader.try_pin(key) {
            Ok(TryPin::Pinned(pin)) => pin,
            other => panic!("{other:?}"),
        })
        .collect();
    let some = |start: u64| Chunks::numbered(start..start + 16);
    let evicted = crate::common::store(&mut manager, &some(1_000_000));
    assert_eq!(evicted, all.0[n..]);
    for pin in pins {
        assert_eq!(reader.unpin(pin), Unpinned::Released);
    }
    let evicted = crate::common::store(&mut manager, &some(2_000_000));
    assert_eq!(evicted, all.0[..16], "the oldest, as if nobody had held it");
    let stats = look(&manager).stats;
    assert_eq!(stats.evictable, stats.ready);
}
