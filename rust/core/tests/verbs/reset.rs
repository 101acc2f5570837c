//! `reset_cache`: a new epoch, in which nothing of before is visible.

use kvferry::{Config, EventKind, LookupResult, Manager, PolicyKind, ResetMode, TryPin, Unpinned};

use crate::common::{Chunks, Seen, engine, look, offer_named, pin, put, reader_pin, seen, touch};

const MODES: [ResetMode; 2] = [ResetMode::Drain, ResetMode::Fenced];

fn both(capacity: usize) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| engine(Config::new(capacity).policy(policy).events(true)))
}

fn everything() -> impl Iterator<Item = (ResetMode, Manager)> {
    let managers = || both(8).into_iter();
    MODES
        .into_iter()
        .flat_map(move |mode| managers().map(move |manager| (mode, manager)))
}

#[test]
fn after_a_reset_the_engine_is_as_new_but_for_what_is_counted() {
    for (mode, mut manager) in everything() {
        put(&mut manager, "a b c d e f g h");
        put(&mut manager, "i j k l");
        touch(&mut manager, "a b i");
        assert_eq!(manager.reset_cache(mode), 0);
        let Seen { lists, stats } = look(&manager);
        assert_eq!(lists, kvferry::DebugLists::default());
        assert_eq!((stats.free, stats.ghosts, stats.epoch), (8, 0, 1));
        assert_eq!((stats.stored, stats.evicted), (12, 4));
        assert!(stats.target_t1_size.is_none_or(|target| target == 0.0));
        assert_eq!(seen(&manager, "a b i j"), "....");
        let (ticket, ..) = offer_named(&mut manager, "a b c", None).expect("it fits");
        assert_eq!(ticket.slots(), [0, 1, 2], "the lowest slots first");
    }
}

#[test]
fn a_draining_reset_waits_for_stores_loads_and_readers_each_by_itself() {
    for mut manager in both(8) {
        put(&mut manager, "free load both reader dropped");
        let (store, ..) = offer_named(&mut manager, "pending", None).expect("it fits");
        let (cancelled, ..) = offer_named(&mut manager, "cancelled", None).expect("it fits");
        manager.cancel_store(&cancelled);
        let reader = manager.reader();
        let load = pin(&mut manager, "load both load");
        let held = ["both", "reader", "dropped"].map(|key| reader_pin(&reader, key));
        let keys = Chunks::named("dropped");
        assert_eq!(keys.with(|keys| manager.drop_keys(keys)), Ok(0));

        assert_eq!(manager.reset_cache(ResetMode::Drain), 6);
        let all = "free load both reader dropped pending cancelled";
        assert_eq!(seen(&manager, all), ".......");
        assert!(matches!(reader.try_pin(b"reader"), Ok(TryPin::Miss)));
        let draining = |manager: &mut Manager| {
            manager.advance_to(0);
            let stats = look(manager).stats;
            assert_eq!((stats.pinned, stats.pending, stats.ready), (0, 0, 0));
            assert_eq!(stats.free + stats.draining, 8);
            stats.draining
        };
        assert_eq!(draining(&mut manager), 6);
        // What is free can be used; what drains cannot.
        assert!(offer_named(&mut manager, "1 2 3", None).is_none());
        put(&mut manager, "1 2");
        assert_eq!(manager.reset_cache(ResetMode::Drain), 6);

        let done = manager.complete_store(store, true);
        assert_eq!((done.applied, done.late), (1, 0));
        assert_eq!(draining(&mut manager), 5);
        let done = manager.complete_load(load);
        assert_eq!((done.applied, done.late), (3, 0));
        assert_eq!(draining(&mut manager), 4);
        let mut left = 4;
        for pin in held {
            assert_eq!(reader.unpin(pin), Unpinned::Released);
            left -= 1;
            assert_eq!(draining(&mut manager), left);
        }
        assert_eq!(left, 1);
        let done = manager.complete_store(cancelled, false);
        assert_eq!((done.applied, done.late), (1, 0));
        assert_eq!(draining(&mut manager), 0);
        let stats = look(&manager).stats;
        assert_eq!((stats.late, stats.unpins_stale), (0, 0));
        assert_eq!(seen(&manager, all), ".......");
        let names: Vec<String> = (0..8).map(|n| n.to_string()).collect();
        put(&mut manager, &names.join(" "));
    }
}

