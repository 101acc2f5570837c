//! `touch`: one access, for callers that have no requests.

use kvferry::{Config, Manager, PolicyKind};

use crate::common::{engine, lists, look, offer_named, pin, put, seen, touch};

fn arc(capacity: usize) -> Manager {
    engine(Config::new(capacity).policy(PolicyKind::Arc))
}

fn named(t1: &str, t2: &str) -> (String, String) {
    (t1.to_owned(), t2.to_owned())
}

#[test]
fn a_touch_is_applied_tail_first_so_that_a_head_outlives_its_tail() {
    let mut manager = engine(Config::new(4));
    put(&mut manager, "a b c d");
    touch(&mut manager, "a b c");
    assert_eq!(lists(&manager), named("d c b a", ""));
    assert_eq!(put(&mut manager, "e f g"), "d c b");
    let mut manager = arc(4);
    put(&mut manager, "a b c d");
    touch(&mut manager, "a b c");
    assert_eq!(lists(&manager), named("d", "c b a"));
}

#[test]
fn a_key_twice_in_a_touch_is_touched_twice_and_the_first_counts() {
    let mut manager = engine(Config::new(4));
    put(&mut manager, "a b c");
    touch(&mut manager, "a b a c");
    assert_eq!(lists(&manager), named("c b a", ""));
    let mut manager = arc(3);
    put(&mut manager, "a b c");
    put(&mut manager, "d e f");
    touch(&mut manager, "a a a");
    assert_eq!(manager.target_t1_size(), Some(3.0), "a ghost, three times");
}

#[test]
fn a_touch_leaves_a_pending_chunk_in_t1() {
    let mut manager = arc(4);
    put(&mut manager, "a b");
    let (ticket, ..) = offer_named(&mut manager, "c d", None).expect("it fits");
    touch(&mut manager, "c a");
    assert_eq!(lists(&manager), named("b d c", "a"));
    manager.complete_store(ticket, true);
    touch(&mut manager, "c");
    assert_eq!(lists(&manager), named("b d", "a c"));
}

#[test]
fn a_touched_ghost_moves_the_target_towards_its_list() {
    let mut manager = arc(2);
    put(&mut manager, "a b");
    put(&mut manager, "c d");
    touch(&mut manager, "a");
    assert_eq!(manager.target_t1_size(), Some(1.0));
    // From T2 to B2 and back: the target falls, by the ratio of the lists and at least by one.
    touch(&mut manager, "c d");
    put(&mut manager, "e f");
    assert_eq!(manager.debug_lists().b2.len(), 2);
    touch(&mut manager, "c");
    assert_eq!(manager.target_t1_size(), Some(0.0));
    touch(&mut manager, "d c a b x");
    look(&manager);
}

#[test]
fn a_touch_never_changes_pins_or_what_is_there() {
    for policy in PolicyKind::ALL {
        let mut manager = engine(Config::new(3).policy(policy));
        put(&mut manager, "a b");
        let load = pin(&mut manager, "a");
        let before = look(&manager).stats;
        touch(&mut manager, "a b c x y z");
        touch(&mut manager, "");
        assert_eq!(look(&manager).stats, before);
        assert_eq!(seen(&manager, "a b c"), "hh.");
        assert_eq!(manager.complete_load(load).applied, 1);
    }
}
