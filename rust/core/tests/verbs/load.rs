//! `prepare_load` and `complete_load`: pins of the owner, all or none.

use kvferry::{Config, LoadError, Manager, PolicyKind, TryPin};

use crate::common::{Chunks, engine, lists, look, offer_named, pin, put, reader_pin, seen, touch};

/// The most pins of one slot.
const MAX_PINS: usize = 4095;

fn load_error(manager: &mut Manager, keys: &str) -> LoadError {
    let load = Chunks::named(keys).with(|keys| manager.prepare_load(keys, None));
    load.expect_err("it cannot be served")
}

fn unpin(manager: &mut Manager, keys: &str) -> Result<(), LoadError> {
    Chunks::named(keys).with(|keys| manager.complete_load_keys(keys))
}

#[test]
fn the_slots_of_a_load_belong_to_its_keys_in_order() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(4).policy(policy));
        put(&mut manager, "a b c d");
        let load = pin(&mut manager, "d a c a");
        let slot = |key: &str| manager.debug_slot(key.as_bytes()).expect("it is there");
        assert_eq!(load.slots(), ["d", "a", "c", "a"].map(slot));
        assert_eq!(look(&manager).stats.pinned, 3);
        assert_eq!(manager.complete_load(load).applied, 4);
        assert_eq!(look(&manager).stats.pinned, 0);
    }
}

#[test]
fn a_missing_or_pending_key_fails_the_load_and_pins_nothing() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(4).policy(policy));
        put(&mut manager, "a b");
        let _pending = offer_named(&mut manager, "p", None).expect("it fits");
        let mut access = manager.begin_request(5, 0);
        let before = look(&manager);
        for (keys, error) in [
            ("x", LoadError::NotResident { index: 0 }),
            ("a b x", LoadError::NotResident { index: 2 }),
            ("a p b", LoadError::NotReady { index: 1 }),
            ("a a p x", LoadError::NotReady { index: 2 }),
            ("a x p", LoadError::NotResident { index: 1 }),
        ] {
            assert_eq!(load_error(&mut manager, keys), error, "{keys}");
            let keys = Chunks::named(keys);
            let load = keys.with(|keys| manager.prepare_load(keys, Some(&mut access)));
            assert_eq!(load.map(|_| ()), Err(error));
        }
        assert_eq!(look(&manager), before);
        assert_eq!(access.seen(), 0, "nothing is recorded either");
    }
}

#[test]
fn a_load_of_nothing_pins_nothing() {
    let mut manager = engine(Config::new(1));
    let before = look(&manager);
    let load = pin(&mut manager, "");
    assert!(load.slots().is_empty());
    let done = manager.complete_load(load);
    assert_eq!((done.applied, done.late), (0, 0));
    assert_eq!(unpin(&mut manager, ""), Ok(()));
    assert_eq!(look(&manager), before);
}

#[test]
fn pins_never_change_the_order() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(4).policy(policy));
        put(&mut manager, "a b c d");
        touch(&mut manager, "b");
        let order = lists(&manager);
        let loads = ["b a", "d d", "c b"].map(|keys| pin(&mut manager, keys));
        assert_eq!(lists(&manager), order);
        for load in loads {
            manager.complete_load(load);
        }
        assert_eq!(lists(&manager), order);
    }
}

#[test]
fn a_slot_holds_4095_pins_and_one_more_fails_the_whole_load() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(3).policy(policy));
        put(&mut manager, "a b c");
        let before = look(&manager);
        let keys = vec!["a"; MAX_PINS].join(" ");
        let too_many = format!("b {keys} c a");
        let error = LoadError::TooManyPins {
            index: MAX_PINS + 2,
        };
        assert_eq!(load_error(&mut manager, &too_many), error);
        assert_eq!(look(&manager), before);

        let all = pin(&mut manager, &keys);
        let full = look(&manager);
        for keys in ["a", "b a", "b c b a"] {
            let index = keys.split(' ').count() - 1;
            let error = LoadError::TooManyPins { index };
            assert_eq!(load_error(&mut manager, keys), error);
            assert_eq!(look(&manager), full);
        }
        assert_eq!(manager.reader().try_pin(b"a"), Ok(TryPin::Busy));
        assert_eq!(unpin(&mut manager, "a"), Ok(()));
        let last = pin(&mut manager, "a");
        assert_eq!(manager.complete_load(last).applied, 1);
        let done = manager.complete_load(all);
        assert_eq!((done.applied, done.late), (MAX_PINS - 1, 1));
        assert_eq!(look(&manager).stats.pinned, 0);
    }
}

