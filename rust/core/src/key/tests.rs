//! Groups, and lists of keys.

use super::*;

#[test]
fn the_group_is_the_last_four_bytes_big_endian() {
    let key = [&[9; 32][..], &[0, 1, 2, 3]].concat();
    assert_eq!(group(&key, 4), 0x0001_0203);
    assert_eq!(group(&key, 0), 0);
    assert_eq!(group(&[255; 40], 4), u32::MAX);
    // All of a key that is shorter.
    assert_eq!(group(&[7], 4), 7);
    assert_eq!(group(&[1, 0], 4), 256);
    assert_eq!(group(&[], 4), 0);
}

#[test]
fn a_list_gives_its_keys_back_whatever_their_lengths() {
    let mut list = KeyList::with_capacity(3, 8);
    let keys: Vec<Vec<u8>> = (0..40).map(|len| vec![1; len * 7 % 23]).collect();
    for (i, key) in keys.iter().enumerate() {
        if i % 2 == 0 {
            list.push(key);
        } else {
            list.grow().extend_from_slice(key);
            assert_eq!(list.seal(), key);
        }
        assert_eq!(list.len(), i + 1);
    }
    assert!(list.iter().eq(keys.iter().map(Vec::as_slice)));
    assert_eq!(list.iter().len(), 40);
    assert_eq!(list.clone(), list);
}

#[test]
fn the_first_key_that_cannot_be_held_is_named() {
    let keys: [&[u8]; 4] = [b"a", b"abcdef", b"", b"abcdefg"];
    let too_long = |index, len| KeyError::TooLong {
        index,
        len,
        key_bytes: 5,
    };
    assert_eq!(Keys::slices(&keys).check(5), Err(too_long(1, 6)));
    assert_eq!(
        Keys::slices(&keys).check(6),
        Err(KeyError::Empty { index: 2 })
    );
    assert_eq!(Keys::slices(&keys[..2]).check(6), Ok(()));
    let rows = Keys::rows(b"abcdefabcdef", 6).expect("whole rows");
    assert_eq!(rows.check(5), Err(too_long(0, 6)));
    assert_eq!(rows.check(6), Ok(()));
}
