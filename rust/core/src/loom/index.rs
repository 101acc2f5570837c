//! The index: lookups of a key while its entry moves.
//!
//! Three buckets of two ways. `insert` itself moves the entry, by a kick: the models fill the buckets so that it must.

use std::ops::ControlFlow;

use loom::thread;

use super::models;
use crate::hash::{KeyHasher, KeyHashing};
use crate::index::Index;
use crate::key::Keys;
use crate::mutant::{Mutant, is};
use crate::slot::state;
use crate::storage::Records;
use crate::sync::Arc;

const MISSED: &str = "a resident key is missed while its entry moves";

models! {
    a_key_is_found_while_it_moves_to_its_first_bucket: 4, 13_000, [
        NoMoveRecheck => MISSED,
        MoveClearsFirst => MISSED,
        MoveUncounted => MISSED,
        CountMoveRelaxed => MISSED,
        MovesLoadRelaxed => MISSED,
        EntryStoreRelaxed => MISSED,
        EntryLoadRelaxed => MISSED,
    ];
    a_key_is_found_while_it_moves_to_its_second_bucket: 4, 7_200, [
        MoveClearsFirst => MISSED,
    ];
    a_key_is_found_while_it_moves_there_and_back: 2, 5_200, [
        NoMoveRecheck => MISSED,
        MoveUncounted => MISSED,
    ];
    a_batch_finds_a_key_that_moves: 2, 9_500, [
        BatchNoMoveRecheck => MISSED,
        MoveUncounted => MISSED,
    ];
}

/// Buckets by number, of the three.
const P: u32 = 0;
const Q: u32 = 1;
const R: u32 = 2;

/// An index of three buckets over the records of seven slots.
struct Table {
    index: Index,
    records: Records,
    hasher: KeyHasher,
}

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
        Self {
            index: Index::new(4).unwrap(),
            records: Records::new(7, 8).unwrap(),
            hasher: KeyHasher::new(KeyHashing::Seeded(0)),
        }
    }

    /// The next key with these two candidate buckets, its record written and ready.
    fn make(&self, maker: &mut Maker, first: u32, second: u32) -> Entry {
        loop {
            maker.keys += 1;
            let key = maker.keys.to_le_bytes();
            let hash = self.hasher.index_hash(&key);
            let place = self.index.place(hash);
            if (place.first, place.second) == (first, second) {
                let slot = maker.slots;
                maker.slots += 1;
                self.records.write_key(slot, &key, None);
                let generation = state::begin_store(self.records.state(slot));
                state::publish(self.records.state(slot), generation);
                return Entry { key, hash, slot };
            }
        }
    }

    fn insert(&self, entry: Entry) {
        self.index
            .insert(&self.records, self.hasher, entry.hash, entry.slot)
            .expect("one kick makes room");
    }

    fn remove(&self, entry: Entry) {
        self.index.remove(entry.hash, entry.slot);
    }

    fn find(&self, entry: Entry) -> Option<u32> {
        let found = self.index.find(&self.records, entry.hash, &entry.key);
        found.map(|(slot, _)| slot)
    }
}

/// A table where the insertion of the second entry moves the first one from its second bucket to its first.
fn about_to_move_back(table: &Table) -> (Entry, Entry) {
    let mut maker = Maker::default();
    let blocker = table.make(&mut maker, P, R);
    let moving = table.make(&mut maker, P, Q);
    table.insert(blocker);
    table.insert(moving);
    for _ in 0..2 {
        table.insert(table.make(&mut maker, R, Q));
    }
    table.insert(table.make(&mut maker, Q, R));
    table.remove(blocker);
    let newcomer = table.make(&mut maker, Q, R);
    (moving, newcomer)
}

/// A table where the insertion of the second entry moves the first one from its first bucket to its second, and, the
/// second having left, that of the third moves it back.
fn about_to_move_on(table: &Table) -> (Entry, Entry, Entry) {
    let mut maker = Maker::default();
    let moving = table.make(&mut maker, P, Q);
    table.insert(moving);
    for _ in 0..2 {
        table.insert(table.make(&mut maker, R, P));
    }
    table.insert(table.make(&mut maker, P, R));
    table.insert(table.make(&mut maker, Q, R));
    let newcomer = table.make(&mut maker, P, R);
    (moving, newcomer, table.make(&mut maker, Q, R))
}

fn look_beside_an_insertion(set_up: fn(&Table) -> (Entry, Entry), look: fn(&Table, Entry, Entry)) {
    let table = Arc::new(Table::new());
    let (moving, newcomer) = set_up(&table);
    let reader = thread::spawn({
        let table = Arc::clone(&table);
        move || look(&table, moving, newcomer)
    });
    table.insert(newcomer);
    reader.join().unwrap();
    let moves = u64::from(!is(Mutant::MoveUncounted));
    assert_eq!(table.index.moves(), moves, "the entry was to move");
    assert_eq!(table.find(newcomer), Some(newcomer.slot), "{MISSED}");
}

fn find_it(table: &Table, moving: Entry, _: Entry) {
    assert_eq!(table.find(moving), Some(moving.slot), "{MISSED}");
}

fn a_key_is_found_while_it_moves_to_its_first_bucket() {
    look_beside_an_insertion(about_to_move_back, find_it);
}

fn a_key_is_found_while_it_moves_to_its_second_bucket() {
    let set_up = |table: &Table| {
        let (moving, newcomer, _) = about_to_move_on(table);
        (moving, newcomer)
    };
    look_beside_an_insertion(set_up, find_it);
}

fn a_key_is_found_while_it_moves_there_and_back() {
    let table = Arc::new(Table::new());
    let (moving, newcomer, last) = about_to_move_on(&table);
    let reader = thread::spawn({
        let table = Arc::clone(&table);
        move || find_it(&table, moving, newcomer)
    });
    table.insert(newcomer);
    table.remove(newcomer);
    table.insert(last);
    reader.join().unwrap();
    let moves = 2 * u64::from(!is(Mutant::MoveUncounted));
    assert_eq!(table.index.moves(), moves, "the entry was to move twice");
    find_it(&table, moving, newcomer);
}

fn a_batch_finds_a_key_that_moves() {
    look_beside_an_insertion(about_to_move_back, |table, moving, newcomer| {
        let keys: [&[u8]; 2] = [&moving.key, &newcomer.key];
        let mut first = None;
        let _: ControlFlow<()> = table.index.find_each(
            &table.records,
            table.hasher,
            Keys::Slices(&keys),
            |i, found| {
                first = first.or((i == 0).then(|| found.slot()));
                ControlFlow::Continue(())
            },
        );
        assert_eq!(first, Some(Some(moving.slot)), "{MISSED}");
    });
}