#[test]
fn a_fenced_reset_takes_everything_back_at_once_and_what_still_comes_is_late() {
    for mut manager in both(6) {
        put(&mut manager, "load both reader");
        let (store, ..) = offer_named(&mut manager, "pending", None).expect("it fits");
        let (cancelled, ..) = offer_named(&mut manager, "cancelled", None).expect("it fits");
        manager.cancel_store(&cancelled);
        let reader = manager.reader();
        let load = pin(&mut manager, "load both");
        let held = ["both", "reader"].map(|key| reader_pin(&reader, key));

        assert_eq!(manager.reset_cache(ResetMode::Fenced), 0);
        assert_eq!(look(&manager).stats.free, 6);
        // Every slot belongs to somebody else now.
        put(&mut manager, "1 2 3 4 5 6");
        let before = look(&manager);
        assert_eq!(manager.complete_store(store, true).late, 1);
        assert_eq!(manager.complete_store(cancelled, true).late, 1);
        assert_eq!(manager.complete_load(load).late, 2);
        for pin in held {
            assert_eq!(reader.unpin(pin), Unpinned::Stale);
        }
        let mut after = look(&manager);
        assert_eq!((after.stats.late, after.stats.unpins_stale), (4, 2));
        (after.stats.late, after.stats.unpins_stale) = (0, 0);
        assert_eq!(after, before);
        assert_eq!(seen(&manager, "1 2 3 4 5 6 load"), "hhhhhh.");
    }
}

#[test]
fn a_key_that_is_stored_again_after_a_draining_reset_is_another_chunk() {
    for mut manager in both(2) {
        put(&mut manager, "a");
        let reader = manager.reader();
        let (load, held) = (pin(&mut manager, "a"), reader_pin(&reader, "a"));
        let old = load.slots()[0];
        manager.reset_cache(ResetMode::Drain);
        let (ticket, ..) = offer_named(&mut manager, "a", None).expect("it fits");
        assert_ne!(ticket.slots(), [old]);
        assert_eq!(reader.lookup(b"a"), Ok(LookupResult::HitPending));
        let keys = Chunks::named("a");
        // By key only what is there now is meant.
        let ended = keys.with(|keys| manager.complete_load_keys(keys));
        assert_eq!(ended, Err(kvferry::LoadError::NotPinned { index: 0 }));
        assert_eq!(reader.unpin(held), Unpinned::Released);
        assert_eq!(manager.complete_load(load).applied, 1);
        manager.complete_store(ticket, true);
        assert_eq!(look(&manager).stats.free, 1);
        assert_eq!(seen(&manager, "a"), "h");
    }
}

#[test]
fn one_cleared_event_tells_of_a_reset() {
    for (mode, mut manager) in everything() {
        put(&mut manager, "a b");
        manager.take_events();
        manager.reset_cache(mode);
        let events = manager.take_events();
        assert_eq!((events.events.len(), events.lost), (1, 0));
        assert_eq!(events.events[0].kind, EventKind::Cleared);
        assert!(events.events[0].keys.is_empty());
    }
}

#[test]
fn a_touch_that_a_reader_left_before_a_reset_touches_nothing_after_it() {
    for (mode, mut manager) in everything() {
        put(&mut manager, "a b c");
        let reader = manager.reader();
        let keys = Chunks::named("a b");
        keys.with(|keys| reader.touch(keys)).expect("valid");
        manager.reset_cache(mode);
        put(&mut manager, "x y z");
        assert_eq!(
            crate::common::lists(&manager),
            ("x y z".into(), String::new())
        );
    }
}

#[test]
fn a_reset_first_takes_up_what_readers_gave_back() {
    for mut manager in both(3) {
        put(&mut manager, "a b c");
        let reader = manager.reader();
        let [a, b] = ["a", "b"].map(|key| reader_pin(&reader, key));
        assert_eq!(manager.reset_cache(ResetMode::Drain), 2);
        let _ = reader.unpin(a);
        assert_eq!(manager.reset_cache(ResetMode::Drain), 1);
        let _ = reader.unpin(b);
        assert_eq!(manager.reset_cache(ResetMode::Drain), 0);
        assert_eq!(look(&manager).stats.free, 3);

        put(&mut manager, "a");
        let held = reader_pin(&reader, "a");
        Chunks::named("a")
            .with(|keys| manager.drop_keys(keys))
            .expect("valid");
        let _ = reader.unpin(held);
        manager.take_events();
        manager.reset_cache(ResetMode::Fenced);
        let kinds = manager.take_events().events;
        let kinds: Vec<_> = kinds.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Removed, EventKind::Cleared]);
    }
}

#[test]
fn offers_are_counted_across_a_reset() {
    let mut manager = engine(Config::new(4).store_threshold(2));
    assert!(offer_named(&mut manager, "a", None).is_some());
    manager.reset_cache(ResetMode::Fenced);
    let (_, stored, _) = offer_named(&mut manager, "a", None).expect("it fits");
    assert_eq!(stored, "a");
}

#[test]
fn an_empty_engine_can_be_reset_again_and_again() {
    for (mode, mut manager) in everything() {
        for epoch in 1..=100 {
            assert_eq!(manager.reset_cache(mode), 0);
            assert_eq!(manager.stats().epoch, epoch);
        }
        look(&manager);
    }
}
