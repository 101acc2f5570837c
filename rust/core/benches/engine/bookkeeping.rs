//! What the engine's verbs cost on one thread, per key.
//!
//! Lookups stand beside a `HashMap` of `std` with the same keys. Pins change nothing for them, so
//! that they are measured without; the cycles are measured with none, a quarter and 99 % of the
//! tier pinned. Keys of stores are made outside the measured time.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::tier::{
    KEY_BYTES, PROMPT, Tier, group, key, keys, numbers, residents, rows, sample, short,
};
use criterion::{BenchmarkId, Criterion, Throughput};
use kvferry::PolicyKind;

/// Keys that single lookups take in turn: so many that a large tier does not fit the processor's
/// caches.
const TURNS: u64 = 1 << 18;

pub(crate) fn bench(criterion: &mut Criterion) {
    for resident in residents() {
        lookups(criterion, resident);
    }
    for policy in PolicyKind::ALL {
        for resident in residents() {
            for percent in numbers("KVFERRY_BENCH_PINNED", &[0, 25, 99]) {
                cycles(criterion, policy, resident, percent);
            }
        }
    }
}

fn lookups(criterion: &mut Criterion, resident: u64) {
    let tier = Tier::warm(PolicyKind::Lru, resident, 0);
    let all = tier.recent();
    let map: HashMap<[u8; KEY_BYTES], u32> = all.clone().map(|n| (key(n), 0)).collect();
    one_key(criterion, &tier, &map);
    many_keys(criterion, &tier, &map);
}

fn one_key(criterion: &mut Criterion, tier: &Tier, map: &HashMap<[u8; KEY_BYTES], u32>) {
    let all = tier.recent();
    let hot = [key(all.end - 1)];
    let turns = TURNS.min(all.end - all.start);
    // Neighbours of a prompt, one call after the other, as a scheduler asks that has no batches.
    let next: Vec<_> = (all.start..all.start + turns).map(key).collect();
    let random: Vec<_> = sample(&all, turns).map(key).collect();
    let absent: Vec<_> = (tier.next..tier.next + turns).map(key).collect();
    let mut group = group(criterion, "lookup_one");
    let kinds = [
        ("hot", &hot[..]),
        ("next", &next),
        ("random", &random),
        ("absent", &absent),
    ];
    for (what, keys) in kinds {
        group.throughput(Throughput::Elements(1));
        let id = BenchmarkId::new(what, short(tier.resident));
        group.bench_function(id, |b| {
            let mut turn = keys.iter().cycle();
            b.iter(|| turn.next().map(|key| tier.manager.lookup(key)));
        });
        let id = BenchmarkId::new(format!("{what}_std_hashmap"), short(tier.resident));
        group.bench_function(id, |b| {
            let mut turn = keys.iter().cycle();
            b.iter(|| turn.next().map(|key| map.get(key)));
        });
    }
}

fn many_keys(criterion: &mut Criterion, tier: &Tier, map: &HashMap<[u8; KEY_BYTES], u32>) {
    let all = tier.recent();
    // Calls in turn that ask for other chunks each, so that none finds its own in the cache.
    let resident = all.end - all.start;
    let calls = (resident / PROMPT).clamp(1, 16);
    let prompt = PROMPT.min(resident);
    let stride = resident / calls;
    let prefixes: Vec<_> = (0..calls)
        .map(|c| all.start + c * stride)
        .map(|start| rows(start..start + prompt))
        .collect();
    let randoms: Vec<_> = (0..calls)
        .map(|c| rows(sample(&all, (c + 1) * prompt).skip(usize_of(c * prompt))))
        .collect();
    let mut group = group(criterion, "lookup_many");
    for (what, calls) in [("prefix", prefixes), ("random", randoms)] {
        group.throughput(Throughput::Elements(prompt));
        let id = BenchmarkId::new(format!("{what}_{prompt}"), short(tier.resident));
        group.bench_function(id, |b| {
            let mut turn = calls.iter().cycle();
            b.iter(|| {
                turn.next()
                    .map(|rows| tier.manager.lookup_prefix(keys(rows)))
            });
        });
        let id = BenchmarkId::new(format!("{what}_{prompt}_std_hashmap"), short(tier.resident));
        group.bench_function(id, |b| {
            let mut turn = calls.iter().cycle();
            b.iter(|| {
                let (keys, _) = turn.next().map_or(&[][..], Vec::as_slice).as_chunks();
                keys.iter().filter(|key| map.contains_key(*key)).count()
            });
        });
    }
}

fn cycles(criterion: &mut Criterion, policy: PolicyKind, resident: u64, percent: u64) {
    let mut tier = Tier::warm(policy, resident, percent);
    let call = tier.call();
    let id = |what: &str| {
        let pinned = format!("{percent}%_pinned");
        BenchmarkId::new(format!("{what}_{call}/{policy}/{pinned}"), short(resident))
    };
    let mut group = group(criterion, "cycle");
    group.throughput(Throughput::Elements(call));
    let mut bench = |what: &str, tier: &mut Tier, cycle: fn(&mut Tier, u64, u64) -> Duration| {
        group.bench_function(id(what), |b| {
            b.iter_custom(|rounds| (0..rounds).map(|round| cycle(tier, round, call)).sum());
        });
    };
    bench("store_evict", &mut tier, store_and_evict);
    bench("load", &mut tier, load);
    bench("finish_reused", &mut tier, finish);
}

/// A store for which as many chunks leave, and its completion.
fn store_and_evict(tier: &mut Tier, _round: u64, call: u64) -> Duration {
    let rows = rows(tier.next..tier.next + call);
    tier.next += call;
    let mut access = tier.manager.begin_request(0, 0);
    let started = Instant::now();
    let stored = tier.manager.prepare_store(keys(&rows), Some(&mut access));
    let output = stored.ok().and_then(kvferry::StoreOutcome::stored);
    let output = output.expect("a half of what is not pinned fits");
    tier.manager.complete_store(output.ticket, true);
    let elapsed = started.elapsed();
    black_box(access);
    elapsed
}

/// A load of chunks that were stored one after the other, and its completion.
fn load(tier: &mut Tier, round: u64, call: u64) -> Duration {
    let rows = recent_rows(tier, round, call);
    let mut access = tier.manager.begin_request(0, 0);
    let started = Instant::now();
    let ticket = tier.manager.prepare_load(keys(&rows), Some(&mut access));
    tier.manager
        .complete_load(ticket.expect("they are resident"));
    let elapsed = started.elapsed();
    black_box(access);
    elapsed
}

/// The end of a request that has loaded its chunks.
fn finish(tier: &mut Tier, round: u64, call: u64) -> Duration {
    let rows = recent_rows(tier, round, call);
    let mut access = tier.manager.begin_request(0, 0);
    let ticket = tier.manager.prepare_load(keys(&rows), Some(&mut access));
    tier.manager
        .complete_load(ticket.expect("they are resident"));
    let started = Instant::now();
    let finished = tier.manager.finish_request(access, None);
    let elapsed = started.elapsed();
    finished.expect("it is this engine's");
    elapsed
}

/// The keys of a call, from chunks that are resident and not pinned; another call's next time.
fn recent_rows(tier: &Tier, round: u64, call: u64) -> Vec<u8> {
    let recent = tier.recent();
    let calls = (recent.end - recent.start) / call;
    let start = recent.end - (round % calls + 1) * call;
    rows(start..start + call)
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("a count of keys in memory fits")
}