#[test]
fn pins_of_readers_count_towards_the_most() {
    let mut manager = engine(Config::new(2));
    put(&mut manager, "a b");
    let reader = manager.reader();
    let pins: Vec<_> = (1..MAX_PINS).map(|_| reader_pin(&reader, "a")).collect();
    let before = look(&manager);
    let error = LoadError::TooManyPins { index: 2 };
    assert_eq!(load_error(&mut manager, "b a a"), error);
    assert_eq!(look(&manager), before);
    let load = pin(&mut manager, "b a");
    assert_eq!(reader.try_pin(b"a"), Ok(TryPin::Busy));
    for pin in pins {
        assert_eq!(reader.unpin(pin), kvferry::Unpinned::Released);
    }
    assert_eq!(manager.complete_load(load).applied, 2);
    assert_eq!(put(&mut manager, "x y"), "a b");
}

#[test]
fn a_key_that_is_not_pinned_so_often_is_an_error_that_changes_nothing() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(4).policy(policy));
        put(&mut manager, "a b c");
        let _pending = offer_named(&mut manager, "p", None).expect("it fits");
        let _load = pin(&mut manager, "a b a");
        let before = look(&manager);
        for (keys, error) in [
            ("c", LoadError::NotPinned { index: 0 }),
            ("a b c", LoadError::NotPinned { index: 2 }),
            ("a a a", LoadError::NotPinned { index: 2 }),
            ("b a b a", LoadError::NotPinned { index: 2 }),
            ("a p", LoadError::NotPinned { index: 1 }),
            ("a x", LoadError::NotResident { index: 1 }),
        ] {
            assert_eq!(unpin(&mut manager, keys), Err(error), "{keys}");
            assert_eq!(look(&manager), before, "{keys}");
        }
        assert_eq!(unpin(&mut manager, "a b a"), Ok(()));
        assert_eq!(look(&manager).stats.pinned, 0);
        assert_eq!(
            unpin(&mut manager, "a"),
            Err(LoadError::NotPinned { index: 0 })
        );
    }
}

#[test]
fn a_load_that_ends_by_key_never_releases_a_readers_pin() {
    let mut manager = engine(Config::new(1));
    put(&mut manager, "a");
    let reader = manager.reader();
    let held = reader_pin(&reader, "a");
    let load = pin(&mut manager, "a");
    assert_eq!(unpin(&mut manager, "a"), Ok(()));
    assert_eq!(
        unpin(&mut manager, "a"),
        Err(LoadError::NotPinned { index: 0 })
    );
    assert_eq!(
        manager.complete_load(load).late,
        1,
        "its pin is gone already"
    );
    assert!(
        offer_named(&mut manager, "b", None).is_none(),
        "the reader's is not"
    );
    assert_eq!(reader.unpin(held), kvferry::Unpinned::Released);
    assert_eq!(put(&mut manager, "b"), "a");
}

#[test]
fn a_load_of_another_engine_is_late_and_releases_nothing() {
    let mut manager = engine(Config::new(2));
    let mut other = engine(Config::new(2));
    put(&mut manager, "a b");
    put(&mut other, "a b");
    let mine = pin(&mut manager, "a b");
    let theirs = pin(&mut other, "a b");
    let done = manager.complete_load(theirs);
    assert_eq!((done.applied, done.late), (0, 2));
    let stats = look(&manager).stats;
    assert_eq!((stats.pinned, stats.late), (2, 2));
    assert_eq!(manager.complete_load(mine).applied, 2);
    assert_eq!(look(&other).stats.pinned, 2);
}

#[test]
fn a_ticket_that_is_dropped_pins_until_the_next_reset() {
    let mut manager = engine(Config::new(2));
    put(&mut manager, "a b");
    drop(pin(&mut manager, "a"));
    assert_eq!(put(&mut manager, "c"), "b");
    assert_eq!(seen(&manager, "a c"), "hh");
    manager.reset_cache(kvferry::ResetMode::Fenced);
    assert_eq!(look(&manager).stats.free, 2);
}
