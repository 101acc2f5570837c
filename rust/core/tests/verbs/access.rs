//! One request is one access: what it records, and what its end does.

use kvferry::{AccessError, Config, KeyError, Keys, LoadError, Manager, PolicyKind, RequestAccess};
use kvferry::{ResetMode, StoreError};

use crate::common::{
    Chunks, engine, lists, look, numbered_key, offer_named, pin, put, seen, touch,
};

fn arc(capacity: usize) -> Manager {
    engine(Config::new(capacity).policy(PolicyKind::Arc).group_bytes(0))
}

fn lru(capacity: usize) -> Manager {
    engine(Config::new(capacity).group_bytes(0))
}

fn both(capacity: usize) -> [Manager; 2] {
    [lru(capacity), arc(capacity)]
}

fn named(t1: &str, t2: &str) -> (String, String) {
    (t1.to_owned(), t2.to_owned())
}

/// Stores what is missing of a request's keys, by the request.
fn store_as(manager: &mut Manager, keys: &str, access: &mut RequestAccess) {
    let (ticket, ..) = offer_named(manager, keys, Some(access)).expect("it fits");
    manager.complete_store(ticket, true);
}

fn load_as(manager: &mut Manager, keys: &str, access: &mut RequestAccess) {
    let load = Chunks::named(keys).with(|keys| manager.prepare_load(keys, Some(access)));
    manager.complete_load(load.expect("ready"));
}

fn set_positions(access: &mut RequestAccess, keys: &str, positions: &[u32]) {
    let done = Chunks::named(keys).with(|keys| access.set_positions(keys, positions));
    done.expect("one position a key");
}

#[test]
fn a_request_changes_the_order_once_at_its_end_and_head_last() {
    let mut manager = lru(8);
    put(&mut manager, "a b c x y");
    let mut access = manager.begin_request(0, 0);
    load_as(&mut manager, "a b", &mut access);
    load_as(&mut manager, "c a", &mut access);
    store_as(&mut manager, "a b c d e", &mut access);
    assert_eq!(lists(&manager).0, "a b c x y d e");
    manager
        .finish_request(access, Some(3))
        .expect("its own engine");
    assert_eq!(lists(&manager).0, "x y e d c b a");
}

#[test]
fn a_chunk_that_a_request_reused_is_one_hit_however_often_it_did() {
    let mut manager = arc(8);
    put(&mut manager, "a b c");
    let mut access = manager.begin_request(0, 0);
    for _ in 0..5 {
        load_as(&mut manager, "a b a", &mut access);
        store_as(&mut manager, "a b", &mut access);
    }
    assert_eq!(lists(&manager), named("a b c", ""));
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager), named("c", "b a"));
}

#[test]
fn a_chunk_that_a_request_stored_itself_only_regains_its_place() {
    let mut manager = arc(8);
    let mut access = manager.begin_request(0, 0);
    store_as(&mut manager, "a b", &mut access);
    put(&mut manager, "x");
    load_as(&mut manager, "a b", &mut access);
    store_as(&mut manager, "a b c", &mut access);
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager), named("x c b a", ""));
    // The next request is the one that reuses it.
    let mut access = manager.begin_request(0, 0);
    store_as(&mut manager, "a", &mut access);
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager), named("x c b", "a"));
}

#[test]
fn reused_and_then_stored_again_is_reused() {
    let mut manager = arc(2);
    put(&mut manager, "a");
    let mut access = manager.begin_request(0, 0);
    load_as(&mut manager, "a", &mut access);
    put(&mut manager, "x y");
    assert_eq!(seen(&manager, "a"), ".");
    store_as(&mut manager, "a", &mut access);
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager), named("y", "a"));
}

