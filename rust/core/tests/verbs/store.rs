//! `prepare_store`: what is stored, what leaves for it, and what it means that nothing fits.

use std::collections::BTreeSet;

use kvferry::{Config, LoadError, Manager, PolicyKind, StoreOutcome, StoreRejected};

use crate::common::{
    Chunks, Numbers, Seen, begin_store, engine, lists, look, offer, offer_named, pin, put,
    reader_pin, seen, touch,
};

fn arc(capacity: usize) -> Manager {
    engine(Config::new(capacity).policy(PolicyKind::Arc).events(true))
}

fn lru(capacity: usize) -> Manager {
    engine(Config::new(capacity).events(true))
}

fn both(capacity: usize) -> [Manager; 2] {
    [lru(capacity), arc(capacity)]
}

/// Offers keys that do not fit; checks that nothing but the offer can be seen of it.
fn decline(manager: &mut Manager, keys: &str) {
    let before = look(manager);
    manager.take_events();
    let missing = Chunks::named(keys).0.into_iter().collect::<BTreeSet<_>>();
    let missing = missing
        .iter()
        .filter(|key| manager.debug_slot(key).is_none())
        .count();
    let outcome = offer(manager, &Chunks::named(keys), None);
    assert!(matches!(
        outcome,
        StoreOutcome::Rejected(StoreRejected::Full)
    ));
    let mut after = look(manager);
    assert_eq!(manager.take_events(), kvferry::Events::default());
    assert_eq!(after.stats.declined_full, before.stats.declined_full + 1);
    assert_eq!(after.stats.misses, before.stats.misses + missing as u64);
    after.stats.declined_full = before.stats.declined_full;
    after.stats.misses = before.stats.misses;
    // A reader's pin is met by the first store that looks for victims.
    after.stats.evictable = before.stats.evictable;
    assert_eq!(after, before);
}

#[test]
fn missing_keys_get_a_slot_each_and_are_pending_until_their_store_ends() {
    for mut manager in both(4) {
        let (ticket, stored, evicted) = offer_named(&mut manager, "a b c", None).expect("it fits");
        assert_eq!((stored.as_str(), evicted.as_str()), ("a b c", ""));
        let slots: BTreeSet<u32> = ticket.slots().iter().copied().collect();
        assert!(slots.len() == 3 && slots.iter().all(|slot| *slot < 4));
        assert_eq!(seen(&manager, "a b c d"), "ppp.");
        assert_eq!(manager.complete_store(ticket, true).applied, 3);
        assert_eq!(seen(&manager, "a b c d"), "hhh.");
        look(&manager);
    }
}

#[test]
fn a_key_twice_in_a_call_is_stored_once() {
    for mut manager in both(3) {
        let chunks = Chunks::named("a b a a c b");
        let output = begin_store(&mut manager, &chunks);
        assert_eq!(output.indices, [0, 1, 4]);
        assert_eq!(output.ticket.slots().len(), 3);
        assert_eq!(manager.complete_store(output.ticket, true).applied, 3);
        assert_eq!(look(&manager).stats.ready, 3);
    }
}

