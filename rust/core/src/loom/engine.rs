//! Whole verbs of the owner beside readers, over a tier of one or two slots.

use loom::thread;

use super::{RACE, make_chunks, models, read_chunk, write_chunk};
use crate::config::Config;
use crate::hash::KeyHashing;
use crate::key::Keys;
use crate::manager::{Manager, ResetMode};
use crate::reader::{Pin, Reader, TryPin, Unpinned};
use crate::shared::LookupResult;
use crate::ticket::{LoadTicket, StoreTicket};

const A: u64 = 0xaaaa;
const B: u64 = 0xbbbb;
const C: u64 = 0xcccc;

const OTHER: &str = "a pinned slot holds another chunk";
const STUCK: &str = "a slot does not come back";
const STALE: &str = "a pin of before a reset was not told";
const MISSED: &str = "a resident key is missed";

models! {
    a_reader_pins_while_the_owner_evicts: 2, 8_000, [
        TransitionNotAtomic => RACE,
        PinIgnoresGeneration => OTHER,
        PinIgnoresPhase => RACE,
        ClaimIgnoresPins => RACE,
        UnpinRelaxed => RACE,
    ];
    a_slot_that_a_reader_held_comes_back: 4, 400, [
        NoNotice => STUCK,
        ParkUnconditionally => STUCK,
        ParkNotRetried => STUCK,
    ];
    a_dropped_chunk_leaves_with_its_last_reader: 4, 900, [
        NoNotice => STUCK,
        ParkUnconditionally => STUCK,
        ParkNotRetried => STUCK,
    ];
    a_reset_drains_what_a_reader_pins: 2, 40_000, [
        DrainUnconditionally => STUCK,
        DrainNotClaimed => RACE,
    ];
    a_slot_drains_by_the_owner_or_a_reader: 3, 2_000, [
        ParkDrainingUnconditionally => STUCK,
        FreeRelaxed => RACE,
    ];
    a_fenced_reset_outdates_pins: 3, 600, [
        UnpinIgnoresGeneration => STALE,
    ];
    a_cancelled_store_is_never_pinned: 2, 1_000, [
        PinIgnoresPhase => OTHER,
    ];
    lookups_beside_an_eviction_miss_nothing_resident: 2, 3_000, [];
}

fn tier(capacity: usize) -> Manager {
    let config = Config::new(capacity)
        .key_bytes(8)
        .group_bytes(0)
        .hashing(KeyHashing::Seeded(0))
        .touch_log_capacity(1);
    make_chunks();
    Manager::new(config).unwrap()
}

fn offer(manager: &mut Manager, key: u64) -> Option<StoreTicket> {
    let keys: [&[u8]; 1] = [&key.to_le_bytes()];
    let outcome = manager.prepare_store(Keys::slices(&keys), None).unwrap();
    outcome.stored().map(|output| output.ticket)
}

/// Writes the bytes of what was offered, and completes it.
fn transfer(manager: &mut Manager, key: u64, ticket: StoreTicket) {
    ticket
        .slots()
        .iter()
        .for_each(|&slot| write_chunk(slot, key));
    manager.complete_store(ticket, true);
}

fn store(manager: &mut Manager, key: u64) -> bool {
    let ticket = offer(manager, key);
    let stored = ticket.is_some();
    ticket
        .into_iter()
        .for_each(|ticket| transfer(manager, key, ticket));
    stored
}

fn load(manager: &mut Manager, key: u64) -> LoadTicket {
    let keys: [&[u8]; 1] = [&key.to_le_bytes()];
    manager.prepare_load(Keys::slices(&keys), None).unwrap()
}

fn pin(reader: &Reader, key: u64) -> Option<Pin> {
    match reader.try_pin(&key.to_le_bytes()).unwrap() {
        TryPin::Pinned(pin) => Some(pin),
        TryPin::Pending | TryPin::Busy | TryPin::Miss => None,
    }
}

/// Reads a pinned slot and gives the pin back.
fn read(reader: &Reader, key: u64, pin: Pin) -> Unpinned {
    assert_eq!(read_chunk(pin.slot()), key, "{OTHER}");
    reader.unpin(pin)
}

fn read_if_there(reader: &Reader, key: u64) {
    if let Some(pin) = pin(reader, key) {
        assert_eq!(read(reader, key, pin), Unpinned::Released, "{OTHER}");
    }
}

fn lookup(reader: &Reader, key: u64) -> LookupResult {
    reader.lookup(&key.to_le_bytes()).unwrap()
}

