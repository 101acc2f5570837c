//! How long the memory of a region takes to touch: `cargo bench -p kvferry-host --bench region`.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `KVFERRY_BENCH_REGION_MIB` | `1024` | the size of the region |
//! | `KVFERRY_BENCH_REGION_DIR` | `/dev/shm` | where its file is made |
//!
//! The baseline is one thread that writes each byte of fresh memory.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kvferry_host::{
    Areas, Fingerprint, HugePages, MemoryOptions, PinnedRegion, PrivateConfig, RegionConfig,
    RegionLayout,
};

const REPEATS: usize = 5;

/// Makes a region, and drops it.
type Make<'a> = &'a dyn Fn(MemoryOptions) -> Result<PinnedRegion, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mebibytes: u64 = match std::env::var("KVFERRY_BENCH_REGION_MIB") {
        Ok(text) => text.parse()?,
        Err(_) => 1024,
    };
    let directory = std::env::var("KVFERRY_BENCH_REGION_DIR");
    let directory = directory.unwrap_or_else(|_| "/dev/shm".to_owned());
    let bytes = mebibytes << 20;
    let layout = RegionLayout {
        areas: Areas::Shared,
        area_bytes: bytes,
        slots: 1,
        slot_bytes: bytes,
    };
    let mut config = RegionConfig::new("bench", 0, 1, layout, Fingerprint(0));
    config.directory = directory.into();
    let shared: Make<'_> = &|memory| {
        let config = RegionConfig {
            memory,
            ..config.clone()
        };
        Ok(PinnedRegion::open(&config, &mut |_| {
            ControlFlow::Continue(())
        })?)
    };
    let private: Make<'_> = &|memory| {
        let config = PrivateConfig {
            bytes,
            slots: 1,
            memory,
        };
        Ok(PinnedRegion::private(&config, &mut |_| {
            ControlFlow::Continue(())
        })?)
    };
    println!("{mebibytes} MiB, median of {REPEATS} (fastest to slowest)");
    for (name, make) in [("shared", shared), ("private", private)] {
        for huge_pages in [HugePages::Off, HugePages::Transparent] {
            for threads in [1, 2, 4] {
                measure(name, make, huge_pages, threads)?;
            }
        }
    }
    let zeros = (0..REPEATS).map(|_| {
        let start = Instant::now();
        let length = usize::try_from(bytes)?;
        let mut memory = Vec::<u8>::with_capacity(length);
        memory.resize(length, 1);
        black_box(&memory);
        Ok(start.elapsed())
    });
    let zeros = zeros.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    println!("written by one thread: {}", spread(zeros));
    Ok(())
}

fn measure(
    name: &str,
    make: Make<'_>,
    huge_pages: HugePages,
    threads: usize,
) -> Result<(), Box<dyn Error>> {
    let memory = MemoryOptions {
        huge_pages,
        numa_node: None,
        touch_threads: NonZeroUsize::new(threads),
    };
    let mut times = Vec::new();
    let mut got = None;
    for _ in 0..REPEATS {
        let region = make(memory)?;
        times.push(region.report().touch_time);
        got = region.report().huge_page_bytes;
    }
    let pages = if got.is_some() {
        "huge pages"
    } else {
        "ordinary pages"
    };
    let times = spread(times);
    println!("{name}, {huge_pages:?} asked, {pages} got, {threads} threads: {times}");
    Ok(())
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let [first, median, last] =
        [0, times.len() / 2, times.len() - 1].map(|at| times[at].as_secs_f64());
    format!("{median:.3} s ({first:.3} to {last:.3})")
}
