//! The engine's replay and a naive one agree on every count of hits.

mod oracle;

use kvferry::PolicyKind;
use kvferry_sim::{Capacity, ReadOptions, Trace, Workload, read_trace_from, replay, unobserved};
use proptest::prelude::*;

fn agree(trace: &Trace, capacity: &str) -> Result<(), TestCaseError> {
    let capacity: Capacity = capacity.parse().expect("a capacity");
    let slots = capacity
        .chunks_of(trace.unique_chunks())
        .expect("not empty");
    let slots = usize::try_from(slots).expect("small");
    for policy in PolicyKind::ALL {
        let row = replay(trace, policy, &capacity, &mut unobserved).expect("replays");
        let expected = oracle::hit_chunks(trace, policy.name(), slots);
        prop_assert_eq!(row.hit_chunks, expected, "{} at {}", policy, capacity);
    }
    Ok(())
}

/// Requests that continue, cut or fork earlier ones, as block ids.
fn chains() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let step = (
        any::<prop::sample::Index>(),
        0..12_usize,
        prop::collection::vec(0..3_u64, 0..6),
    );
    prop::collection::vec(step, 1..120).prop_map(|steps| {
        let mut chains: Vec<Vec<u64>> = vec![Vec::new()];
        for (from, keep, tail) in steps {
            let mut chain = from.get(&chains).clone();
            chain.truncate(keep);
            chain.extend(tail);
            chains.push(chain);
        }
        chains
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn on_random_histories(chains in chains(), capacity in 1..40_u32) {
        let mut text = String::new();
        for (second, ids) in chains.iter().enumerate() {
            let tokens = 512 * ids.len();
            text += &format!(
                "{{\"timestamp\":{second},\"input_length\":{tokens},\"output_length\":1,\"hash_ids\":{ids:?}}}\n"
            );
        }
        let options = ReadOptions::default();
        let trace = read_trace_from(text.as_bytes(), "t", &options, &mut unobserved)
            .expect("is well formed");
        prop_assume!(trace.chunk_refs() > 0);
        agree(&trace, &capacity.to_string())?;
    }
}

#[test]
fn on_the_built_in_workload() {
    let trace = Workload::default().generate();
    let trace = trace.coarsen(512).expect("512 is 8 blocks");
    for capacity in ["0.1%", "1%", "2.5%", "5%", "10%", "20%", "40%"] {
        agree(&trace, capacity).expect("the counts agree");
    }
}
