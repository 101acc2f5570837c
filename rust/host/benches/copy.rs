//! How fast the host backend copies: `cargo bench -p kvferry-host`.
//!
//! Fragments lie scattered on both sides, none beside its neighbour, in more memory than any cache
//! holds. Beside them, in the same rounds: the C library's `memcpy` of as many bytes in one large
//! area, each thread its share, and the backend's copy of one large range. Jobs are measured from
//! before their submit until their end is seen, planning included. Medians over the rounds.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `KVFERRY_BENCH_COPY_MIB` | `1024` | MiB on each side |
//! | `KVFERRY_BENCH_COPY_THREADS` | `1` and the backend's default | threads that copy |
//! | `KVFERRY_BENCH_COPY_ROUNDS` | `9` | rounds |
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::env;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use kvferry::transfer::{
    DeviceTensor, Direction, GroupTensor, HostSlots, JobEngine, JobId, JobOptions, KvLayout,
    Priority, Transfer,
};
use kvferry_host::{
    HostBackend, HostMemory, HostOptions, HostStream, NonTemporal, OwnedBuffer, default_threads,
};

const FRAGMENTS: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// How a row is measured: which way, and past the cache or not.
const COLUMNS: [(&str, Direction, NonTemporal); 4] = [
    ("store", Direction::Store, NonTemporal::Auto),
    ("load", Direction::Load, NonTemporal::Auto),
    ("store, cached", Direction::Store, NonTemporal::Never),
    ("load, cached", Direction::Load, NonTemporal::Never),
];

fn main() {
    let bytes = number("KVFERRY_BENCH_COPY_MIB", 1024) << 20;
    let rounds = number("KVFERRY_BENCH_COPY_ROUNDS", 9);
    let default = default_threads().get() as u64;
    let threads = env::var("KVFERRY_BENCH_COPY_THREADS").map_or(vec![1, default], |list| {
        list.split(',')
            .map(|count| count.parse().expect("threads: numbers"))
            .collect()
    });
    let areas = Areas::new(bytes);
    for threads in threads {
        let threads = usize::try_from(threads).expect("a number of threads");
        throughput(&areas, threads, rounds);
    }
    latency(&areas);
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The two areas, as large as each other.
struct Areas {
    device: Arc<OwnedBuffer>,
    host: Arc<OwnedBuffer>,
    bytes: u64,
}

impl Areas {
    fn new(bytes: u64) -> Self {
        let buffer = || {
            let bytes = usize::try_from(bytes).expect("an area fits");
            Arc::new(OwnedBuffer::zeroed(bytes).expect("the system has the memory"))
        };
        let areas = Self {
            device: buffer(),
            host: buffer(),
            bytes,
        };
        // All pages are there before anything is measured.
        areas.memcpy(Direction::Store, 1);
        areas.memcpy(Direction::Load, 1);
        areas
    }

    /// Seconds that the C library takes, with each thread copying its share.
    fn memcpy(&self, direction: Direction, threads: usize) -> f64 {
        let (from, to) = match direction {
            Direction::Store => (self.device.address(), self.host.address()),
            Direction::Load => (self.host.address(), self.device.address()),
        };
        let share = self.bytes / threads as u64;
        let start = Barrier::new(threads + 1);
        thread::scope(|scope| {
            let copiers: Vec<_> = (0..threads as u64)
                .map(|thread| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        copy(from + thread * share, to + thread * share, share);
                    })
                })
                .collect();
            start.wait();
            let started = Instant::now();
            for copier in copiers {
                copier.join().expect("a copy does not panic");
            }
            started.elapsed().as_secs_f64()
        })
    }

    /// Jobs between both areas, as one tensor of such fragments and one slot for each.
    fn jobs(&self, fragment: u64, options: HostOptions) -> JobEngine<HostBackend> {
        let blocks = self.bytes / fragment;
        let tensor = DeviceTensor {
            address: self.device.address(),
            block_stride: fragment,
            page_bytes: fragment,
            blocks,
        };
        let page = GroupTensor {
            tensor: 0,
            page_bytes: fragment,
        };
        let groups = vec![vec![page]];
        let slots = HostSlots::slot_major(&groups, 1, self.host.address(), blocks, 1)
            .expect("slots of one page");
        let layout = KvLayout::new(vec![tensor], groups, 1, slots).expect("a plain layout");
        let owner = (Arc::clone(&self.device), Arc::clone(&self.host));
        let extents = vec![self.device.extent(), self.host.extent()];
        // SAFETY: the owner keeps both buffers. The engine has one job at a time, and this program
        // touches their bytes between jobs alone.
        let memory = unsafe { HostMemory::new(extents, owner) };
        let backend = HostBackend::new(memory, options).expect("no CPU is asked for");
        JobEngine::new(backend, layout, JobOptions::default()).expect("the areas are the backend's")
    }
}

