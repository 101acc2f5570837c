//! `take_events`: what changed, in causal order, bounded.

use std::collections::BTreeSet;

use kvferry::{Config, EventKind, Events, Manager, PolicyKind, ResetMode};

use crate::common::{
    Chunks, Numbers, begin_store, engine, look, names, offer_named, owned, pin, put, reader_pin,
};

fn both(capacity: usize, max_keys: usize) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| {
        let config = Config::new(capacity).policy(policy);
        engine(config.events(true).max_event_keys(max_keys))
    })
}

fn told(events: &Events) -> String {
    let event = |event: &kvferry::Event| {
        let kind = match event.kind {
            EventKind::Stored => "+",
            EventKind::Removed => "-",
            EventKind::Cleared => "0",
            _ => "?",
        };
        format!("{kind}{}", names(&owned(&event.keys)))
    };
    events
        .events
        .iter()
        .map(event)
        .collect::<Vec<_>>()
        .join("; ")
}

#[test]
fn events_are_told_in_the_order_in_which_things_happened_one_a_call() {
    for mut manager in both(3, 100) {
        let (ticket, ..) = offer_named(&mut manager, "a b a c", None).expect("it fits");
        assert_eq!(told(&manager.take_events()), "");
        manager.complete_store(ticket, true);
        put(&mut manager, "d e");
        let load = pin(&mut manager, "c");
        Chunks::named("e c")
            .with(|keys| manager.drop_keys(keys))
            .expect("valid");
        manager.complete_load(load);
        let (failed, ..) = offer_named(&mut manager, "f g h", None).expect("it fits");
        manager.complete_store(failed, false);
        manager.reset_cache(ResetMode::Drain);
        put(&mut manager, "a");
        assert_eq!(
            told(&manager.take_events()),
            "+a b c; -a b; +d e; -e; -c; -d; 0; +a"
        );
        assert_eq!(manager.take_events(), Events::default());
    }
}

#[test]
fn a_key_in_a_completion_by_key_is_told_once_and_only_if_it_was_pending() {
    for mut manager in both(4, 100) {
        put(&mut manager, "a");
        let (_ticket, ..) = offer_named(&mut manager, "b c", None).expect("it fits");
        manager.take_events();
        let keys = Chunks::named("a x c c b");
        keys.with(|keys| manager.complete_store_keys(keys, true))
            .expect("valid");
        keys.with(|keys| manager.complete_store_keys(keys, true))
            .expect("valid");
        assert_eq!(told(&manager.take_events()), "+c b");
    }
}

#[test]
fn a_mirror_that_follows_the_events_knows_what_is_there() {
    for mut manager in both(20, 1 << 20) {
        let mut numbers = Numbers(4);
        let mut mirror = BTreeSet::new();
        let reader = manager.reader();
        let mut pins = Vec::new();
        for step in 0..3000u64 {
            let start = numbers.below(60) as u64;
            let keys = Chunks::numbered(start..start + 1 + numbers.below(6) as u64);
            match numbers.below(8) {
                0 => drop(keys.with(|keys| manager.drop_keys(keys))),
                1 => keys.with(|keys| manager.touch(keys)).expect("valid"),
                2 => {
                    if let Ok(kvferry::TryPin::Pinned(pin)) = reader.try_pin(&keys.0[0]) {
                        pins.push(pin);
                    }
                }
                3 if !pins.is_empty() => drop(reader.unpin(pins.remove(0))),
                4 if step % 50 == 0 => drop(manager.reset_cache(ResetMode::Drain)),
                _ => {
                    let success = numbers.below(5) > 0;
                    if let Some(output) = crate::common::offer(&mut manager, &keys, None).stored() {
                        manager.complete_store(output.ticket, success);
                    }
                }
            }
            for event in manager.take_events().events {
                for key in owned(&event.keys) {
                    let changed = match event.kind {
                        EventKind::Stored => mirror.insert(key),
                        _ => mirror.remove(&key),
                    };
                    assert!(changed, "stored twice, or removed before it was stored");
                }
                if event.kind == EventKind::Cleared {
                    mirror.clear();
                }
            }
            let lists = manager.debug_lists();
            let there: BTreeSet<_> = lists.t1.into_iter().chain(lists.t2).collect();
            assert_eq!(mirror, there);
        }
    }
}

#[test]
fn events_beyond_the_bound_are_counted_and_leave_no_gap_in_the_middle() {
    for mut manager in both(4, 5) {
        put(&mut manager, "a b c");
        put(&mut manager, "d");
        // Six keys do not fit; nothing that comes later is told although it would.
        put(&mut manager, "e f");
        put(&mut manager, "g");
        let events = manager.take_events();
        assert_eq!(told(&events), "+a b c; +d");
        assert_eq!(events.lost, 4);
        assert_eq!(manager.stats().events_lost, 4);
        put(&mut manager, "h");
        let events = manager.take_events();
        assert_eq!((told(&events).as_str(), events.lost), ("-d; +h", 0));
    }
}

#[test]
fn a_reset_makes_up_for_what_was_lost() {
    for mut manager in both(4, 4) {
        put(&mut manager, "a b c d");
        put(&mut manager, "e");
        manager.reset_cache(ResetMode::Fenced);
        put(&mut manager, "f");
        let events = manager.take_events();
        assert_eq!((told(&events).as_str(), events.lost), ("0; +f", 0));
    }
}

#[test]
fn resets_alone_do_not_make_the_queue_grow() {
    for bound in [0, 1, 7] {
        for mut manager in both(4, bound) {
            for _ in 0..10_000 {
                manager.reset_cache(ResetMode::Fenced);
            }
            let events = manager.take_events();
            assert!(
                events.events.len() <= bound.max(1),
                "{}",
                events.events.len()
            );
            assert!(
                events
                    .events
                    .iter()
                    .all(|event| event.kind == EventKind::Cleared)
            );
            let told = events.events.len() as u64;
            assert_eq!(
                (events.lost, manager.stats().events_lost),
                (0, 10_000 - told)
            );
        }
    }
}

#[test]
fn a_bound_of_nothing_loses_everything_and_says_so() {
    for mut manager in both(2, 0) {
        put(&mut manager, "a");
        assert_eq!(put(&mut manager, "b c"), "a");
        let events = manager.take_events();
        assert_eq!((events.events.len(), events.lost), (0, 3));
    }
}

#[test]
fn without_events_none_are_kept() {
    let mut manager = engine(Config::new(2));
    put(&mut manager, "a b");
    put(&mut manager, "c");
    manager.reset_cache(ResetMode::Fenced);
    assert_eq!(manager.take_events(), Events::default());
    assert_eq!(look(&manager).stats.events_lost, 0);
}

#[test]
fn a_chunk_that_a_reader_lets_go_is_told_before_what_is_stored_in_its_place() {
    for mut manager in both(1, 100) {
        put(&mut manager, "a");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        Chunks::named("a")
            .with(|keys| manager.drop_keys(keys))
            .expect("valid");
        let _ = reader.unpin(held);
        let output = begin_store(&mut manager, &Chunks::named("b"));
        assert!(output.evicted.is_empty(), "it was dropped, not evicted");
        manager.complete_store(output.ticket, true);
        assert_eq!(told(&manager.take_events()), "+a; -a; +b");
    }
}
