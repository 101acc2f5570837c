//! Which keys an engine holds, and that a key is its bytes and its length.

use kvferry::{
    Config, KeyError, KeyHashing, KeyList, Keys, LoadError, LookupResult, Manager, PrefixHits,
    StoreError, TryPin,
};

use crate::common::{Chunks, Numbers, begin_store, engine, look, owned, store};

const HASHINGS: [KeyHashing; 3] = [
    KeyHashing::Random,
    KeyHashing::Seeded(3),
    KeyHashing::Uniform,
];

/// What every verb that takes keys says to these.
fn errors(manager: &mut Manager, chunks: &Chunks) -> Vec<KeyError> {
    let reader = manager.reader();
    let mut access = manager.begin_request(0, 0);
    let mut out = Vec::new();
    let positions = vec![0; chunks.len()];
    chunks.with(|keys| {
        let store = manager.prepare_store(keys, None).expect_err("a bad key");
        let load = manager.prepare_load(keys, None).expect_err("a bad key");
        let done = manager.complete_load_keys(keys).expect_err("a bad key");
        let StoreError::Key(store) = store else {
            panic!("{store}")
        };
        let (LoadError::Key(load), LoadError::Key(done)) = (load, done) else {
            panic!("not about the key")
        };
        vec![
            store,
            load,
            done,
            manager.lookup_prefix(keys).expect_err("a bad key"),
            manager.lookup_each(keys, &mut out).expect_err("a bad key"),
            manager.touch(keys).expect_err("a bad key"),
            manager.drop_keys(keys).expect_err("a bad key"),
            manager
                .complete_store_keys(keys, true)
                .expect_err("a bad key"),
            reader.lookup_prefix(keys).expect_err("a bad key"),
            reader.lookup_each(keys, &mut out).expect_err("a bad key"),
            reader.touch(keys).expect_err("a bad key"),
            access
                .set_positions(keys, &positions)
                .expect_err("a bad key"),
        ]
    })
}

#[test]
fn an_empty_key_is_refused_by_every_verb_wherever_it_stands() {
    let mut manager = engine(Config::new(4));
    store(&mut manager, &Chunks::of(&[b"a", b"b"]));
    let before = look(&manager);
    for index in 0..3 {
        let mut keys = vec![b"a".to_vec(), b"b".to_vec()];
        keys.insert(index, Vec::new());
        let told = errors(&mut manager, &Chunks(keys));
        assert!(
            told.iter().all(|error| *error == KeyError::Empty { index }),
            "{told:?}"
        );
    }
    assert_eq!(manager.lookup(b""), Err(KeyError::Empty { index: 0 }));
    assert_eq!(
        manager.reader().try_pin(b""),
        Err(KeyError::Empty { index: 0 })
    );
    assert_eq!(look(&manager), before);
}

#[test]
fn a_key_that_is_too_long_is_refused_by_every_verb() {
    for (key_bytes, len) in [
        (36, 37),
        (36, 4096),
        (1, 2),
        (40, 41),
        (1024, 1025),
        (1024, 70_000),
    ] {
        let mut manager = engine(Config::new(4).key_bytes(key_bytes));
        store(&mut manager, &Chunks::of(&[b"a"]));
        let before = look(&manager);
        let long = vec![b'a'; len];
        let told = errors(&mut manager, &Chunks(vec![b"a".to_vec(), long.clone()]));
        let expected = KeyError::TooLong {
            index: 1,
            len,
            key_bytes,
        };
        assert!(told.iter().all(|error| *error == expected), "{told:?}");
        assert!(manager.lookup(&long).is_err() && manager.reader().lookup(&long).is_err());
        let rows = Keys::rows(&long, len).expect("one row");
        assert!(manager.touch(rows).is_err());
        assert_eq!(look(&manager), before);
    }
}

#[test]
fn a_key_of_any_length_up_to_the_limit_is_held_as_it_is() {
    for key_bytes in [1, 4, 7, 8, 36, 39, 40, 41, 48, 104, 105, 1024] {
        for hashing in HASHINGS {
            let mut manager = engine(Config::new(key_bytes).key_bytes(key_bytes).hashing(hashing));
            let all: Vec<Vec<u8>> = (1..=key_bytes).map(|len| vec![0; len]).collect();
            // With their own bytes as hash, sixteen such keys share all there is.
            for keys in all.chunks(16) {
                let keys = Chunks(keys.to_vec());
                manager.reset_cache(kvferry::ResetMode::Fenced);
                let slots = begin_store(&mut manager, &keys).ticket;
                assert_eq!(slots.slots().len(), keys.len());
                for key in &all {
                    let known = keys.0.contains(key);
                    let expected = if known {
                        LookupResult::HitPending
                    } else {
                        LookupResult::Miss
                    };
                    assert_eq!(manager.lookup(key), Ok(expected));
                }
                assert_eq!(manager.debug_lists().t1, keys.0);
                manager.complete_store(slots, true);
                look(&manager);
            }
        }
    }
}

