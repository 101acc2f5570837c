//! A replay that moves the bytes: an accelerator's blocks and a host tier, both in this process's
//! memory, with the planner, the job engine and the host backend between them.
//!
//! Several requests are in flight at once. Each loads its longest ready prefix into blocks of its
//! own, computes the rest (fills the blocks), stores what the tier lacks, and ends. What a chunk holds is a
//! function of its key, and **every page that was loaded is compared in full** before it counts as a
//! hit.
//!
//! 1. A request that meets a pending chunk waits for that store, so that a prefix in flight is
//!    loaded and not computed twice.
//! 2. A load that fails hits nothing: its chunks are computed. A store that fails leaves no chunk.
//! 3. Requests overlap, so counts differ a little from those of a replay without bytes.

mod content;
mod request;
mod tier;

use std::num::NonZeroUsize;
use std::time::Instant;

use kvferry::PolicyKind;
use serde::Serialize;

use crate::capacity::Capacity;
use crate::progress::Observer;
use crate::replay::{Engine, ReplayError, Row, observe};
use crate::trace::Trace;

use request::Requests;
use tier::Tier;

/// How bytes are moved in a replay.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MoveOptions {
    /// Bytes of a chunk, a multiple of [`MoveOptions::GRANULE`].
    pub chunk_bytes: u64,
    /// Chunks that the accelerator's pool holds. A request is cut to what fits.
    pub device_chunks: usize,
    /// Requests in flight at once.
    pub in_flight: NonZeroUsize,
    /// Share of the transfers that fail, 0 to 1, some of their bytes written.
    pub fault_rate: f64,
    /// Which transfers fail.
    pub fault_seed: u64,
    /// Threads that copy; by default, chosen by the number of CPUs.
    pub threads: Option<NonZeroUsize>,
}

impl MoveOptions {
    /// A chunk is two blocks in each of four tensors, and a page is made of 8-byte words.
    pub const GRANULE: u64 = (tier::TENSORS * tier::BLOCKS_PER_CHUNK * 8) as u64;
}

impl Default for MoveOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: 32 << 10,
            device_chunks: 4096,
            in_flight: NonZeroUsize::MIN.saturating_add(7),
            fault_rate: 0.0,
            fault_seed: 0,
            threads: None,
        }
    }
}

/// What a replay moved.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Moved {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes that successful stores copied.
    pub bytes_stored: u64,
    /// Bytes that successful loads copied.
    pub bytes_loaded: u64,
    /// Bytes compared after a load, all of them as they have to be.
    pub bytes_verified: u64,
    /// Stores that failed.
    pub failed_stores: u64,
    /// Loads that failed.
    pub failed_loads: u64,
    /// Stores that found no room beside the requests in flight.
    pub declined_stores: u64,
    /// Bytes stored and loaded, per second of the whole replay, in GB (10^9 bytes).
    pub gb_per_second: f64,
}

/// Replays `trace` and moves the bytes of every load and store; compares what is loaded.
///
/// # Errors
///
/// As [`crate::replay()`]; also if an option is out of range, there is no memory for the pools, or a
/// loaded byte is wrong.
pub fn replay_bytes(
    trace: &Trace,
    policy: PolicyKind,
    capacity: &Capacity,
    options: &MoveOptions,
    observer: &mut Observer<'_>,
) -> Result<Row, ReplayError> {
    let engine = Engine::new(trace, policy, capacity)?;
    let tier = Tier::new(options, engine.slots())?;
    let started = Instant::now();
    let mut requests = Requests::new(engine.manager()?, tier, options);
    observe(trace, observer, |request| {
        trace.chain(request, requests.chain());
        requests.serve(request.time_us, request.output_tokens)
    })?;
    let (manager, hit_chunks, mut moved) = requests.finish()?;
    let seconds = started.elapsed().as_secs_f64();
    moved.gb_per_second = (moved.bytes_stored + moved.bytes_loaded) as f64 / seconds / 1e9;
    Ok(engine.row(&manager, hit_chunks, seconds, Some(moved)))
}

#[cfg(test)]
mod tests;
