//! A storage that was left in the middle of something, or that holds what no engine wrote.

use proptest::prelude::*;

use super::*;
use crate::key::Keys;
use crate::policy::PolicyKind;
use crate::shared::LookupResult;
use crate::sync::Ordering;

const CAPACITY: u32 = 20;

/// An engine whose slots 0 to 9 hold the keys `0` to `9`.
fn filled(config: &Config) -> Manager {
    let mut manager = Manager::new(config.clone()).expect("fits memory");
    let names: Vec<[u8; 1]> = (b'0'..=b'9').map(|name| [name]).collect();
    let keys: Vec<&[u8]> = names.iter().map(<[u8; 1]>::as_slice).collect();
    let outcome = manager.prepare_store(Keys::slices(&keys), None);
    let output = outcome.expect("valid").stored().expect("it fits");
    assert!(output.ticket.slots().iter().copied().eq(0..10));
    manager.complete_store(output.ticket, true);
    manager
}

fn config(policy: PolicyKind) -> Config {
    Config::new(CAPACITY as usize).policy(policy).key_bytes(44)
}

fn rebuild(config: &Config, storage: Storage) -> Manager {
    let manager = Manager::rebuild(config, storage).expect("the same configuration");
    manager.check_invariants().expect("invariants hold");
    manager
}

#[test]
fn a_chunk_that_was_claimed_when_the_engine_died_is_ready() {
    for policy in PolicyKind::ALL {
        let manager = filled(&config(policy));
        for slot in [3, 4] {
            assert_eq!(
                state::claim(manager.records().state(slot)),
                state::Claim::Claimed
            );
        }
        let storage = manager.into_storage().expect("no reader is left");
        let manager = rebuild(&config(policy), storage);
        assert_eq!(manager.stats().evictable, 10);
        assert_eq!(manager.lookup(b"3"), Ok(LookupResult::Hit));
    }
}

#[test]
fn of_two_slots_with_one_key_the_one_touched_first_is_kept() {
    let manager = filled(&config(PolicyKind::Lru));
    manager.records().write_key(7, b"2", None);
    let storage = manager.into_storage().expect("no reader is left");
    let manager = rebuild(&config(PolicyKind::Lru), storage);
    assert_eq!(manager.debug_slot(b"2"), Some(2));
    assert_eq!((manager.stats().ready, manager.stats().free), (9, 11));
}

#[test]
fn a_record_that_is_no_key_is_free() {
    let manager = filled(&config(PolicyKind::Arc));
    manager.records().write_key(1, b"", None);
    let storage = manager.into_storage().expect("no reader is left");
    let manager = rebuild(&config(PolicyKind::Arc), storage);
    assert_eq!(manager.stats().ready, 9);
}

proptest! {
    #[test]
    fn any_bits_in_a_storage_make_an_engine(
        seed in any::<u64>(),
        share in 0..=16u64,
        arc in any::<bool>(),
    ) {
        let config = config(PolicyKind::ALL[usize::from(arc)]);
        let storage = filled(&config).into_storage().expect("no reader is left");
        let mut word = seed;
        let mut next = || {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            word ^ word >> 33
        };
        for cell in storage.records.words().chain(storage.index.words()) {
            if next() >> 20 & 15 < share {
                // Small numbers too, which are likelier to be a phase, a length or a slot.
                cell.store(next() >> (next() % 64), Ordering::Relaxed);
            }
        }
        let mut manager = rebuild(&config, storage);
        let names: Vec<[u8; 2]> = (0..20).map(|n| [b'n', n]).collect();
        let keys: Vec<&[u8]> = names.iter().map(<[u8; 2]>::as_slice).collect();
        let outcome = manager.prepare_store(Keys::slices(&keys), None).expect("valid");
        let output = outcome.stored().expect("nobody holds anything");
        manager.complete_store(output.ticket, true);
        manager.check_invariants().expect("invariants hold");
        prop_assert_eq!(manager.stats().ready, u64::from(CAPACITY));
    }
}
