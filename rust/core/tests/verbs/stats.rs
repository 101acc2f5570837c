//! `stats`: gauges that add up, counters that count what their names say, from any thread.

use kvferry::{Config, Manager, PolicyKind, ResetMode, Stats};

use crate::common::{Chunks, Numbers, engine, look, offer_named, pin, put, reader_pin, touch};

fn both(capacity: usize) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| engine(Config::new(capacity).policy(policy)))
}

fn check_sums(stats: &Stats) {
    let slots = stats.free + stats.ready + stats.pending + stats.draining;
    assert_eq!(slots, stats.capacity, "{stats:?}");
    assert_eq!(stats.resident(), stats.ready + stats.pending);
    assert!(stats.pinned <= stats.ready && stats.evictable <= stats.ready - stats.pinned);
    let left = stats.evicted + stats.dropped + stats.failed + stats.cancelled;
    assert!(left <= stats.misses, "each of them was stored once");
}

#[test]
fn an_engine_that_is_new_has_nothing_but_free_slots() {
    for manager in both(7) {
        let stats = manager.stats();
        for (name, value) in stats.iter() {
            let expected = if ["capacity", "free"].contains(&name) {
                7
            } else {
                0
            };
            assert_eq!(value, expected, "{name}");
        }
        let arc = manager.policy() == PolicyKind::Arc;
        assert_eq!(stats.target_t1_size, arc.then_some(0.0));
        assert_eq!(stats.to_string(), "0/7 chunks, 0 pinned");
        assert_eq!(manager.reader().stats(), stats);
    }
}

#[test]
fn gauges_add_up_to_the_capacity_after_whatever_happened() {
    for mut manager in both(12) {
        let mut numbers = Numbers(21);
        let (mut stores, mut loads) = (Vec::new(), Vec::new());
        for step in 0..4000 {
            let start = numbers.below(30) as u64;
            let keys = Chunks::numbered(start..start + 1 + numbers.below(4) as u64);
            match numbers.below(10) {
                0..4 => {
                    let outcome = crate::common::offer(&mut manager, &keys, None);
                    stores.extend(outcome.stored().map(|output| output.ticket));
                }
                4..6 if !stores.is_empty() => {
                    let ticket = stores.swap_remove(numbers.below(stores.len()));
                    manager.complete_store(ticket, numbers.below(4) > 0);
                }
                6 if !stores.is_empty() => drop(manager.cancel_store(&stores[0])),
                7 => loads.extend(keys.with(|keys| manager.prepare_load(keys, None))),
                8 if !loads.is_empty() => drop(manager.complete_load(loads.remove(0))),
                9 if step % 40 == 0 => drop(manager.reset_cache(ResetMode::Drain)),
                _ => drop(keys.with(|keys| manager.drop_keys(keys))),
            }
            check_sums(&look(&manager).stats);
        }
    }
}

#[test]
fn hits_and_misses_count_once_per_request_and_key() {
    for mut manager in both(8) {
        put(&mut manager, "a b");
        let start = manager.stats();
        let mut access = manager.begin_request(0, 0);
        for _ in 0..3 {
            let (ticket, ..) =
                offer_named(&mut manager, "a b c c", Some(&mut access)).expect("it fits");
            manager.complete_store(ticket, true);
            let keys = Chunks::named("a a c");
            let load = keys.with(|keys| manager.prepare_load(keys, Some(&mut access)));
            manager.complete_load(load.expect("ready"));
        }
        let stats = manager.stats();
        assert_eq!(stats.hits - start.hits, 2, "a and b; c is its own");
        assert_eq!(stats.misses - start.misses, 1);
        // Without a request each key of a load is a hit, each key to store a miss.
        let load = pin(&mut manager, "a a b");
        manager.complete_load(load);
        let _pending = offer_named(&mut manager, "a x y x", None).expect("it fits");
        let after = manager.stats();
        assert_eq!(after.hits - stats.hits, 3);
        assert_eq!(after.misses - stats.misses, 2);
        touch(&mut manager, "a b c");
        assert_eq!(manager.stats().hits, after.hits);
    }
}

#[test]
fn nothing_is_pinned_or_pending_once_everything_has_ended() {
    for mut manager in both(4) {
        put(&mut manager, "a b");
        let loads = [pin(&mut manager, "a b a"), pin(&mut manager, "b")];
        let (ticket, ..) = offer_named(&mut manager, "c d", None).expect("it fits");
        let stats = manager.stats();
        assert_eq!((stats.pinned, stats.pending), (2, 2));
        for load in loads {
            manager.complete_load(load);
        }
        manager.complete_store(ticket, true);
        let stats = look(&manager).stats;
        assert_eq!((stats.pinned, stats.pending, stats.evictable), (0, 0, 4));
        assert_eq!((stats.longest_pin_us, stats.longest_pending_us), (0, 0));
    }
}

#[test]
fn the_longest_hold_is_that_of_the_oldest_hold_that_still_is() {
    for mut manager in both(4) {
        manager.advance_to(1_000);
        put(&mut manager, "a b");
        let first = pin(&mut manager, "a");
        manager.advance_to(1_300);
        let second = pin(&mut manager, "b a");
        let _ticket = offer_named(&mut manager, "c", None).expect("it fits");
        manager.advance_to(2_001);
        let stats = manager.stats();
        assert_eq!(
            (stats.longest_pin_us, stats.longest_pending_us),
            (1_001, 701)
        );
        manager.complete_load(first);
        assert_eq!(manager.stats().longest_pin_us, 1_001, "a is pinned still");
        manager.complete_load(second);
        assert_eq!(manager.stats().longest_pin_us, 0);
        let again = pin(&mut manager, "a");
        manager.advance_to(2_002);
        assert_eq!(manager.stats().longest_pin_us, 1);
        manager.complete_load(again);
    }
}

#[test]
fn pins_of_readers_are_no_pins_of_the_owner() {
    for mut manager in both(2) {
        put(&mut manager, "a");
        let reader = manager.reader();
        let held = reader_pin(&reader, "a");
        assert_eq!(look(&manager).stats.pinned, 0);
        let _ = reader.unpin(held);
        assert_eq!(look(&manager).stats.unpins_stale, 0);
    }
}

#[test]
fn a_reader_sees_the_owners_numbers_after_every_verb() {
    for mut manager in both(2) {
        let reader = manager.reader();
        put(&mut manager, "a b");
        assert_eq!(reader.stats(), manager.stats());
        assert_eq!(reader.stats().stored, 2);
        assert!(offer_named(&mut manager, "c d e", None).is_none());
        assert_eq!(reader.stats().declined_full, 1);
        drop(manager);
        assert_eq!(reader.stats().ready, 2);
    }
}
