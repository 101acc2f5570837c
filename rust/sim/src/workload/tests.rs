use std::collections::{HashMap, HashSet};

use super::*;

/// FNV-1a over everything that a trace consists of.
fn digest(trace: &Trace) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |value: u64| {
        for byte in value.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let mut chain = Vec::new();
    for request in trace.requests() {
        mix(request.time_us);
        mix(request.input_tokens);
        mix(request.output_tokens);
        mix(request.session);
        trace.chain(request, &mut chain);
        chain.iter().for_each(|chunk| mix(chunk.get().into()));
    }
    hash
}

#[test]
fn a_seed_gives_the_same_trace_everywhere_and_seeds_differ() {
    let digests = [0, 1].map(|seed| digest(&Workload::with_seed(seed).generate()));
    assert_eq!(
        digests,
        [15_558_224_608_429_026_847, 3_276_720_210_885_057_078]
    );
}

#[test]
fn requests_come_in_the_order_of_their_times_within_the_window() {
    let workload = Workload::default();
    let trace = workload.generate();
    let times: Vec<_> = trace.requests().iter().map(|r| r.time_us).collect();
    assert!(times.is_sorted());
    let window_us = u64::from(workload.seconds) * 1_000_000;
    assert!(times[times.len() - 1] < window_us);
    // Sessions in all stages from the start on: the first tenth is as busy as the others.
    let tenth = times.iter().filter(|&&t| t < window_us / 10).count();
    assert!(tenth * 20 > times.len(), "{tenth} of {}", times.len());
}

#[test]
fn a_request_lists_the_full_blocks_of_its_tokens_and_every_chunk_is_requested() {
    let trace = Workload::default().generate();
    let block_tokens = u64::from(trace.chunk_tokens());
    let mut requested = HashSet::new();
    let mut chain = Vec::new();
    for request in trace.requests() {
        assert_eq!(
            u64::from(request.chunks),
            request.input_tokens / block_tokens
        );
        trace.chain(request, &mut chain);
        assert_eq!(chain.len(), request.chunks as usize);
        requested.extend(chain.iter().copied());
    }
    assert_eq!(requested.len() as u64, trace.unique_chunks());
}

#[test]
fn sessions_grow_branch_and_share_their_first_chunks() {
    let trace = Workload::default()
        .generate()
        .coarsen(512)
        .expect("512 is 8 blocks");
    let mut chain = Vec::new();
    let mut sessions_of_chunk: HashMap<_, HashSet<u64>> = HashMap::new();
    let mut last: HashMap<u64, Vec<_>> = HashMap::new();
    let (mut grown, mut branched) = (0, 0);
    for request in trace.requests() {
        trace.chain(request, &mut chain);
        for &chunk in &chain {
            sessions_of_chunk
                .entry(chunk)
                .or_default()
                .insert(request.session);
        }
        if let Some(last) = last.insert(request.session, chain.clone()) {
            if chain.starts_with(&last) {
                grown += 1;
            } else {
                branched += 1;
            }
        }
    }
    assert!(
        grown > branched && branched > 100,
        "{grown} grown, {branched} branched"
    );
    let shared = sessions_of_chunk.values().filter(|s| s.len() > 5).count();
    assert!(
        shared > 100,
        "{shared} chunks are shared by more than five sessions"
    );
    let private = sessions_of_chunk.values().filter(|s| s.len() == 1).count();
    assert!(private * 2 > sessions_of_chunk.len());
}

#[test]
fn the_built_in_workload_is_large_enough_to_tell_policies_apart() {
    let trace = Workload::default()
        .generate()
        .coarsen(512)
        .expect("512 is 8 blocks");
    assert!(
        (300_000..800_000).contains(&trace.chunk_refs()),
        "{}",
        trace.chunk_refs()
    );
    assert!(
        (20_000..100_000).contains(&trace.unique_chunks()),
        "{}",
        trace.unique_chunks()
    );
}

#[test]
fn parameters_at_their_limits_make_a_trace_too() {
    let zero = Spread([0; 6]);
    let huge = Spread([u64::MAX; 6]);
    let mut none = Workload::default();
    none.agents.sessions = 0;
    none.chats.sessions = 0;
    assert!(none.generate().requests().is_empty());
    let mut odd = Workload {
        block_tokens: 0,
        output_token_ms: u32::MAX,
        ..Workload::default()
    };
    odd.agents.projects = 0;
    odd.agents.prefix_tokens = zero;
    odd.agents.message_tokens = zero;
    odd.agents.output_tokens = zero;
    odd.agents.result_tokens = zero;
    odd.agents.summary_tokens = zero;
    odd.agents.compact_at_tokens = 0;
    odd.agents.think_ms = huge;
    odd.agents.turns = huge;
    odd.chats.applications = 0;
    odd.chats.prefix_tokens = zero;
    odd.chats.opening_tokens = zero;
    odd.chats.message_tokens = zero;
    odd.chats.output_tokens = zero;
    odd.chats.think_ms = huge;
    let trace = odd.generate();
    assert!(!trace.requests().is_empty());
}