#[test]
fn what_another_request_stored_meanwhile_counts_by_what_this_one_did() {
    let mut manager = arc(2);
    let (_pending, ..) = offer_named(&mut manager, "p q", None).expect("it fits");
    let mut access = manager.begin_request(0, 0);
    // Declined: it saw the key, no more.
    assert!(offer_named(&mut manager, "a", Some(&mut access)).is_none());
    manager.reset_cache(ResetMode::Fenced);
    let mut manager = arc(2);
    put(&mut manager, "p q");
    let held = pin(&mut manager, "p q");
    let mut access = manager.begin_request(0, 0);
    assert!(offer_named(&mut manager, "a", Some(&mut access)).is_none());
    manager.complete_load(held);
    put(&mut manager, "a b");
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(
        lists(&manager),
        named("a b", ""),
        "for ARC that is no use of it"
    );
    let mut manager = lru(2);
    put(&mut manager, "p q");
    let held = pin(&mut manager, "p q");
    let mut access = manager.begin_request(0, 0);
    assert!(offer_named(&mut manager, "a", Some(&mut access)).is_none());
    manager.complete_load(held);
    put(&mut manager, "a b");
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager).0, "b a", "for LRU it is");
}

#[test]
fn a_pending_chunk_is_not_seen_by_a_request_that_offers_it() {
    for mut manager in both(4) {
        let (ticket, ..) = offer_named(&mut manager, "a b", None).expect("it fits");
        put(&mut manager, "c");
        let mut access = manager.begin_request(0, 0);
        store_as(&mut manager, "a", &mut access);
        assert_eq!(access.seen(), 0);
        manager.complete_store(ticket, true);
        manager
            .finish_request(access, None)
            .expect("its own engine");
        assert_eq!(lists(&manager), named("a b c", ""));
    }
}

#[test]
fn a_request_that_is_dropped_applies_nothing() {
    for mut manager in both(4) {
        put(&mut manager, "a b");
        let mut access = manager.begin_request(0, 0);
        load_as(&mut manager, "a", &mut access);
        store_as(&mut manager, "c", &mut access);
        let before = look(&manager);
        drop(access);
        assert_eq!(look(&manager), before);
        assert_eq!(lists(&manager), named("a b c", ""));
    }
}

#[test]
fn positions_order_the_keys_of_a_request_across_its_calls() {
    let mut manager = lru(8);
    let mut access = manager.begin_request(0, 0);
    set_positions(&mut access, "a b c d", &[10, 20, 30, 40]);
    for keys in ["c d", "a", "b"] {
        store_as(&mut manager, keys, &mut access);
    }
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager).0, "d c b a");
}

#[test]
fn one_key_without_a_position_keeps_the_order_of_use() {
    let mut manager = lru(8);
    let mut access = manager.begin_request(0, 0);
    set_positions(&mut access, "a b d", &[1, 2, 4]);
    store_as(&mut manager, "d c a b", &mut access);
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager).0, "b a c d");
    // Positions of keys that were never seen do not matter; the largest number means none.
    let mut access = manager.begin_request(0, 0);
    set_positions(&mut access, "a b c d x", &[1, 2, 3, 4, u32::MAX]);
    store_as(&mut manager, "b c a d", &mut access);
    set_positions(&mut access, "y", &[u32::MAX]);
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager).0, "d c b a");
}

#[test]
fn equal_positions_keep_the_order_of_use_and_later_ones_replace_earlier_ones() {
    let mut manager = lru(8);
    let mut access = manager.begin_request(0, 0);
    set_positions(&mut access, "a b c", &[9, 5, 5]);
    store_as(&mut manager, "c a b", &mut access);
    set_positions(&mut access, "a a", &[7, 1]);
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager).0, "b c a");
}

