//! Warm tiers to measure on, and what the benches share.
//!
//! A warm tier has been filled several times over, so that its free slots, its index and its order
//! are as they are after hours of work. Under ARC all four lists are full or at their equilibrium:
//! T1 and T2 hold a half each, B1 and B2 a whole capacity each.

use std::ops::Range;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};
use kvferry::{Config, Keys, LoadTicket, LookupResult, Manager, PolicyKind};

/// A block hash of 32 bytes and the group.
pub(crate) const KEY_BYTES: usize = 36;
/// Chunks of a prompt of 128k tokens, at 16 tokens a block.
pub(crate) const PROMPT: u64 = 8192;
/// The most keys of a store or load: a prefill step of 16k tokens.
const CALL: u64 = 1024;

/// Keys are numbers to the benches: the key of number `n` is made of `n` alone.
pub(crate) fn key(n: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    for (word, lane) in key[..32].chunks_exact_mut(8).zip(0u64..) {
        word.copy_from_slice(&mixed(n * 4 + lane).to_le_bytes());
    }
    key
}

/// A number that looks random, from its place in a sequence (SplitMix64).
pub(crate) fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The keys of some numbers, one after the other.
pub(crate) fn rows(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(key).collect()
}

/// Rows as the engine takes them.
pub(crate) fn keys(rows: &[u8]) -> Keys<'_> {
    Keys::rows(rows, KEY_BYTES).expect("rows are whole keys")
}

/// `count` numbers out of `range`, in no order.
pub(crate) fn sample(range: &Range<u64>, count: u64) -> impl Iterator<Item = u64> {
    let (start, len) = (range.start, range.end - range.start);
    (0..count).map(move |i| start + mixed(i) % len)
}

/// See the module.
pub(crate) struct Tier {
    pub(crate) manager: Manager,
    pub(crate) resident: u64,
    /// The next key that was never stored.
    pub(crate) next: u64,
    /// How many of the keys below `next` are resident and not pinned, without a gap. Somewhat fewer
    /// than all of them: a request makes its head more recent than its tail, so that the oldest one
    /// has lost its tail.
    recent: u64,
    /// The loads that hold the pinned chunks.
    pins: Vec<LoadTicket>,
}

impl Tier {
    /// A full and warm tier of which `percent` are pinned by the owner, the oldest of each list:
    /// those that an eviction meets first.
    pub(crate) fn warm(policy: PolicyKind, resident: u64, percent: u64) -> Self {
        let config = Config::new(usize::try_from(resident).expect("it fits memory")).policy(policy);
        let mut tier = Self {
            manager: Manager::new(config).expect("the configuration is possible"),
            resident,
            next: 0,
            recent: 0,
            pins: Vec::new(),
        };
        if policy == PolicyKind::Arc {
            tier.balance_arc();
        } else {
            tier.fill(2 * resident, false);
        }
        // What was stored last, in one run; under ARC the chunks of T2 are older than it.
        let stored = tier.hits(tier.next - resident..tier.next);
        let run = stored.iter().rev().take_while(|hit| **hit).count() as u64;
        let first = tier.next - run;
        let older = tier.resident_before(first);
        let pinned = |count: u64| count * percent / 100;
        let old_pins = pinned(older.len() as u64);
        tier.pin(older.into_iter().zip(0..old_pins).map(|(n, _)| n));
        tier.pin(first..first + pinned(run));
        tier.recent = run - pinned(run);
        tier
    }

    /// Chunks that are used twice fill T2 and, as they leave, its ghosts; chunks that are used once
    /// fill T1's ghosts. Some of these come back until the target is in the middle.
    fn balance_arc(&mut self) {
        let resident = self.resident;
        self.fill(2 * resident, true);
        self.fill(resident, false);
        let ghosts = self.next - resident..self.next;
        for start in ghosts.step_by(self.step()) {
            if self.manager.target_t1_size() >= Some(resident as f64 / 2.0) {
                break;
            }
            self.store(start..start + self.step() as u64, false);
        }
        self.fill(resident, false);
    }

    /// How many keys a store of the warm-up has.
    fn step(&self) -> usize {
        usize::try_from(CALL.min(self.resident / 8)).expect("a call of a thousand keys")
    }

    fn fill(&mut self, count: u64, twice: bool) {
        let end = self.next + count;
        while self.next < end {
            let start = self.next;
            self.next = end.min(start + self.step() as u64);
            self.store(start..self.next, twice);
        }
    }

    /// One request that stores its chunks, and may use them once more.
    fn store(&mut self, numbers: Range<u64>, twice: bool) {
        let rows = rows(numbers);
        let mut access = self.manager.begin_request(0, 0);
        let output = self
            .manager
            .prepare_store(keys(&rows), Some(&mut access))
            .expect("the keys fit")
            .stored()
            .expect("nothing is pinned yet");
        self.manager.complete_store(output.ticket, true);
        self.manager
            .finish_request(access, None)
            .expect("it is this engine's");
        if twice {
            self.manager.touch(keys(&rows)).expect("the keys fit");
        }
    }

    fn hits(&self, numbers: Range<u64>) -> Vec<bool> {
        let mut results = Vec::new();
        self.manager
            .lookup_each(keys(&rows(numbers)), &mut results)
            .expect("the keys fit");
        results.iter().map(|r| *r == LookupResult::Hit).collect()
    }

    fn resident_before(&self, end: u64) -> Vec<u64> {
        let hits = self.hits(0..end);
        (0..end)
            .zip(hits)
            .filter_map(|(n, hit)| hit.then_some(n))
            .collect()
    }

    fn pin(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let ticket = self
            .manager
            .prepare_load(keys(&rows(numbers)), None)
            .expect("these are resident");
        self.pins.push(ticket);
    }

    /// Keys that are resident and not pinned.
    pub(crate) fn recent(&self) -> Range<u64> {
        self.next - self.recent..self.next
    }

    /// How many keys a store or load of this tier has: half of what could leave, at most.
    pub(crate) fn call(&self) -> u64 {
        let most = CALL.min(self.recent / 2);
        1 << most.ilog2()
    }
}

/// Numbers from the environment variable `name`, separated by commas.
pub(crate) fn numbers(name: &str, default: &[u64]) -> Vec<u64> {
    match std::env::var(name) {
        Ok(list) => list
            .split(',')
            .map(|n| n.trim().replace('_', ""))
            .map(|n| {
                n.parse()
                    .unwrap_or_else(|_| panic!("{name}: {n:?} is no number"))
            })
            .collect(),
        Err(_) => default.to_vec(),
    }
}

/// The numbers of resident chunks to measure at.
pub(crate) fn residents() -> Vec<u64> {
    numbers("KVFERRY_BENCH_RESIDENT", &[10_000, 100_000, 1_000_000])
}

/// A group whose benches take as long as the environment says: a short look by default.
pub(crate) fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let ms = numbers("KVFERRY_BENCH_MS", &[300]);
    let ms = ms.first().copied().unwrap_or(300).max(1);
    let mut group = criterion.benchmark_group(name);
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(20)
        .warm_up_time(Duration::from_millis((ms / 4).max(1)))
        .measurement_time(Duration::from_millis(ms));
    group
}

/// `1000000` as `1M`, `10000` as `10k`.
pub(crate) fn short(n: u64) -> String {
    match n {
        n if n >= 1_000_000 && n.is_multiple_of(1_000_000) => format!("{}M", n / 1_000_000),
        n if n >= 1000 && n.is_multiple_of(1000) => format!("{}k", n / 1000),
        n => n.to_string(),
    }
}