/// The C library's copy.
fn copy(from: u64, to: u64, bytes: u64) {
    let [from, to, bytes] = [from, to, bytes].map(|value| usize::try_from(value).expect("64 bits"));
    let source = ptr::with_exposed_provenance::<u8>(from);
    let destination = ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: both are shares of a buffer that outlives the threads, one share a thread, and no job
    // is in flight.
    unsafe { ptr::copy_nonoverlapping(source, destination, bytes) };
}

fn throughput(areas: &Areas, threads: usize, rounds: u64) {
    println!(
        "\n{} MiB, {threads} threads, GB/s (share of memcpy)",
        areas.bytes >> 20
    );
    let blocks = i64::try_from(areas.bytes >> 20).expect("blocks are few");
    let whole = vec![(0..blocks).collect(), (0..blocks).collect()];
    row(areas, "one range", 1 << 20, &whole, threads, rounds);
    for fragment in FRAGMENTS {
        let scattered = vec![
            order(areas.bytes / fragment, 1),
            order(areas.bytes / fragment, 2),
        ];
        let name = format!("{} KiB", fragment >> 10);
        row(areas, &name, fragment, &scattered, threads, rounds);
    }
}

fn row(areas: &Areas, name: &str, fragment: u64, ids: &[Vec<i64>], threads: usize, rounds: u64) {
    let engines = [NonTemporal::Auto, NonTemporal::Never].map(|non_temporal| {
        let options = HostOptions {
            threads: NonZeroUsize::new(threads),
            non_temporal,
            ..HostOptions::default()
        };
        areas.jobs(fragment, options)
    });
    let mut memcpy = Vec::new();
    let mut columns = COLUMNS.map(|_| Vec::new());
    for _ in 0..rounds {
        memcpy.push(areas.memcpy(Direction::Store, threads));
        for ((_, direction, non_temporal), column) in COLUMNS.iter().zip(&mut columns) {
            let engine = &engines[usize::from(*non_temporal == NonTemporal::Never)];
            column.push(run(engine, *direction, &ids[0], &ids[1]).as_secs_f64());
        }
    }
    let memcpy = median(&mut memcpy);
    let speed = |seconds: f64| areas.bytes as f64 / seconds / 1e9;
    print!("{name:>10}: memcpy {:5.1}", speed(memcpy));
    for ((name, ..), column) in COLUMNS.iter().zip(&mut columns) {
        let seconds = median(column);
        print!(
            " | {name} {:5.1} ({:3.0} %)",
            speed(seconds),
            100.0 * memcpy / seconds
        );
    }
    println!();
}

/// One job at a time, from its start until it is seen to have ended.
fn latency(areas: &Areas) {
    const PAGE: u64 = 4096;
    const JOBS: u64 = 2000;
    println!("\none job of scattered 4 KiB fragments, µs from submit to end");
    let engine = areas.jobs(PAGE, HostOptions::default());
    let blocks = areas.bytes / PAGE;
    let (device, host) = (order(blocks, 3), order(blocks, 4));
    for pages in [1, 4, 16, 32, 64, 128, 256, 1024] {
        let mut jobs = Vec::new();
        for job in 0..JOBS {
            let from = usize::try_from(job * pages % (blocks - pages)).expect("a position");
            let ids = from..from + usize::try_from(pages).expect("a few");
            let taken = run(&engine, Direction::Load, &device[ids.clone()], &host[ids]);
            jobs.push(taken.as_secs_f64() * 1e6);
        }
        let median = median(&mut jobs);
        let late = jobs[jobs.len() * 99 / 100];
        println!(
            "{:>5} KiB: median {median:7.2}, 99th percentile {late:7.2}",
            (pages * PAGE) >> 10
        );
    }
}

/// Runs one job from before its submit until its end is seen.
fn run(
    engine: &JobEngine<HostBackend>,
    direction: Direction,
    blocks: &[i64],
    slots: &[i64],
) -> Duration {
    let transfer = Transfer {
        direction,
        block_ids: blocks,
        group_sizes: &[blocks.len()],
        block_indices: &[0],
        slots,
    };
    let job = JobId(0);
    let started = Instant::now();
    let submitted = engine.submit(job, &transfer, HostStream, Priority::Ordinary, None);
    submitted.expect("one job at a time, each block and slot once");
    engine.wait(&[job], None);
    let taken = started.elapsed();
    for result in engine.poll_finished() {
        result.outcome.expect("no job is made to fail");
    }
    taken
}

/// All numbers below a bound, scattered.
fn order(bound: u64, seed: u64) -> Vec<i64> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut order: Vec<i64> = (0..i64::try_from(bound).expect("blocks are few")).collect();
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (last as u64 + 1)).expect("a position");
        order.swap(last, other);
    }
    order
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
