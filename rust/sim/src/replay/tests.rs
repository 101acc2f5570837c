use std::ops::ControlFlow;

use super::*;
use crate::progress::unobserved;
use crate::read::{ReadOptions, read_trace_from};
use crate::workload::Workload;

/// A trace with these block ids, one request a second.
fn trace(chains: &[&[u64]]) -> Trace {
    let lines: Vec<String> = (0_u64..)
        .zip(chains)
        .map(|(second, ids)| {
            let (ms, tokens) = (1000 * second, 512 * ids.len());
            format!(
                r#"{{"timestamp":{ms},"input_length":{tokens},"output_length":9,"hash_ids":{ids:?}}}"#
            )
        })
        .collect();
    let text = lines.join("\n");
    let options = ReadOptions::default();
    read_trace_from(text.as_bytes(), "t", &options, &mut unobserved).expect("is well formed")
}

fn replayed(trace: &Trace, policy: PolicyKind, capacity: &str) -> Result<Row, ReplayError> {
    let capacity: Capacity = capacity.parse().expect("a capacity");
    replay(trace, policy, &capacity, &mut unobserved)
}

fn counts(row: &Row) -> (u64, u64, u64) {
    (row.hit_chunks, row.stored, row.evicted)
}

#[test]
fn the_longest_resident_prefix_counts_and_nothing_after_the_first_miss() {
    // Four slots. The third request evicts the head of the first and leaves its tail resident.
    let trace = trace(&[&[1, 2, 3], &[1, 2, 3], &[9], &[8], &[1, 2, 3]]);
    let row = replayed(&trace, PolicyKind::Lru, "4").expect("replays");
    // The fifth request finds 1 and 2: the least recent chunk, the tail 3, has left.
    assert_eq!(counts(&row), (5, 6, 2));
    assert_eq!((row.requests, row.chunks), (5, 11));
    assert!((row.hit_ratio - 5.0 / 11.0).abs() < 1e-12);
}

#[test]
fn a_request_longer_than_the_capacity_keeps_its_first_chunks() {
    let trace = trace(&[&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5]]);
    for policy in PolicyKind::ALL {
        let row = replayed(&trace, policy, "2").expect("replays");
        assert_eq!(counts(&row), (2, 2, 0), "{policy}");
        assert_eq!(row.chunks, 10);
    }
}

#[test]
fn with_room_for_all_only_first_appearances_miss() {
    let trace = Workload::default().generate();
    let trace = trace.coarsen(512).expect("512 is 8 blocks");
    for policy in PolicyKind::ALL {
        for capacity in ["100%", "4000000000"] {
            let row = replayed(&trace, policy, capacity).expect("replays");
            let unique = trace.unique_chunks();
            assert_eq!(counts(&row), (row.chunks - unique, unique, 0), "{policy}");
        }
    }
}

#[test]
fn counts_repeat_and_what_is_stored_and_not_evicted_fits_the_tier() {
    let trace = Workload::with_seed(3).generate();
    let trace = trace.coarsen(1024).expect("1024 is 16 blocks");
    for policy in PolicyKind::ALL {
        let row = replayed(&trace, policy, "2.5%").expect("replays");
        let again = replayed(&trace, policy, "2.5%").expect("replays");
        assert_eq!(counts(&row), counts(&again));
        assert_eq!(row.stored - row.evicted, row.capacity_chunks);
        assert_eq!(row.capacity_chunks, trace.unique_chunks() * 25 / 1000);
        assert_eq!((row.capacity.as_str(), row.seed), ("2.5%", Some(3)));
        assert!(row.seconds > 0.0 && row.ns_per_chunk > 0.0);
    }
}

#[test]
fn requests_without_a_full_chunk_are_served_too() {
    let row = replayed(&trace(&[&[], &[1], &[], &[1]]), PolicyKind::Arc, "1").expect("replays");
    assert_eq!((row.requests, row.chunks), (4, 2));
    assert_eq!(counts(&row), (1, 1, 0));
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let empty = trace(&[&[], &[]]);
    let outcome = replayed(&empty, PolicyKind::Lru, "1");
    assert!(matches!(outcome, Err(ReplayError::NoChunks { .. })));
    let small = trace(&[&[1, 2, 3]]);
    let outcome = replayed(&small, PolicyKind::Lru, "10%");
    assert!(matches!(
        outcome,
        Err(ReplayError::Capacity(CapacityError::LessThanOne {
            unique_chunks: 3,
            ..
        }))
    ));
}

#[test]
fn a_replay_reports_its_progress_and_stops_when_told() {
    let trace = Workload::default().generate();
    let capacity = "5%".parse().expect("a capacity");
    let mut seen = Vec::new();
    let mut watch = |progress| {
        if let Progress::Replaying { chunks, of } = progress {
            seen.push((chunks, of));
        }
        ControlFlow::Continue(())
    };
    replay(&trace, PolicyKind::Lru, &capacity, &mut watch).expect("replays");
    assert!(seen.len() > 10 && seen.is_sorted());
    let total = trace.chunk_refs();
    assert!(
        seen.iter()
            .all(|&(chunks, of)| chunks <= total && of == total)
    );

    let mut calls = 0;
    let mut stop = |_| {
        calls += 1;
        ControlFlow::Break(())
    };
    let outcome = replay(&trace, PolicyKind::Lru, &capacity, &mut stop);
    assert!(matches!(outcome, Err(ReplayError::Interrupted)));
    assert_eq!(calls, 1);
}