/// Nobody holds anything any more: one slot can be had, and everything adds up.
fn settled(manager: &mut Manager) {
    assert!(store(manager, C), "{STUCK}");
    assert_eq!(manager.stats().draining, 0, "{STUCK}");
    assert_eq!(manager.check_invariants(), Ok(()), "{STUCK}");
}

fn a_reader_pins_while_the_owner_evicts() {
    let mut manager = tier(1);
    store(&mut manager, A);
    let reader = manager.reader();
    let reader = thread::spawn(move || read_if_there(&reader, A));
    store(&mut manager, B);
    reader.join().unwrap();
    settled(&mut manager);
}

fn a_slot_that_a_reader_held_comes_back() {
    let mut manager = tier(1);
    store(&mut manager, A);
    let reader = manager.reader();
    let held = pin(&reader, A).unwrap();
    let reader = thread::spawn(move || read(&reader, A, held));
    store(&mut manager, B);
    assert_eq!(reader.join().unwrap(), Unpinned::Released);
    settled(&mut manager);
}

fn a_dropped_chunk_leaves_with_its_last_reader() {
    let mut manager = tier(1);
    store(&mut manager, A);
    let reader = manager.reader();
    let held = pin(&reader, A).unwrap();
    let reader = thread::spawn(move || read(&reader, A, held));
    let keys: [&[u8]; 1] = [&A.to_le_bytes()];
    manager.drop_keys(Keys::slices(&keys)).unwrap();
    assert_eq!(reader.join().unwrap(), Unpinned::Released);
    // Settles what the reader left.
    manager.touch(Keys::slices(&[])).unwrap();
    assert_eq!(
        (manager.stats().free, manager.stats().dropped),
        (1, 1),
        "{STUCK}"
    );
    settled(&mut manager);
}

fn a_reset_drains_what_a_reader_pins() {
    let mut manager = tier(1);
    store(&mut manager, A);
    let reader = manager.reader();
    let reader = thread::spawn(move || read_if_there(&reader, A));
    manager.reset_cache(ResetMode::Drain);
    store(&mut manager, B);
    reader.join().unwrap();
    settled(&mut manager);
}

fn a_slot_drains_by_the_owner_or_a_reader() {
    let mut manager = tier(1);
    store(&mut manager, A);
    let loading = load(&mut manager, A);
    let reader = manager.reader();
    let held = pin(&reader, A).unwrap();
    let reader = thread::spawn(move || read(&reader, A, held));
    manager.reset_cache(ResetMode::Drain);
    manager.complete_load(loading);
    store(&mut manager, B);
    assert_eq!(reader.join().unwrap(), Unpinned::Released);
    settled(&mut manager);
}

fn a_fenced_reset_outdates_pins() {
    let mut manager = tier(1);
    store(&mut manager, A);
    let reader = manager.reader();
    let (late, again) = (pin(&reader, A).unwrap(), reader.clone());
    manager.reset_cache(ResetMode::Fenced);
    let reader = thread::spawn(move || reader.unpin(late));
    store(&mut manager, B);
    let held = pin(&again, B).unwrap();
    assert_eq!(reader.join().unwrap(), Unpinned::Stale, "{STALE}");
    assert!(!store(&mut manager, C), "{STALE}");
    assert_eq!(read(&again, B, held), Unpinned::Released);
    settled(&mut manager);
}

fn a_cancelled_store_is_never_pinned() {
    let mut manager = tier(1);
    let reader = manager.reader();
    let reader = thread::spawn(move || assert_eq!(pin(&reader, A), None, "{OTHER}"));
    let ticket = offer(&mut manager, A).unwrap();
    manager.cancel_store(&ticket);
    transfer(&mut manager, A, ticket);
    reader.join().unwrap();
    settled(&mut manager);
}

fn lookups_beside_an_eviction_miss_nothing_resident() {
    let mut manager = tier(2);
    store(&mut manager, A);
    store(&mut manager, B);
    let loading = load(&mut manager, B);
    let reader = manager.reader();
    let reader = thread::spawn(move || {
        assert_eq!(lookup(&reader, B), LookupResult::Hit, "{MISSED}");
        if lookup(&reader, C) != LookupResult::Miss {
            assert_eq!(lookup(&reader, A), LookupResult::Miss, "{OTHER}");
        }
    });
    store(&mut manager, C);
    reader.join().unwrap();
    manager.complete_load(loading);
    settled(&mut manager);
}
