//! `cancel_store` and `expire_pending`: stores that will not come, or did not come in time.

use kvferry::{Config, Manager, PolicyKind, ResetMode, StoreTicket};

use crate::common::{engine, lists, look, offer_named, put, seen};

fn both(capacity: usize, timeout: Option<u64>) -> [Manager; 2] {
    PolicyKind::ALL.map(|policy| {
        let config = Config::new(capacity).policy(policy);
        engine(config.pending_timeout_us(timeout))
    })
}

fn begin(manager: &mut Manager, keys: &str) -> StoreTicket {
    offer_named(manager, keys, None).expect("it fits").0
}

#[test]
fn a_cancelled_store_is_a_miss_at_once_and_its_slots_drain_until_the_transfer_ends() {
    for success in [true, false] {
        for mut manager in both(3, None) {
            put(&mut manager, "a");
            let ticket = begin(&mut manager, "b c");
            let done = manager.cancel_store(&ticket);
            assert_eq!((done.applied, done.late), (2, 0));
            assert_eq!(seen(&manager, "a b c"), "h..");
            let stats = look(&manager).stats;
            assert_eq!((stats.draining, stats.pending, stats.free), (2, 0, 0));
            assert_eq!(stats.cancelled, 2);
            assert_eq!(lists(&manager).0, "a");
            // Neither of the two slots is given to anybody meanwhile.
            assert!(offer_named(&mut manager, "x y", None).is_none());
            assert_eq!(put(&mut manager, "x"), "a");
            let done = manager.complete_store(ticket, success);
            assert_eq!((done.applied, done.late), (2, 0));
            let stats = look(&manager).stats;
            assert_eq!((stats.draining, stats.free), (0, 2));
            assert_eq!((stats.stored, stats.failed), (2, 0), "that of a and of x");
            assert_eq!(seen(&manager, "b c x"), "..h");
        }
    }
}

#[test]
fn a_store_is_cancelled_once_and_only_while_it_is_pending() {
    for mut manager in both(4, None) {
        let ticket = begin(&mut manager, "a b");
        let key: [&[u8]; 1] = [b"a"];
        let done = manager.complete_store_keys(kvferry::Keys::slices(&key), true);
        assert_eq!(done.expect("valid").applied, 1);
        let done = manager.cancel_store(&ticket);
        assert_eq!((done.applied, done.late), (1, 1));
        let done = manager.cancel_store(&ticket);
        assert_eq!((done.applied, done.late), (0, 2));
        assert_eq!(seen(&manager, "a b"), "h.");
        let done = manager.complete_store(ticket, true);
        assert_eq!((done.applied, done.late), (1, 1));
        assert_eq!(look(&manager).stats.free, 3);
    }
}

#[test]
fn a_cancelled_key_can_be_stored_again_while_its_old_slot_drains() {
    for mut manager in both(2, None) {
        let first = begin(&mut manager, "a");
        manager.cancel_store(&first);
        let second = begin(&mut manager, "a");
        assert_ne!(first.slots(), second.slots());
        assert_eq!(seen(&manager, "a"), "p");
        manager.complete_store(first, true);
        assert_eq!(
            seen(&manager, "a"),
            "p",
            "the late bytes are not this store's"
        );
        manager.complete_store(second, true);
        assert_eq!(seen(&manager, "a"), "h");
        let stats = look(&manager).stats;
        assert_eq!((stats.free, stats.stored), (1, 1));
    }
}

#[test]
fn stores_expire_oldest_first_once_they_have_been_pending_for_the_set_time() {
    for mut manager in both(4, Some(100)) {
        let old = begin(&mut manager, "a b");
        assert_eq!(manager.expire_pending(60), 0);
        let new = begin(&mut manager, "c");
        assert_eq!(manager.expire_pending(99), 0);
        assert_eq!(look(&manager).stats.longest_pending_us, 99);
        assert_eq!(manager.expire_pending(100), 2);
        assert_eq!(seen(&manager, "a b c"), "..p");
        assert_eq!(look(&manager).stats.longest_pending_us, 40);
        // A clock that goes back stands still.
        assert_eq!(manager.expire_pending(3), 0);
        assert_eq!(manager.expire_pending(159), 0);
        assert_eq!(manager.expire_pending(160), 1);
        assert_eq!(look(&manager).stats.cancelled, 3);
        manager.complete_store(old, true);
        manager.complete_store(new, false);
        let stats = look(&manager).stats;
        assert_eq!((stats.free, stats.late, stats.stored), (4, 0, 0));
    }
}

#[test]
fn without_a_set_time_nothing_expires_and_with_none_at_all_everything_does() {
    for mut manager in both(2, None) {
        let _ticket = begin(&mut manager, "a");
        assert_eq!(manager.expire_pending(u64::MAX), 0);
        assert_eq!(seen(&manager, "a"), "p");
    }
    for mut manager in both(2, Some(0)) {
        let _ticket = begin(&mut manager, "a");
        assert_eq!(manager.expire_pending(0), 1);
        assert_eq!(seen(&manager, "a"), ".");
    }
}

#[test]
fn ages_are_right_however_far_the_clock_jumps() {
    // From no time at all to the microseconds since 1970, and on for years.
    let day = 86_400_000_000;
    for jump in [
        1_764_500_000_000_000,
        4_294_967_296_000,
        50 * day,
        5000 * day,
    ] {
        let timeout = Some(60 * day);
        for mut manager in both(2, timeout) {
            put(&mut manager, "a");
            let _pinned = crate::common::pin(&mut manager, "a");
            let _ticket = begin(&mut manager, "b");
            manager.advance_to(jump);
            let stats = look(&manager).stats;
            assert_eq!(
                (stats.longest_pin_us, stats.longest_pending_us),
                (jump, jump)
            );
            let due = usize::from(jump >= 60 * day);
            assert_eq!(manager.expire_pending(jump), due);
        }
    }
}

#[test]
fn an_expired_store_that_completes_late_after_its_key_was_stored_again_is_no_hit() {
    for mut manager in both(2, Some(10)) {
        let first = begin(&mut manager, "a b");
        assert_eq!(manager.expire_pending(10), 2);
        assert!(
            offer_named(&mut manager, "a", None).is_none(),
            "both slots drain"
        );
        manager.complete_store(first, true);
        assert_eq!(seen(&manager, "a b"), "..");
        // The slots are used again, for other keys; nothing of before can end their stores.
        let second = begin(&mut manager, "b c");
        assert_eq!(seen(&manager, "a b c"), ".pp");
        assert_eq!(manager.expire_pending(15), 0);
        manager.complete_store(second, true);
        assert_eq!(seen(&manager, "a b c"), ".hh");
        look(&manager);
    }
}

#[test]
fn a_cancelled_store_ends_with_a_fenced_reset_and_drains_through_the_other() {
    for mut manager in both(2, None) {
        let ticket = begin(&mut manager, "a b");
        manager.cancel_store(&ticket);
        assert_eq!(manager.reset_cache(ResetMode::Drain), 2);
        assert_eq!(look(&manager).stats.draining, 2);
        assert_eq!(manager.reset_cache(ResetMode::Fenced), 0);
        assert_eq!(look(&manager).stats.free, 2);
        let done = manager.complete_store(ticket, true);
        assert_eq!((done.applied, done.late), (0, 2));
    }
}
