//! What readers left that no longer concerns the chunk that is in the slot now.

use crate::config::Config;
use crate::key::Keys;
use crate::manager::Manager;
use crate::policy::PolicyKind;
use crate::slot::state;

fn store(manager: &mut Manager, names: [&[u8]; 3]) {
    let outcome = manager.prepare_store(Keys::slices(&names), None);
    let output = outcome.expect("valid").stored().expect("it fits");
    manager.complete_store(output.ticket, true);
}

#[test]
fn a_touch_of_an_earlier_life_of_a_slot_touches_nothing() {
    for policy in PolicyKind::ALL {
        let mut manager = Manager::new(Config::new(3).policy(policy)).expect("fits memory");
        store(&mut manager, [b"a", b"b", b"c"]);
        let of = |slot: u32, generation: u32| u64::from(slot) << 32 | u64::from(generation);
        let past: Vec<u64> = (0..3)
            .map(|slot| {
                of(
                    slot,
                    state::load(manager.records().state(slot)).generation(),
                )
            })
            .collect();
        store(&mut manager, [b"d", b"e", b"f"]);
        let before = manager.debug_lists();
        // As a reader leaves it that looked the key up before it left and got to the log after.
        for touch in past.into_iter().chain([of(1, u32::MAX)]) {
            manager.shared.touches.push(touch).expect("there is room");
        }
        manager.advance_to(1);
        assert_eq!(manager.debug_lists(), before);
        manager.check_invariants().expect("invariants hold");
    }
}

#[test]
fn a_notice_that_concerns_nothing_changes_nothing() {
    for policy in PolicyKind::ALL {
        let mut manager = Manager::new(Config::new(4).policy(policy)).expect("fits memory");
        store(&mut manager, [b"a", b"b", b"c"]);
        let pending: [&[u8]; 1] = [b"d"];
        let outcome = manager.prepare_store(Keys::slices(&pending), None);
        let ticket = outcome.expect("valid").stored().expect("it fits").ticket;
        let ready: [&[u8]; 1] = [b"a"];
        let load = manager
            .prepare_load(Keys::slices(&ready), None)
            .expect("ready");
        let (lists, stats) = (manager.debug_lists(), manager.stats());
        let everyone = |manager: &mut Manager| {
            (0..4).for_each(|slot| manager.shared.notices.notify(slot));
            manager.advance_to(0);
            manager.check_invariants().expect("invariants hold");
        };
        everyone(&mut manager);
        assert_eq!((manager.debug_lists(), manager.stats()), (lists, stats));
        manager.cancel_store(&ticket);
        everyone(&mut manager);
        assert_eq!(manager.stats().draining, 1, "its transfer has not ended");
        manager.complete_store(ticket, true);
        manager.complete_load(load);
        everyone(&mut manager);
        assert_eq!((manager.stats().free, manager.stats().evictable), (1, 3));
    }
}
