use std::num::NonZeroUsize;

use super::*;
use crate::progress::unobserved;
use crate::replay::replay;
use crate::trace::ChunkId;
use crate::workload::Workload;

fn small() -> MoveOptions {
    MoveOptions {
        chunk_bytes: 512,
        ..MoveOptions::default()
    }
}

fn workload() -> Trace {
    let trace = Workload::with_seed(3).generate();
    trace.coarsen(4096).expect("4,096 is 64 blocks")
}

fn moved(options: &MoveOptions, policy: PolicyKind, capacity: &str) -> Row {
    let capacity = capacity.parse().expect("a capacity");
    replay_bytes(&workload(), policy, &capacity, options, &mut unobserved).expect("replays")
}

#[test]
fn every_hit_was_loaded_and_compared_in_full() {
    for policy in PolicyKind::ALL {
        let row = moved(&small(), policy, "10%");
        let bytes = row.moved.as_ref().expect("bytes were moved");
        assert!(row.hit_chunks > 1000, "{row:?}");
        assert_eq!(bytes.bytes_verified, row.hit_chunks * 512);
        assert_eq!(bytes.bytes_loaded, bytes.bytes_verified);
        assert_eq!(bytes.bytes_stored, row.stored * 512);
        assert_eq!((bytes.failed_loads, bytes.failed_stores), (0, 0));
    }
}

#[test]
fn one_request_at_a_time_hits_what_a_replay_without_bytes_hits() {
    let options = MoveOptions {
        in_flight: NonZeroUsize::MIN,
        ..small()
    };
    for policy in PolicyKind::ALL {
        let row = moved(&options, policy, "10%");
        let capacity = "10%".parse().expect("a capacity");
        let without = replay(&workload(), policy, &capacity, &mut unobserved).expect("replays");
        assert_eq!(row.hit_chunks, without.hit_chunks, "{policy}");
        assert_eq!(
            (row.stored, row.evicted),
            (without.stored, without.evicted),
            "{policy}"
        );
    }
}

#[test]
fn with_faults_hits_fall_and_every_loaded_byte_is_right() {
    let sound = moved(&small(), PolicyKind::Lru, "10%");
    let options = MoveOptions {
        fault_rate: 0.2,
        ..small()
    };
    let faulty = moved(&options, PolicyKind::Lru, "10%");
    let bytes = faulty.moved.expect("bytes were moved");
    assert!(faulty.hit_chunks < sound.hit_chunks);
    assert!(
        bytes.failed_loads > 0 && bytes.failed_stores > 0,
        "{bytes:?}"
    );
    assert_eq!(bytes.bytes_verified, faulty.hit_chunks * 512);
}

#[test]
fn if_every_transfer_fails_nothing_hits() {
    let options = MoveOptions {
        fault_rate: 1.0,
        ..small()
    };
    let row = moved(&options, PolicyKind::Arc, "10%");
    assert_eq!((row.hit_chunks, row.stored), (0, 0));
}

#[test]
fn a_chunk_that_changed_on_the_way_is_found() {
    let mut tier = Tier::new(&small(), 4).expect("small pools");
    let blocks = tier.take(1);
    let chunk = ChunkId::from_index(9);
    tier.fill(chunk, &blocks[0]).expect("no job uses the block");
    tier.compare(chunk, &blocks[0]).expect("as it was filled");
    let page = tier
        .local()
        .page_mut(2, blocks[0][1])
        .expect("no job uses the block");
    page[17] ^= 1;
    let error = tier
        .compare(chunk, &blocks[0])
        .expect_err("a byte is wrong");
    let message = error.to_string();
    assert!(
        message.contains("chunk 9, tensor 2, block 1, byte 17"),
        "{message}"
    );
}

#[test]
fn a_chunk_of_another_key_is_a_wrong_byte() {
    let mut tier = Tier::new(&small(), 4).expect("small pools");
    let blocks = tier.take(1);
    let [stored, other] = [3, 4].map(ChunkId::from_index);
    tier.fill(stored, &blocks[0])
        .expect("no job uses the block");
    let error = tier.compare(other, &blocks[0]).expect_err("another chunk");
    assert!(
        matches!(error, ReplayError::WrongByte { chunk: 4, .. }),
        "{error}"
    );
}

#[test]
fn options_out_of_range_are_named() {
    let capacity = "10%".parse().expect("a capacity");
    let cases = [
        (
            "chunk_bytes",
            MoveOptions {
                chunk_bytes: 100,
                ..small()
            },
        ),
        (
            "chunk_bytes",
            MoveOptions {
                chunk_bytes: 0,
                ..small()
            },
        ),
        (
            "fault_rate",
            MoveOptions {
                fault_rate: 1.5,
                ..small()
            },
        ),
        (
            "fault_rate",
            MoveOptions {
                fault_rate: f64::NAN,
                ..small()
            },
        ),
        (
            "device_chunks",
            MoveOptions {
                device_chunks: 0,
                ..small()
            },
        ),
    ];
    for (name, options) in cases {
        let lru = PolicyKind::Lru;
        let error = replay_bytes(&workload(), lru, &capacity, &options, &mut unobserved);
        let message = error.expect_err("out of range").to_string();
        assert!(message.starts_with(name), "{message}");
    }
}