#[test]
fn what_is_there_or_on_its_way_is_not_stored_again() {
    for mut manager in both(4) {
        put(&mut manager, "a");
        let (first, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        let (second, stored, _) = offer_named(&mut manager, "b a c", None).expect("it fits");
        assert_eq!(stored, "c");
        assert_eq!(manager.complete_store(second, true).applied, 1);
        assert_eq!(seen(&manager, "a b c"), "hph");
        assert_eq!(manager.complete_store(first, false).applied, 1);
        assert_eq!(seen(&manager, "a b c"), "h.h");
        look(&manager);
    }
}

#[test]
fn as_many_leave_as_there_are_slots_missing_and_not_one_more() {
    for mut manager in both(6) {
        put(&mut manager, "a b c d");
        assert_eq!(put(&mut manager, "e f"), "");
        assert_eq!(put(&mut manager, "g"), "a");
        Chunks::named("b")
            .with(|keys| manager.drop_keys(keys))
            .expect("valid");
        assert_eq!(put(&mut manager, "h i j"), "c d");
        assert_eq!(look(&manager).stats.evicted, 3);
    }
}

#[test]
fn a_call_never_evicts_its_own_keys() {
    for mut manager in both(4) {
        put(&mut manager, "a b c d");
        assert_eq!(put(&mut manager, "a b x"), "c");
        assert_eq!(seen(&manager, "a b d x"), "hhhh");
        // The spared ones are where they were.
        assert_eq!(lists(&manager).0, "a b d x");
        assert_eq!(put(&mut manager, "d x y z"), "a b");
        decline(&mut manager, "d x y z w");
        // Its own keys are spared where they stand in the call, and if they are named twice.
        assert_eq!(put(&mut manager, "w d d"), "x");
    }
}

#[test]
fn a_full_tier_declines_and_changes_nothing_but_the_record_of_the_offer() {
    for mut manager in both(4) {
        decline(&mut manager, "1 2 3 4 5");
        put(&mut manager, "a b c d");
        touch(&mut manager, "b");
        decline(&mut manager, "1 2 3 4 5");
        decline(&mut manager, "a 1 2 3 4");
        let load = pin(&mut manager, "a c c");
        decline(&mut manager, "1 2 3");
        assert_eq!(put(&mut manager, "1 2").len(), 3);
        let (ticket, ..) = offer_named(&mut manager, "3 4", None).expect("it fits");
        decline(&mut manager, "5");
        manager.complete_store(ticket, true);
        manager.complete_load(load);
        assert_eq!(put(&mut manager, "5 6 7 8").split(' ').count(), 4);
    }
}

#[test]
fn what_a_reader_holds_does_not_leave_and_declines_like_any_other_hold() {
    for mut manager in both(3) {
        put(&mut manager, "a b c");
        let reader = manager.reader();
        let pins: Vec<_> = ["a", "c", "a"].map(|key| reader_pin(&reader, key)).into();
        decline(&mut manager, "1 2");
        assert_eq!(put(&mut manager, "1"), "b");
        for pin in pins {
            let _ = reader.unpin(pin);
        }
        assert_eq!(put(&mut manager, "2 3"), "a c");
        look(&manager);
    }
}

#[test]
fn nothing_to_store_is_no_reason_to_decline() {
    for mut manager in both(2) {
        let (ticket, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        for keys in ["", "a", "b a b"] {
            let (none, stored, evicted) = offer_named(&mut manager, keys, None).expect("none");
            assert!(none.slots().is_empty() && stored.is_empty() && evicted.is_empty());
            assert_eq!(manager.complete_store(none, true).applied, 0);
        }
        manager.complete_store(ticket, true);
        let _held = pin(&mut manager, "a b");
        assert!(offer_named(&mut manager, "a b", None).is_some());
        assert_eq!(look(&manager).stats.declined_full, 0);
    }
}

#[test]
fn a_held_chunk_is_passed_over_and_keeps_its_place() {
    for mut manager in both(4) {
        put(&mut manager, "a b c d");
        let load = pin(&mut manager, "a b");
        assert_eq!(put(&mut manager, "e"), "c");
        assert_eq!(lists(&manager).0, "a b d e");
        manager.complete_load(load);
        assert_eq!(put(&mut manager, "f g"), "a b");
        let reader = manager.reader();
        let held = reader_pin(&reader, "d");
        assert_eq!(put(&mut manager, "h"), "e");
        assert_eq!(lists(&manager).0, "d f g h");
        let _ = reader.unpin(held);
        assert_eq!(put(&mut manager, "i"), "d");
    }
}

#[test]
fn a_pending_chunk_never_leaves() {
    for mut manager in both(3) {
        let (ticket, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        put(&mut manager, "c");
        assert_eq!(put(&mut manager, "d"), "c");
        decline(&mut manager, "e f");
        manager.complete_store(ticket, true);
        assert_eq!(put(&mut manager, "e f"), "a b");
    }
}

#[test]
fn arc_takes_from_its_other_list_where_the_preferred_one_is_held() {
    let mut manager = arc(4);
    put(&mut manager, "a b c d");
    touch(&mut manager, "d c");
    assert_eq!(lists(&manager), ("a b".into(), "c d".into()));
    // T1 is preferred and held: T2 gives.
    let load = pin(&mut manager, "a b");
    assert_eq!(put(&mut manager, "e f"), "c d");
    manager.complete_load(load);
    // A target above T1 prefers T2, which is empty: T1 gives, all of it.
    touch(&mut manager, "c d");
    assert!(manager.target_t1_size().is_some_and(|target| target < 1.0));
    let mut manager = arc(2);
    put(&mut manager, "a b");
    put(&mut manager, "c d");
    touch(&mut manager, "a b");
    assert_eq!(manager.target_t1_size(), Some(2.0));
    touch(&mut manager, "c");
    assert_eq!(lists(&manager), ("d".into(), "c".into()));
    let load = pin(&mut manager, "c");
    assert_eq!(put(&mut manager, "e"), "d");
    manager.complete_load(load);
}

#[test]
fn arc_compares_the_size_of_t1_with_the_whole_part_of_its_target() {
    let mut manager = arc(5);
    put(&mut manager, "a b c d e");
    touch(&mut manager, "a b c");
    put(&mut manager, "f g h i j");
    assert_eq!(lists(&manager), ("f g h i j".into(), String::new()));
    // Two ghosts of T1 and three of T2: the first hit in B1 moves the target by a half more than one.
    let ghosts = manager.debug_lists();
    assert_eq!((ghosts.b1.len(), ghosts.b2.len()), (2, 3));
    touch(&mut manager, "d");
    assert_eq!(manager.target_t1_size(), Some(1.5));
    touch(&mut manager, "g h i j");
    assert_eq!(lists(&manager), ("f".into(), "j i h g".into()));
    // One in T1 is not below one and a half, in whole chunks.
    assert_eq!(put(&mut manager, "x"), "f");
}

#[test]
fn without_a_request_a_store_tells_the_policy_nothing() {
    let mut manager = arc(2);
    put(&mut manager, "a b");
    put(&mut manager, "c d");
    let b1 = manager.debug_lists().b1;
    assert_eq!(b1.len(), 2);
    assert!(offer_named(&mut manager, "a 1 2 3", None).is_none());
    assert_eq!(manager.target_t1_size(), Some(0.0));
    assert_eq!(manager.debug_lists().b1, b1);
}

#[test]
fn a_request_that_is_declined_moves_ghosts_and_target_once_a_key() {
    let mut manager = arc(2);
    put(&mut manager, "a b");
    put(&mut manager, "c d");
    let before = look(&manager);
    let mut access = manager.begin_request(0, 0);
    for _ in 0..3 {
        assert!(offer_named(&mut manager, "a x y", Some(&mut access)).is_none());
    }
    let after = look(&manager);
    assert_eq!(manager.target_t1_size(), Some(1.0));
    let [a, b] = [b"a", b"b"].map(|key| manager.debug_fingerprint(key));
    assert_eq!(after.lists.b1, [b, a]);
    assert_eq!(
        (&after.lists.t1, &after.lists.t2),
        (&before.lists.t1, &before.lists.t2)
    );
    assert_eq!(after.stats.misses, before.stats.misses + 3);
    let mut other = manager.begin_request(0, 0);
    assert!(offer_named(&mut manager, "a x y", Some(&mut other)).is_none());
    assert_eq!(manager.target_t1_size(), Some(2.0));
}

#[test]
fn with_a_threshold_a_key_is_stored_at_the_offer_that_reaches_it() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(8).policy(policy).store_threshold(3));
        let mut stored = Vec::new();
        for _ in 0..4 {
            let (ticket, names, _) = offer_named(&mut manager, "a b", None).expect("it fits");
            manager.complete_store(ticket, true);
            stored.push(names);
        }
        assert_eq!(stored, ["", "", "a b", ""]);
        assert_eq!(look(&manager).stats.declined_threshold, 4);
        // A known key counts as often as a call names it, a new one once.
        let (ticket, names, _) = offer_named(&mut manager, "c c c", None).expect("it fits");
        assert_eq!((names.as_str(), ticket.slots().len()), ("", 0));
        let (_, names, _) = offer_named(&mut manager, "c c", None).expect("it fits");
        assert_eq!(names, "c");
    }
}

