//! `complete_store`, by ticket and by key: a store ends once, whatever comes late, twice or from
//! elsewhere.

use kvferry::{Completion, Config, Manager, PolicyKind, ResetMode};

use crate::common::{Chunks, Seen, engine, lists, look, offer_named, pin, put, seen};

fn both(capacity: usize) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| engine(Config::new(capacity).policy(policy).events(true)))
}

fn complete(manager: &mut Manager, keys: &str, success: bool) -> (usize, usize) {
    let done = Chunks::named(keys).with(|keys| manager.complete_store_keys(keys, success));
    counts(done.expect("valid keys"))
}

fn counts(done: Completion) -> (usize, usize) {
    (done.applied, done.late)
}

#[test]
fn a_failed_store_leaves_no_trace_but_its_counter() {
    for mut manager in both(3) {
        put(&mut manager, "a");
        let before = look(&manager);
        manager.take_events();
        let (ticket, ..) = offer_named(&mut manager, "b c", None).expect("it fits");
        assert_eq!(counts(manager.complete_store(ticket, false)), (2, 0));
        let mut after = look(&manager);
        assert_eq!((after.stats.failed, after.stats.misses), (2, 3));
        after.stats.failed = 0;
        after.stats.misses = before.stats.misses;
        assert_eq!(after, before);
        assert_eq!(manager.take_events(), kvferry::Events::default());
        assert!(after.lists.b1.is_empty(), "no ghost of it");
    }
}

#[test]
fn a_failed_store_does_not_bring_back_what_left_for_it() {
    for mut manager in both(2) {
        put(&mut manager, "a b");
        let (ticket, _, evicted) = offer_named(&mut manager, "c", None).expect("it fits");
        assert_eq!(evicted, "a");
        manager.complete_store(ticket, false);
        assert_eq!(seen(&manager, "a b c"), ".h.");
        assert_eq!(look(&manager).stats.free, 1);
    }
}

#[test]
fn ready_chunks_are_left_alone_by_success_and_by_failure() {
    for mut manager in both(4) {
        put(&mut manager, "a b");
        let load = pin(&mut manager, "a");
        let before = look(&manager);
        assert_eq!(complete(&mut manager, "a b a", true), (0, 0));
        assert_eq!(complete(&mut manager, "b a", false), (0, 0));
        assert_eq!(look(&manager), before);
        assert_eq!(manager.complete_load(load).applied, 1);
        let (ticket, ..) = offer_named(&mut manager, "c", None).expect("it fits");
        assert_eq!(complete(&mut manager, "a c b", false), (1, 0));
        assert_eq!(seen(&manager, "a b c"), "hh.");
        assert_eq!(counts(manager.complete_store(ticket, true)), (0, 1));
        assert_eq!(seen(&manager, "a b c"), "hh.");
    }
}

#[test]
fn unknown_keys_are_counted_as_late_and_ignored() {
    for mut manager in both(4) {
        let (_ticket, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        assert_eq!(complete(&mut manager, "x a y x", true), (1, 3));
        assert_eq!(seen(&manager, "a b x y"), "hp..");
        assert_eq!(look(&manager).stats.late, 3);
    }
}

#[test]
fn a_key_twice_in_a_completion_is_completed_once() {
    for mut manager in both(4) {
        let (_ticket, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        assert_eq!(complete(&mut manager, "a a", true), (1, 0));
        // Failed once, and then unknown.
        assert_eq!(complete(&mut manager, "b b", false), (1, 1));
        let stats = look(&manager).stats;
        assert_eq!((stats.stored, stats.failed, stats.late), (1, 1, 1));
    }
}

#[test]
fn a_store_that_ended_by_key_is_late_by_ticket() {
    for mut manager in both(4) {
        let (ticket, ..) = offer_named(&mut manager, "a b c", None).expect("it fits");
        assert_eq!(complete(&mut manager, "a c", true), (2, 0));
        assert_eq!(counts(manager.complete_store(ticket, false)), (1, 2));
        assert_eq!(seen(&manager, "a b c"), "h.h");
    }
}

#[test]
fn a_late_ticket_never_makes_another_keys_bytes_a_hit() {
    for mut manager in both(1) {
        let (first, ..) = offer_named(&mut manager, "a", None).expect("it fits");
        let slot = first.slots()[0];
        assert_eq!(complete(&mut manager, "a", false), (1, 0));
        // The same slot, another key; then the same slot and the same key again.
        for key in ["b", "a"] {
            let (second, ..) = offer_named(&mut manager, key, None).expect("it fits");
            assert_eq!(second.slots(), [slot]);
            if key == "a" {
                assert_eq!(counts(manager.complete_store(first, true)), (0, 1));
                assert_eq!(seen(&manager, "a b"), "p.");
                assert_eq!(counts(manager.complete_store(second, true)), (1, 0));
                break;
            }
            assert_eq!(counts(manager.complete_store(second, false)), (1, 0));
        }
        assert_eq!(seen(&manager, "a b"), "h.");
        look(&manager);
    }
}

#[test]
fn a_ticket_from_before_a_reset_is_late_after_it() {
    for mut manager in both(2) {
        let (first, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        manager.reset_cache(ResetMode::Fenced);
        let (second, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        assert_eq!(counts(manager.complete_store(first, true)), (0, 2));
        assert_eq!(seen(&manager, "a b"), "pp");
        assert_eq!(counts(manager.complete_store(second, true)), (2, 0));
        assert_eq!(look(&manager).stats.late, 2);
    }
}

#[test]
fn a_ticket_of_another_engine_is_late() {
    for (mut manager, mut other) in both(2).into_iter().zip(both(2)) {
        let (mine, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        let (theirs, ..) = offer_named(&mut other, "a b", None).expect("it fits");
        assert_eq!(mine.slots(), theirs.slots());
        assert_eq!(counts(manager.cancel_store(&theirs)), (0, 2));
        assert_eq!(counts(manager.complete_store(theirs, true)), (0, 2));
        assert_eq!(seen(&manager, "a b"), "pp");
        assert_eq!(counts(manager.complete_store(mine, true)), (2, 0));
        assert_eq!(seen(&other, "a b"), "pp");
    }
}

#[test]
fn completing_moves_no_chunk_in_the_order() {
    for mut manager in both(4) {
        let (first, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        let (second, ..) = offer_named(&mut manager, "c d", None).expect("it fits");
        manager.complete_store(second, true);
        assert_eq!(lists(&manager).0, "a b c d");
        manager.complete_store(first, true);
        let Seen { lists, stats } = look(&manager);
        assert_eq!((lists.t1.len(), stats.stored), (4, 4));
        assert_eq!(put(&mut manager, "e f g"), "a b c");
    }
}

#[test]
fn late_completions_of_a_binding_are_counted() {
    let mut manager = engine(Config::new(1));
    assert_eq!(counts(manager.count_late(3)), (0, 3));
    assert_eq!(counts(manager.count_late(0)), (0, 0));
    assert_eq!(look(&manager).stats.late, 3);
}
