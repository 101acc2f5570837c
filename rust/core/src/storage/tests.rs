//! Records: every key comes back as it was written, and is found only as itself.

use super::*;

fn key(len: usize, salt: u8) -> Vec<u8> {
    let byte = |i: usize| salt ^ u8::try_from(i * 31 % 251).expect("below 251");
    (0..len).map(byte).collect()
}

fn read(records: &Records, slot: u32) -> Vec<u8> {
    let mut key = Vec::new();
    records.read_key(slot, &mut key);
    key
}

#[test]
fn a_record_of_a_key_of_up_to_40_bytes_is_one_line() {
    for (key_bytes, lines) in [
        (1, 1),
        (36, 1),
        (40, 1),
        (41, 2),
        (104, 2),
        (105, 3),
        (1024, 17),
    ] {
        let records = Records::new(3, key_bytes).expect("fits memory");
        assert_eq!(records.memory_bytes(), 3 * lines * 64, "{key_bytes}");
        assert_eq!((records.capacity(), records.key_bytes()), (3, key_bytes));
    }
}

#[test]
fn keys_of_every_length_are_read_as_they_were_written_and_touch_no_neighbour() {
    for key_bytes in [1, 7, 8, 9, 36, 40, 41, 104, 200] {
        let records = Records::new(3, key_bytes).expect("fits memory");
        for len in (1..=key_bytes).chain((1..=key_bytes).rev()) {
            let keys = [3, 5, 7].map(|salt| key(len, salt));
            for (slot, key) in (0..).zip(&keys) {
                records.write_key(slot, key, Some(9));
            }
            for (slot, key) in (0..).zip(&keys) {
                assert_eq!(read(&records, slot), *key);
                assert!(records.key_is(slot, key));
                assert_eq!(state::load(records.state(slot)), State::from_raw(0));
            }
            // Reading appends.
            let mut out = b"before".to_vec();
            records.read_key(1, &mut out);
            assert_eq!(out, [b"before".as_slice(), &keys[1]].concat());
        }
    }
}

#[test]
fn a_key_is_itself_alone() {
    let records = Records::new(1, 50).expect("fits memory");
    for len in 1..=50 {
        // What is left of a longer key before does not count.
        records.write_key(0, &key(50, 1), None);
        let its = key(len, 2);
        records.write_key(0, &its, None);
        for other in 1..=50 {
            assert_eq!(records.key_is(0, &key(other, 2)), other == len);
        }
        for at in 0..len {
            for bit in 0..8 {
                let mut other = its.clone();
                other[at] ^= 1 << bit;
                assert!(!records.key_is(0, &other));
            }
        }
        let mut padded = its.clone();
        padded.push(0);
        assert!(!records.key_is(0, &padded));
    }
}

#[test]
fn a_key_is_found_while_its_slot_is_visible_and_in_the_generation_that_was_seen() {
    let records = Records::new(2, 36).expect("fits memory");
    let its = key(36, 2);
    let word = records.state(0);
    records.write_key(0, &its, None);
    assert_eq!(records.find(0, &its), None, "it is free");
    state::begin_store(word);
    assert_eq!(records.find(0, &its), Some(state::load(word)));
    state::publish(word, 0);
    let ready = state::load(word);
    assert_eq!(records.find(0, &its), Some(ready));
    assert_eq!(records.find(0, &key(36, 3)), None);
    assert_eq!(records.find(1, &its), None);
    assert_eq!(records.find(2, &its), None, "beyond the last slot");
    assert_eq!(records.find(u32::MAX, &its), None);
    assert_eq!(records.find_seen(0, &its, ready), Some(ready));
    state::claim(word);
    assert_eq!(
        records.find(0, &its).map(State::phase),
        Some(state::Phase::Evicting)
    );
    state::free(word);
    assert_eq!(
        records.find_seen(0, &its, ready),
        None,
        "it left after it was seen"
    );
    // The same key in a later generation is not what was seen.
    state::begin_store(word);
    assert!(records.find(0, &its).is_some());
    assert_eq!(records.find_seen(0, &its, ready), None);
    state::drain_pending(word);
    assert_eq!(records.find(0, &its), None);
}

#[test]
fn the_position_of_a_chunk_is_kept_beside_its_length() {
    let records = Records::new(1, 36).expect("fits memory");
    for (position, expected) in [
        (None, 0),
        (Some(0), 1),
        (Some(u32::MAX - 1), u64::from(u32::MAX)),
    ] {
        records.write_key(0, &key(36, 1), position);
        let meta = records.word(0, META).load(Ordering::Relaxed);
        assert_eq!((meta >> 32, meta & 0xffff_ffff), (expected, 36));
        assert_eq!(read(&records, 0), key(36, 1));
    }
}

#[test]
fn a_stamp_keeps_the_touch_and_the_list() {
    let records = Records::new(2, 36).expect("fits memory");
    assert_eq!(records.read_stamp(0), (0, 0));
    for touch in [1, 2, u64::MAX >> 1] {
        for list in [0, 1] {
            records.write_stamp(1, touch, list);
            assert_eq!(records.read_stamp(1), (touch, list));
            assert_eq!(records.read_stamp(0), (0, 0));
        }
    }
}

#[test]
fn a_length_that_no_writer_left_reads_no_further_than_the_record() {
    let records = Records::new(1, 36).expect("fits memory");
    records.word(0, META).store(0xffff, Ordering::Relaxed);
    assert_eq!(read(&records, 0).len(), 36);
}

#[test]
fn more_lines_than_memory_has_are_refused() {
    assert!(lines(usize::MAX / 64).is_err());
    assert!(zeroed_words(usize::MAX / 8).is_err());
}