#[test]
fn groups_are_sorted_each_by_itself_and_merged_if_every_key_has_a_position() {
    let key = |name: u64, group| numbered_key(name, group);
    let keys = Chunks(vec![key(1, 1), key(2, 0), key(3, 1), key(4, 0)]);
    let order = |positions: &[(usize, u32)]| {
        let mut manager = engine(Config::new(8));
        let mut access = manager.begin_request(0, 0);
        for &(i, position) in positions {
            let one = [keys.0[i].as_slice()];
            access
                .set_positions(Keys::slices(&one), &[position])
                .expect("valid");
        }
        let outcome = keys.with(|keys| manager.prepare_store(keys, Some(&mut access)));
        let ticket = outcome.expect("valid").stored().expect("it fits").ticket;
        manager.complete_store(ticket, true);
        manager
            .finish_request(access, None)
            .expect("its own engine");
        let place = |key: &Vec<u8>| keys.0.iter().position(|it| it == key);
        let lru_first = manager.debug_lists().t1;
        lru_first.iter().rev().filter_map(place).collect::<Vec<_>>()
    };
    // Head first: group 0 before group 1, in the order of use.
    assert_eq!(order(&[]), [1, 3, 0, 2]);
    // A group in which one key has none stays as it is; the other one is sorted.
    assert_eq!(order(&[(3, 5), (1, 6), (0, 1)]), [3, 1, 0, 2]);
    // All: merged by position, equal ones by group.
    assert_eq!(order(&[(0, 1), (1, 1), (2, 2), (3, 0)]), [3, 1, 0, 2]);
    assert_eq!(order(&[(0, 9), (1, 1), (2, 0), (3, 4)]), [2, 1, 3, 0]);
}

#[test]
fn as_many_positions_as_keys_are_needed() {
    let mut manager = lru(2);
    let mut access = manager.begin_request(0, 0);
    for (positions, keys) in [(0, 1), (2, 1), (1, 0)] {
        let told = vec![1; positions];
        let names = Chunks::named(&"k ".repeat(keys));
        let done = names.with(|keys| access.set_positions(keys, &told));
        assert_eq!(done, Err(KeyError::Positions { positions, keys }));
    }
}

#[test]
fn a_reset_empties_a_request_that_goes_on() {
    for mode in [ResetMode::Drain, ResetMode::Fenced] {
        for mut manager in both(4) {
            put(&mut manager, "a b");
            let mut access = manager.begin_request(0, 7);
            set_positions(&mut access, "a b c", &[1, 2, 3]);
            load_as(&mut manager, "a", &mut access);
            store_as(&mut manager, "c", &mut access);
            manager.reset_cache(mode);
            put(&mut manager, "c a b");
            store_as(&mut manager, "b", &mut access);
            assert_eq!((access.seen(), access.gpu_hit()), (1, 7));
            manager
                .finish_request(access, None)
                .expect("its own engine");
            let [t1, t2] = if manager.policy() == PolicyKind::Arc {
                ["c a", "b"]
            } else {
                ["c a b", ""]
            };
            assert_eq!(lists(&manager), named(t1, t2));
        }
    }
}

#[test]
fn a_request_that_ended_up_with_nothing_from_before_a_reset_applies_nothing() {
    for mut manager in both(4) {
        put(&mut manager, "a b");
        let mut access = manager.begin_request(0, 0);
        load_as(&mut manager, "a b", &mut access);
        manager.reset_cache(ResetMode::Fenced);
        put(&mut manager, "a b c");
        let before = look(&manager);
        manager
            .finish_request(access, None)
            .expect("its own engine");
        assert_eq!(look(&manager), before);
    }
}

#[test]
fn what_left_meanwhile_is_passed_over_at_the_end() {
    for mut manager in both(2) {
        let mut access = manager.begin_request(0, 0);
        store_as(&mut manager, "a b", &mut access);
        put(&mut manager, "c");
        manager
            .finish_request(access, None)
            .expect("its own engine");
        assert_eq!(lists(&manager), named("c b", ""));
        look(&manager);
    }
}

