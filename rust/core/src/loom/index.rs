//! The index: lookups of a key while its entry moves.
//!
//! Four buckets of two ways. `insert` itself moves the entry, by a kick: the models fill the buckets
//! so that it must.

use std::ops::ControlFlow;

use loom::thread;

use super::models;
use crate::hash::{KeyHasher, KeyHashing};
use crate::index::{Index, Journal};
use crate::key::Keys;
use crate::mutant::{Mutant, is};
use crate::shared::Storage;
use crate::slot::state;
use crate::storage::Records;
use crate::sync::Arc;

const MISSED: &str = "a resident key is missed while its entry moves";

models! {
    a_key_is_found_while_it_moves_to_its_first_bucket: 4, 6_000, [
        NoMoveRecheck => MISSED,
        MoveClearsFirst => MISSED,
        MoveUncounted => MISSED,
        CountMoveRelaxed => MISSED,
        MovesLoadRelaxed => MISSED,
        EntryStoreRelaxed => MISSED,
        EntryLoadRelaxed => MISSED,
    ];
    a_key_is_found_while_it_moves_to_its_second_bucket: 4, 3_000, [
        MoveClearsFirst => MISSED,
    ];
    a_key_is_found_while_it_moves_there_and_back: 3, 4_000, [
        NoMoveRecheck => MISSED,
        MoveUncounted => MISSED,
    ];
    a_batch_finds_a_key_that_moves: 2, 4_000, [
        BatchNoMoveRecheck => MISSED,
        MoveUncounted => MISSED,
    ];
}

/// Buckets by number, of the four. The two of a key are an even one and an odd one.
const P: u32 = 0;
const Q: u32 = 1;
const R: u32 = 2;
const S: u32 = 3;

/// An index of four buckets over the records of six slots.
struct Table(Storage);

/// Makes keys with wanted places, and slots for them.
#[derive(Default)]
struct Maker {
    keys: u64,
    slots: u32,
}

/// A key and its slot.
#[derive(Clone, Copy)]
struct Entry {
    key: [u8; 8],
    hash: u64,
    slot: u32,
}

impl Table {
    fn new() -> Self {
        Self(Storage {
            index: Index::new(3).unwrap(),
            records: Records::new(6, 8).unwrap(),
            hasher: KeyHasher::new(KeyHashing::Seeded(0)),
        })
    }

    /// The next key with these two candidate buckets, its record written and ready.
    fn make(&self, maker: &mut Maker, first: u32, second: u32) -> Entry {
        let Storage {
            index,
            records,
            hasher,
        } = &self.0;
        loop {
            maker.keys += 1;
            let key = maker.keys.to_le_bytes();
            let hash = hasher.index_hash(&key);
            let place = index.place(hash);
            if (place.first, place.second) == (first, second) {
                let slot = maker.slots;
                maker.slots += 1;
                records.write_key(slot, &key, None);
                let generation = state::begin_store(records.state(slot));
                state::publish(records.state(slot), generation);
                return Entry { key, hash, slot };
            }
        }
    }

    fn insert(&self, entry: Entry) -> Journal {
        let mut journal = Journal::default();
        let inserted = self.0.index.insert(entry.hash, entry.slot, &mut journal);
        inserted.expect("one kick makes room");
        journal
    }

    fn find(&self, entry: Entry) -> Option<u32> {
        let found = self.0.index.find(&self.0.records, entry.hash, &entry.key);
        found.map(|(slot, _)| slot)
    }
}

/// A table where the insertion of the second entry moves the first one from its second bucket to
/// its first.
fn about_to_move_to_first(table: &Table) -> (Entry, Entry) {
    let mut maker = Maker::default();
    let blocker = table.make(&mut maker, P, S);
    let moving = table.make(&mut maker, P, Q);
    table.insert(blocker);
    table.insert(moving);
    for _ in 0..2 {
        table.insert(table.make(&mut maker, R, Q));
    }
    table.insert(table.make(&mut maker, Q, R));
    table.0.index.remove(blocker.hash, blocker.slot);
    (moving, table.make(&mut maker, Q, R))
}

/// A table where the insertion of the second entry moves the first one from its first bucket to its
/// second.
fn about_to_move_to_second(table: &Table) -> (Entry, Entry) {
    let mut maker = Maker::default();
    let moving = table.make(&mut maker, P, Q);
    table.insert(moving);
    for _ in 0..2 {
        table.insert(table.make(&mut maker, S, P));
    }
    table.insert(table.make(&mut maker, P, S));
    (moving, table.make(&mut maker, P, S))
}

type SetUp = fn(&Table) -> (Entry, Entry);
type Look = fn(&Table, Entry, Entry);

/// Inserts an entry that makes another one move, while a reader looks. The insertion may be taken
/// back at once.
fn look_beside_an_insertion(set_up: SetUp, look: Look, and_back: bool) {
    let table = Arc::new(Table::new());
    let (moving, newcomer) = set_up(&table);
    let before = table.0.index.moves();
    let reader = thread::spawn({
        let table = Arc::clone(&table);
        move || look(&table, moving, newcomer)
    });
    let mut journal = table.insert(newcomer);
    if and_back {
        table.0.index.undo(&mut journal);
    }
    reader.join().unwrap();
    let faulty = is(Mutant::MoveUncounted);
    let moves = table.0.index.moves() - before;
    assert!(
        faulty || moves == 1 + u64::from(and_back),
        "the entry was to move"
    );
    assert_eq!(table.find(moving), Some(moving.slot), "{MISSED}");
    assert_eq!(table.find(newcomer).is_some(), !and_back, "{MISSED}");
}

fn find_it(table: &Table, moving: Entry, _: Entry) {
    assert_eq!(table.find(moving), Some(moving.slot), "{MISSED}");
}

fn a_key_is_found_while_it_moves_to_its_first_bucket() {
    look_beside_an_insertion(about_to_move_to_first, find_it, false);
}

fn a_key_is_found_while_it_moves_to_its_second_bucket() {
    look_beside_an_insertion(about_to_move_to_second, find_it, false);
}

fn a_key_is_found_while_it_moves_there_and_back() {
    look_beside_an_insertion(about_to_move_to_second, find_it, true);
}

fn a_batch_finds_a_key_that_moves() {
    let find_both = |table: &Table, moving: Entry, newcomer: Entry| {
        let Storage {
            index,
            records,
            hasher,
        } = &table.0;
        let keys: [&[u8]; 2] = [&moving.key, &newcomer.key];
        let mut first = None;
        let _: ControlFlow<()> =
            index.find_each(records, *hasher, Keys::slices(&keys), |i, found| {
                first = first.or((i == 0).then(|| found.slot()));
                ControlFlow::Continue(())
            });
        assert_eq!(first, Some(Some(moving.slot)), "{MISSED}");
    };
    look_beside_an_insertion(about_to_move_to_first, find_both, false);
}
