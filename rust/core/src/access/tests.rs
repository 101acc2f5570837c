//! The record of one request.

use super::*;
use crate::hash::KeyHashing;

fn access(group_bytes: usize) -> RequestAccess {
    let hasher = KeyHasher::new(KeyHashing::Seeded(1));
    RequestAccess::new(1, 0, hasher, (36, group_bytes), 3)
}

fn see(access: &mut RequestAccess, key: &[u8]) -> EntryId {
    let id = access.entry_after(None, key);
    access.mark_seen(id);
    id
}

fn sorted(access: &mut RequestAccess) -> Vec<Vec<u8>> {
    access.sort();
    (0..access.seen())
        .map(|i| access.seen_key(i).to_vec())
        .collect()
}

#[test]
fn a_key_has_one_entry_whatever_is_guessed_to_be_next() {
    let mut access = access(0);
    let keys: Vec<Vec<u8>> = (0..500u32)
        .map(|n| n.to_le_bytes()[..1 + n as usize % 4].to_vec())
        .collect();
    let mut ids = std::collections::BTreeMap::new();
    let mut last = None;
    for round in 0..3 {
        for (i, key) in keys.iter().enumerate() {
            let guess = match (i + round) % 4 {
                0 => None,
                1 => Some(0),
                2 => Some(u32::try_from(ids.len()).expect("small") + 5),
                _ => last,
            };
            let id = access.entry_after(guess, key);
            assert_eq!(*ids.entry(key.clone()).or_insert(id), id);
            last = Some(id);
        }
    }
    assert_eq!(access.entries.len(), ids.len());
}

#[test]
fn keys_are_seen_in_the_order_of_their_first_time() {
    let mut access = access(0);
    for key in [&b"c"[..], b"a", b"c", b"b", b"a"] {
        see(&mut access, key);
    }
    assert_eq!(access.seen(), 3);
    assert_eq!(sorted(&mut access), [b"c", b"a", b"b"]);
    assert_eq!(
        (access.seen_key(3), access.seen_key(usize::MAX)),
        (&[][..], &[][..])
    );
}

#[test]
fn what_was_stored_and_then_found_is_stored_and_what_was_found_and_then_stored_is_found() {
    let mut access = access(0);
    let [stored, found, both, neither] = [b"s", b"f", b"b", b"n"].map(|key| see(&mut access, key));
    access.mark_inserted(stored);
    assert!(!access.mark_reused(stored));
    assert!(access.mark_reused(found));
    assert!(!access.mark_reused(found), "once");
    assert!(access.mark_reused(both));
    access.mark_inserted(both);
    let uses: Vec<Access> = (0..4).map(|i| access.use_of(i)).collect();
    assert_eq!(
        uses,
        [
            Access::Inserted,
            Access::Reused,
            Access::Reused,
            Access::Seen
        ]
    );
    assert!(access.mark_store_miss(neither));
    assert!(!access.mark_store_miss(neither));
}

#[test]
fn a_new_epoch_empties_it_but_for_positions() {
    let mut access = access(0);
    access
        .set_positions(Keys::slices(&[b"a", b"b"]), &[2, 1])
        .expect("valid");
    let a = see(&mut access, b"a");
    access.mark_inserted(a);
    access.mark_store_miss(a);
    access.enter_epoch(0);
    assert_eq!(access.seen(), 1, "the same one");
    access.enter_epoch(1);
    assert_eq!((access.seen(), access.gpu_hit()), (0, 3));
    assert_eq!((access.position(a), access.mark_reused(a)), (Some(2), true));
    assert!(access.mark_store_miss(a));
    see(&mut access, b"a");
    see(&mut access, b"b");
    assert_eq!(sorted(&mut access), [b"b", b"a"]);
}

#[test]
fn groups_come_in_order_and_sorting_again_changes_nothing() {
    let mut access = access(4);
    let key = |name: u8, group: u32| [&[name; 4][..], &group.to_be_bytes()].concat();
    let keys = [key(1, 2), key(2, 0), key(3, 1), key(4, 0), key(5, 2)];
    for key in &keys {
        see(&mut access, key);
    }
    let grouped = [1, 3, 2, 0, 4].map(|i: usize| keys[i].clone());
    assert_eq!(sorted(&mut access), grouped);
    assert_eq!(sorted(&mut access), grouped);
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    access
        .set_positions(Keys::slices(&slices[..4]), &[9, 8, 7, 6])
        .expect("valid");
    assert_eq!(
        sorted(&mut access),
        [3, 1, 2, 0, 4].map(|i: usize| keys[i].clone())
    );
    access
        .set_positions(Keys::slices(&slices[4..]), &[7])
        .expect("valid");
    assert_eq!(
        sorted(&mut access),
        [3, 2, 4, 1, 0].map(|i: usize| keys[i].clone())
    );
}

#[test]
fn a_key_that_cannot_be_held_records_no_position() {
    let mut access = access(0);
    let long = [1; 37];
    let told = access.set_positions(Keys::slices(&[b"a", &long]), &[1, 2]);
    assert!(told.is_err() && access.entries.is_empty());
}