#[test]
fn an_access_of_another_engine_is_refused_and_changes_neither() {
    for (mut manager, mut other) in both(4).into_iter().zip(both(4)) {
        put(&mut manager, "a");
        put(&mut other, "a");
        let mut access = other.begin_request(0, 0);
        load_as(&mut other, "a", &mut access);
        let (mine, theirs) = (look(&manager), look(&other));
        let keys = Chunks::named("a b");
        let store = keys.with(|keys| manager.prepare_store(keys, Some(&mut access)));
        assert_eq!(store.map(|_| ()), Err(StoreError::Access(AccessError)));
        let keys = Chunks::named("a");
        let load = keys.with(|keys| manager.prepare_load(keys, Some(&mut access)));
        assert_eq!(load.map(|_| ()), Err(LoadError::Access(AccessError)));
        assert_eq!(access.seen(), 1);
        assert_eq!(manager.finish_request(access, None), Err(AccessError));
        assert_eq!((look(&manager), look(&other)), (mine, theirs));
    }
}

#[test]
fn requests_in_flight_do_not_see_each_other() {
    let mut manager = arc(8);
    put(&mut manager, "a b");
    let mut first = manager.begin_request(0, 0);
    let mut second = manager.begin_request(1, 0);
    load_as(&mut manager, "a", &mut first);
    store_as(&mut manager, "c", &mut first);
    load_as(&mut manager, "c b", &mut second);
    manager
        .finish_request(second, None)
        .expect("its own engine");
    assert_eq!(lists(&manager), named("a", "b c"));
    manager.finish_request(first, None).expect("its own engine");
    // What the first one stored is in T2 already and regains its place there.
    assert_eq!(lists(&manager), named("", "b c a"));
}

#[test]
fn a_pending_chunk_that_a_request_had_reused_goes_to_t2() {
    let mut manager = arc(2);
    put(&mut manager, "a");
    let mut access = manager.begin_request(0, 0);
    load_as(&mut manager, "a", &mut access);
    put(&mut manager, "x y");
    let (ticket, ..) = offer_named(&mut manager, "a", None).expect("it fits");
    manager
        .finish_request(access, None)
        .expect("its own engine");
    assert_eq!(lists(&manager), named("y", "a"));
    manager.complete_store(ticket, false);
    let seen = look(&manager);
    assert!(seen.lists.t2.is_empty() && seen.lists.b2.is_empty());
}

#[test]
fn touches_and_requests_can_be_mixed() {
    for mut manager in both(4) {
        put(&mut manager, "a b c");
        let mut access = manager.begin_request(0, 0);
        load_as(&mut manager, "a", &mut access);
        touch(&mut manager, "b");
        manager
            .finish_request(access, None)
            .expect("its own engine");
        let order = lists(&manager);
        assert_eq!(format!("{} {}", order.0, order.1).trim(), "c b a");
    }
}

#[test]
fn an_access_takes_at_most_64_bytes_a_key_however_it_grows() {
    for n in [64, 100, 1000, 4097, 16_000, 50_000_usize] {
        let keys = Chunks::numbered(0..n as u64);
        let bytes = keys.0.concat();
        for calls in [1, 8, n] {
            for positions in [true, false] {
                let mut manager = engine(Config::new(n));
                let mut access = manager.begin_request(0, 0);
                let step = n.div_ceil(calls) * 36;
                for (i, rows) in bytes.chunks(step).enumerate() {
                    let rows = Keys::rows(rows, 36).expect("whole rows");
                    if positions {
                        let first = i * n.div_ceil(calls);
                        let all: Vec<u32> = (first..first + rows.len())
                            .map(|position| u32::try_from(position).expect("small"))
                            .collect();
                        access.set_positions(rows, &all).expect("valid");
                    }
                    let outcome = manager.prepare_store(rows, Some(&mut access));
                    let output = outcome.expect("valid").stored().expect("it fits");
                    manager.complete_store(output.ticket, true);
                }
                assert_eq!(access.seen(), n);
                let each = access.memory_bytes() as f64 / n as f64;
                assert!(
                    each <= 64.0,
                    "{each:.1} bytes a key of {n} in {calls} calls"
                );
            }
        }
    }
}
