//! The state word: pins of readers against the owner that claims, frees, stores and publishes.

use loom::thread;

use super::{RACE, make_chunks, models, read_chunk, write_chunk};
use crate::notice::Notices;
use crate::shared::unpin_and_notify;
use crate::slot::state::{self, Claim, PinAnswer, Unpin};
use crate::storage::Records;
use crate::sync::Arc;

const SLOT: u32 = 0;
const A: u64 = 0xaaaa;
const B: u64 = 0xbbbb;

const OTHER: &str = "a pinned slot holds another chunk";
const LOST: &str = "a pin was lost";
const STALE: &str = "a pin of before a reset was not told";

models! {
    a_pinned_slot_keeps_its_chunk: 3, 6_000, [
        TransitionNotAtomic => RACE,
        PinIgnoresGeneration => OTHER,
        PinIgnoresPhase => RACE,
        ClaimIgnoresPins => RACE,
        UnpinRelaxed => RACE,
        FreeRelaxed => RACE,
        FreeKeepsGeneration => OTHER,
    ];
    a_chunk_is_visible_to_whoever_pins_it: 5, 400, [
        PinRelaxed => RACE,
        PublishRelaxed => RACE,
    ];
    a_chunk_given_back_is_pinned_as_before: 4, 1_000, [
        PinIgnoresPhase => LOST,
    ];
    a_slot_is_reused_after_both_readers_let_go: 3, 1_000, [
        UnpinRelaxed => RACE,
    ];
    a_slot_parked_for_two_readers_gets_a_notice: 2, 4_000, [
        NoNotice => LOST,
        ParkUnconditionally => LOST,
        ParkNotRetried => LOST,
    ];
    a_late_unpin_leaves_the_next_chunk_pinned: 4, 1_000, [
        UnpinIgnoresGeneration => STALE,
    ];
}

fn empty() -> Arc<Records> {
    make_chunks();
    Arc::new(Records::new(1, 8).unwrap())
}

/// Stores a chunk in the slot, which is free: record, bytes, publication.
fn store(records: &Records, key: u64) -> u32 {
    records.write_key(SLOT, &key.to_le_bytes(), None);
    let generation = state::begin_store(records.state(SLOT));
    write_chunk(SLOT, key);
    state::publish(records.state(SLOT), generation);
    generation
}

/// Pins, reads and unpins as [`crate::Reader`] does; what the pin answered, if the key was found.
fn read_pinned(records: &Records, key: u64) -> Option<PinAnswer> {
    let seen = records.find(SLOT, &key.to_le_bytes())?;
    let answer = state::try_pin(records.state(SLOT), seen.generation());
    if answer == PinAnswer::Pinned {
        assert_eq!(read_chunk(SLOT), key, "{OTHER}");
        let unpinned = state::unpin(records.state(SLOT), seen.generation());
        assert_ne!(unpinned, Unpin::Stale, "{LOST}");
    }
    Some(answer)
}

/// Stores `key` in place of what is there, unless somebody holds that.
fn replace(records: &Records, key: u64) -> bool {
    let claimed = state::claim(records.state(SLOT)) == Claim::Claimed;
    if claimed {
        state::free(records.state(SLOT));
        store(records, key);
    }
    claimed
}

fn a_pinned_slot_keeps_its_chunk() {
    let records = empty();
    store(&records, A);
    let reader = thread::spawn({
        let records = Arc::clone(&records);
        move || read_pinned(&records, A)
    });
    let replaced = replace(&records, B);
    let answer = reader.join().unwrap();
    assert!(replaced || answer == Some(PinAnswer::Pinned), "{LOST}");
    assert_eq!(state::load(records.state(SLOT)).pins(), 0, "{LOST}");
    assert!(replaced || replace(&records, B), "{LOST}");
}

fn a_chunk_is_visible_to_whoever_pins_it() {
    let records = empty();
    let reader = thread::spawn({
        let records = Arc::clone(&records);
        move || read_pinned(&records, A)
    });
    store(&records, A);
    reader.join().unwrap();
    assert_eq!(read_pinned(&records, A), Some(PinAnswer::Pinned));
}

fn a_chunk_given_back_is_pinned_as_before() {
    let records = empty();
    store(&records, A);
    let reader = thread::spawn({
        let records = Arc::clone(&records);
        move || {
            let answer = read_pinned(&records, A);
            assert!(
                matches!(answer, Some(PinAnswer::Pinned | PinAnswer::Busy)),
                "a chunk that stays is found"
            );
        }
    });
    if state::claim(records.state(SLOT)) == Claim::Claimed {
        assert_eq!(state::load(records.state(SLOT)).pins(), 0, "{LOST}");
        state::restore(records.state(SLOT));
    }
    reader.join().unwrap();
    assert!(replace(&records, B), "{LOST}");
}

fn a_slot_is_reused_after_both_readers_let_go() {
    let records = empty();
    let generation = store(&records, A);
    let readers = [(); 2].map(|()| {
        let records = Arc::clone(&records);
        assert_eq!(
            state::try_pin(records.state(SLOT), generation),
            PinAnswer::Pinned
        );
        thread::spawn(move || {
            assert_eq!(read_chunk(SLOT), A, "{OTHER}");
            state::unpin(records.state(SLOT), generation)
        })
    });
    let replaced = replace(&records, B);
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Unpin::Released, "{LOST}");
    }
    assert!(replaced || replace(&records, B), "{LOST}");
}

fn a_slot_parked_for_two_readers_gets_a_notice() {
    let records = empty();
    let generation = store(&records, A);
    let notices = Arc::new(Notices::new(1).unwrap());
    let readers = [(); 2].map(|()| {
        let shared = (Arc::clone(&records), Arc::clone(&notices));
        thread::spawn(move || {
            let (records, notices) = shared;
            if state::try_pin(records.state(SLOT), generation) == PinAnswer::Pinned {
                assert_eq!(read_chunk(SLOT), A, "{OTHER}");
                unpin_and_notify(&records, &notices, SLOT, generation);
            }
        })
    });
    let claim = state::claim_or_park(records.state(SLOT));
    if claim == Claim::Claimed {
        state::free(records.state(SLOT));
        store(&records, B);
    }
    readers.into_iter().for_each(|r| r.join().unwrap());
    let mut noticed = false;
    notices.drain(|_| noticed = true);
    assert_eq!(noticed, claim == Claim::Pinned, "{LOST}");
}

fn a_late_unpin_leaves_the_next_chunk_pinned() {
    let records = empty();
    let old = store(&records, A);
    assert_eq!(state::try_pin(records.state(SLOT), old), PinAnswer::Pinned);
    let reader = thread::spawn({
        let records = Arc::clone(&records);
        move || state::unpin(records.state(SLOT), old)
    });
    // A fenced reset: the slot changes hands under the pin.
    state::free(records.state(SLOT));
    let new = store(&records, B);
    assert_eq!(state::try_pin(records.state(SLOT), new), PinAnswer::Pinned);
    let unpinned = reader.join().unwrap();
    assert_eq!(state::load(records.state(SLOT)).pins(), 1, "{STALE}");
    assert!(unpinned != Unpin::LastOfParked);
}