#[test]
fn an_offer_that_does_not_fit_counts_for_the_threshold() {
    let mut manager = engine(Config::new(1).store_threshold(2));
    assert!(offer_named(&mut manager, "a b", None).is_some());
    assert!(offer_named(&mut manager, "a b", None).is_none());
    let (_, names, _) = offer_named(&mut manager, "b", None).expect("it fits");
    assert_eq!(names, "b");
}

#[test]
fn ten_thousand_requests_with_every_kind_of_end_leak_nothing() {
    for policy in PolicyKind::ALL {
        let config = Config::new(64).policy(policy).pending_timeout_us(Some(50));
        let mut manager = engine(config);
        let reader = manager.reader();
        let mut numbers = Numbers(11);
        let mut late = Vec::new();
        for request in 0..10_000u64 {
            let prompt = numbers.below(40) as u64;
            let keys = Chunks::numbered(prompt * 3..prompt * 3 + 1 + numbers.below(12) as u64);
            let mut access = manager.begin_request(request * 10, 0);
            let hits = keys
                .with(|keys| manager.lookup_prefix(keys))
                .expect("valid")
                .ready;
            let found = Chunks(keys.0[..hits].to_vec());
            let load = found.with(|keys| manager.prepare_load(keys, Some(&mut access)));
            let load = load.expect("it was looked up a moment ago");
            let pinned = reader.try_pin(&keys.0[0]).expect("valid");
            let ending = numbers.below(8);
            if let Some(output) = offer(&mut manager, &keys, Some(&mut access)).stored() {
                match ending {
                    0 => drop(manager.complete_store(output.ticket, false)),
                    1 => late.push(output.ticket),
                    2 => {
                        manager.cancel_store(&output.ticket);
                        late.push(output.ticket);
                    }
                    _ => drop(manager.complete_store(output.ticket, true)),
                }
            }
            manager.complete_load(load);
            if let kvferry::TryPin::Pinned(pin) = pinned {
                let _ = reader.unpin(pin);
            }
            if ending != 3 {
                manager
                    .finish_request(access, None)
                    .expect("its own engine");
            }
            if late.len() > 3 {
                manager.expire_pending(request * 10);
                let ticket = late.remove(0);
                manager.complete_store(ticket, request % 2 == 0);
            }
        }
        for ticket in late {
            manager.complete_store(ticket, true);
        }
        touch(&mut manager, "");
        let Seen { stats, .. } = look(&manager);
        assert_eq!((stats.pending, stats.pinned, stats.draining), (0, 0, 0));
        assert_eq!(stats.free + stats.ready, 64);
        assert_eq!(stats.evictable, stats.ready);
        let all = Chunks::numbered(1_000_000..1_000_064);
        assert_eq!(begin_store(&mut manager, &all).ticket.slots().len(), 64);
    }
}

#[test]
fn a_store_of_a_key_that_is_pinned_twice_over_spares_it_and_its_pins() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let load = pin(&mut manager, "a a");
        assert_eq!(put(&mut manager, "a c"), "b");
        let more = Chunks::named("b").with(|keys| manager.prepare_load(keys, None));
        assert_eq!(more.map(|_| ()), Err(LoadError::NotResident { index: 0 }));
        assert_eq!(manager.complete_load(load).applied, 2);
        assert_eq!(look(&manager).stats.pinned, 0);
    }
}
