//! Records: a reader compares the key of a slot while the owner gives the slot to another key.
//!
//! Keys have two words, so that a comparison can meet words of two keys.

use loom::thread;

use super::models;
use crate::slot::state::{self, Claim};
use crate::storage::Records;
use crate::sync::Arc;

const SLOT: u32 = 0;

const TORN: &str = "a key was found that was never stored";
const WRONG: &str = "a key was found in another key's generation";
const MISSED: &str = "a key that was stored is missed";

models! {
    words_of_two_keys_are_no_key: 3, 4_000, [
        NoStateRecheck => TORN,
        KeyStoreRelaxed => TORN,
        KeyLoadRelaxed => TORN,
    ];
    the_length_of_one_key_and_the_words_of_another_are_no_key: 3, 1_000, [
        NoStateRecheck => TORN,
        KeyStoreRelaxed => TORN,
        KeyLoadRelaxed => TORN,
    ];
    a_key_is_found_in_its_own_generation: 3, 6_000, [
        BeginStoreRelaxed => WRONG,
        StateLoadRelaxed => WRONG,
    ];
}

const OLD: &[u8] = b"old wordold tail";
const NEW: &[u8] = b"new wordnew tail";

fn put(records: &Records, key: &[u8]) {
    records.write_key(SLOT, key, None);
    let generation = state::begin_store(records.state(SLOT));
    state::publish(records.state(SLOT), generation);
}

/// Stores `new` over `old` while a reader looks for `wanted`; what it found is handed to `check`, by
/// its generation.
fn look_beside_a_store(old: &[u8], new: &[u8], wanted: &'static [u8], check: fn(Option<u32>)) {
    let records = Arc::new(Records::new(1, 24).unwrap());
    put(&records, old);
    let reader = thread::spawn({
        let records = Arc::clone(&records);
        move || check(records.find(SLOT, wanted).map(|state| state.generation()))
    });
    assert_eq!(state::claim(records.state(SLOT)), Claim::Claimed);
    state::free(records.state(SLOT));
    put(&records, new);
    reader.join().unwrap();
    assert!(records.find(SLOT, new).is_some(), "{MISSED}");
    assert!(records.find(SLOT, old).is_none(), "{TORN}");
}

fn never(found: Option<u32>) {
    assert_eq!(found, None, "{TORN}");
}

fn words_of_two_keys_are_no_key() {
    look_beside_a_store(OLD, NEW, b"new wordold tail", never);
}

fn the_length_of_one_key_and_the_words_of_another_are_no_key() {
    look_beside_a_store(OLD, b"shorter!", b"old word", never);
}

fn a_key_is_found_in_its_own_generation() {
    let wrong = |found: Option<u32>| assert!(matches!(found, None | Some(0)), "{WRONG}");
    look_beside_a_store(OLD, NEW, OLD, wrong);
}