#[test]
fn keys_that_differ_in_length_or_in_one_bit_are_different_keys() {
    for key_bytes in [36, 100] {
        for hashing in HASHINGS {
            let mut manager = engine(Config::new(8).key_bytes(key_bytes).hashing(hashing));
            let stored: [&[u8]; 3] = [b"1", b"ab\0", &[7; 36]];
            store(&mut manager, &Chunks::of(&stored));
            let mut others: Vec<Vec<u8>> =
                [&b"1\0"[..], b"1\0\0\0\0\0\0\0", b"\x001", b"ab", b"ab\0\0"]
                    .map(<[u8]>::to_vec)
                    .into();
            others.extend((0..288).map(|bit| {
                let mut key = vec![7; 36];
                key[bit / 8] ^= 1 << (bit % 8);
                key
            }));
            others.extend([vec![7; 35], vec![7; 28], vec![7; 32]]);
            for other in &others {
                assert_eq!(manager.lookup(other), Ok(LookupResult::Miss), "{other:?}");
                assert_eq!(manager.reader().try_pin(other), Ok(TryPin::Miss));
            }
            let mut found = Vec::new();
            let others = Chunks(others);
            others
                .with(|keys| manager.lookup_each(keys, &mut found))
                .expect("valid");
            assert!(found.iter().all(|result| *result == LookupResult::Miss));
            for key in stored {
                assert_eq!(manager.lookup(key), Ok(LookupResult::Hit));
            }
        }
    }
}

#[test]
fn a_key_of_several_lines_is_compared_to_its_last_byte() {
    let mut manager = engine(Config::new(60).key_bytes(300));
    let mut numbers = Numbers(8);
    let long: Vec<u8> = (0..300)
        .map(|_| numbers.below(256).to_le_bytes()[0])
        .collect();
    store(&mut manager, &Chunks(vec![long.clone()]));
    for at in 0..300 {
        let mut other = long.clone();
        other[at] ^= 1;
        assert_eq!(manager.lookup(&other), Ok(LookupResult::Miss), "byte {at}");
        assert_eq!(
            manager
                .lookup(&long[..at + 1])
                .is_ok_and(|r| r == LookupResult::Hit),
            at == 299
        );
    }
}

#[test]
fn rows_and_slices_are_the_same_keys() {
    let chunks = Chunks::numbered(0..200);
    let bytes = chunks.0.concat();
    let rows = Keys::rows(&bytes, 36).expect("whole rows");
    let mut by_rows = engine(Config::new(150).hashing(KeyHashing::Seeded(1)).events(true));
    let mut by_slices = engine(Config::new(150).hashing(KeyHashing::Seeded(1)).events(true));
    let head = Keys::rows(&bytes[..100 * 36], 36).expect("whole rows");
    let output = by_rows
        .prepare_store(head, None)
        .expect("valid")
        .stored()
        .expect("fits");
    by_rows.complete_store(output.ticket, true);
    store(&mut by_slices, &Chunks(chunks.0[..100].to_vec()));
    assert_eq!(look(&by_rows), look(&by_slices));
    let hits = PrefixHits {
        ready: 100,
        known: 100,
    };
    assert_eq!(by_rows.lookup_prefix(rows), Ok(hits));
    assert_eq!(chunks.with(|keys| by_rows.lookup_prefix(keys)), Ok(hits));
    assert_eq!(by_rows.take_events(), by_slices.take_events());
    assert!(rows.iter().eq(chunks.0.iter().map(Vec::as_slice)));
    assert!(
        rows.iter()
            .rev()
            .eq(chunks.0.iter().rev().map(Vec::as_slice))
    );
}

#[test]
fn rows_that_are_not_whole_are_refused() {
    for (bytes, width) in [(35, 36), (37, 36), (0, 0), (5, 0), (1, 2)] {
        let array = vec![1; bytes];
        let refused = Keys::rows(&array, width).expect_err("not whole rows");
        assert_eq!(refused, KeyError::Rows { bytes, width });
    }
    let none = Keys::rows(&[], 36).expect("no rows are whole");
    assert!(none.is_empty() && none.iter().next().is_none());
    // Rows of a width that the engine cannot hold are no fault if there are none of them.
    let manager = engine(Config::new(1));
    let none = Keys::rows(&[], 5000).expect("no rows are whole");
    assert_eq!(manager.lookup_prefix(none), Ok(PrefixHits::default()));
}

#[test]
fn a_key_beyond_the_last_is_empty() {
    let bytes = [1, 2, 3, 4];
    let rows = Keys::rows(&bytes, 2).expect("two rows");
    let keys: [&[u8]; 2] = [&bytes[..2], &bytes[2..]];
    for keys in [rows, Keys::slices(&keys)] {
        assert_eq!((keys.len(), keys.get(1)), (2, &bytes[2..]));
        for beyond in [
            2,
            3,
            usize::MAX / 2,
            usize::MAX / 2 + 1,
            usize::MAX - 1,
            usize::MAX,
        ] {
            assert_eq!(keys.get(beyond), b"");
        }
    }
}

#[test]
fn lists_of_keys_keep_keys_of_different_lengths_apart() {
    let mut manager = engine(Config::new(3));
    let old = Chunks::of(&[b"a", b"bcd", b"ef"]);
    store(&mut manager, &old);
    let output = begin_store(&mut manager, &Chunks::of(&[b"x", b"yz", b"w"]));
    assert_eq!(owned(&output.evicted), old.0);
    assert_eq!(
        (output.evicted.len(), output.evicted.is_empty()),
        (3, false)
    );
    assert!(KeyList::default().is_empty() && KeyList::default().iter().next().is_none());
}
