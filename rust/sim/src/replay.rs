//! Replays a trace through the engine and counts what the host tier would have hit.
//!
//! Requests are served one after the other, each with the calls that a scheduler makes: the longest
//! resident prefix is looked up and counted as hits, loaded and released; all chunks are offered in
//! one store, which completes; the request is finished. There is no accelerator cache in front.
//!
//! 1. A chunk after the first miss of its request is no hit, whether it is resident or not.
//! 2. A request longer than the capacity offers its first chunks, as many as fit; all of its chunks
//!    count as offered in the hit ratio.
//! 3. Equal inputs give equal counts: the engine's hash has a fixed seed.

use std::time::Instant;

use kvferry::{
    Config, ConfigError, KeyHashing, Keys, Manager, PolicyKind, StoreOutcome, StoreRejected,
};
use serde::Serialize;
use thiserror::Error;

use crate::bytes::Moved;
use crate::capacity::{Capacity, CapacityError};
use crate::progress::{Observer, Progress};
use crate::trace::{ChunkId, Request, Trace};

/// Version of the fields of a [`Row`].
pub const SCHEMA: &str = "kvferry-replay-1";

/// Bytes of a chunk's key: its id. No group.
pub(crate) const KEY_BYTES: usize = size_of::<u64>();

/// Seed of the engine's hash, so that every run lays out its index alike.
const HASH_SEED: u64 = 0;

/// Chunk references between two calls of the observer: about a millisecond.
const CHUNKS_PER_REPORT: u64 = 1 << 13;

const NS_PER_SECOND: f64 = 1e9;

/// What one replay counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Version of these fields.
    pub schema: &'static str,
    /// Where the trace came from.
    pub trace: String,
    /// The seed of a generated trace.
    pub seed: Option<u64>,
    /// Tokens of a chunk.
    pub chunk_tokens: u32,
    /// The engine's name of the policy.
    pub policy: &'static str,
    /// The capacity as it was given.
    pub capacity: String,
    /// The capacity in chunks.
    pub capacity_chunks: u64,
    /// Requests replayed.
    pub requests: u64,
    /// Chunks of all requests.
    pub chunks: u64,
    /// Chunks that were found in a leading run.
    pub hit_chunks: u64,
    /// `hit_chunks` of `chunks`, 0 to 1.
    pub hit_ratio: f64,
    /// Chunks written to the host tier.
    pub stored: u64,
    /// Chunks evicted from it.
    pub evicted: u64,
    /// Duration of the replay.
    pub seconds: f64,
    /// `seconds` per chunk, in nanoseconds.
    pub ns_per_chunk: f64,
    /// What was moved, if the replay moved bytes.
    pub moved: Option<Moved>,
}

/// Why a replay did not come to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The capacity is impossible for this trace.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The trace has no chunk.
    #[error("{trace}: no request fills a chunk of {chunk_tokens} tokens")]
    NoChunks {
        /// Where the trace came from.
        trace: String,
        /// Tokens of a chunk.
        chunk_tokens: u32,
    },
    /// The engine cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine refused a call that a replay must not make.
    #[error("the engine refused a call of the replay: {0}")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The engine had no room for a request, though it fits. Its counts would be another cache's.
    #[error("the engine declined {chunks} chunks with {slots} slots: {reason:?}")]
    Declined {
        /// Chunks offered, no more than there are slots.
        chunks: usize,
        /// The engine's slots.
        slots: usize,
        /// The engine's reason.
        reason: StoreRejected,
    },
    /// An option of a replay that moves bytes is out of range.
    #[error("{option}: {what}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The pools of a replay that moves bytes cannot be made.
    #[error(transparent)]
    Pools(Box<dyn std::error::Error + Send + Sync>),
    /// A job was refused that must not be, or a page that no job uses.
    #[error("the transfers refused a call of the replay: {0}")]
    Transfer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A byte that was loaded is not the one that was stored.
    #[error(
        "wrong byte: chunk {chunk}, tensor {tensor}, block {block}, byte {offset} is {found:#04x} \
         after a load, not {expected:#04x}"
    )]
    WrongByte {
        /// The chunk's id in the trace.
        chunk: u32,
        /// The tensor.
        tensor: usize,
        /// The block within the chunk.
        block: usize,
        /// The place within the page.
        offset: usize,
        /// The byte as it was stored.
        expected: u8,
        /// The byte as it was loaded.
        found: u8,
    },
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Replays `trace` through an engine with this policy and capacity.
///
/// # Errors
///
/// If the capacity is impossible, the trace has no chunk, or the observer stops the replay.
pub fn replay(
    trace: &Trace,
    policy: PolicyKind,
    capacity: &Capacity,
    observer: &mut Observer<'_>,
) -> Result<Row, ReplayError> {
    let engine = Engine::new(trace, policy, capacity)?;
    let started = Instant::now();
    let mut server = Server::new(engine.manager()?);
    observe(trace, observer, |request| {
        trace.chain(request, &mut server.chain);
        server.chain.truncate(engine.slots());
        server.serve(request.time_us, request.output_tokens)
    })?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(engine.row(&server.manager, server.hit_chunks, seconds, None))
}

/// Hands each request of `trace` to `serve`, and tells `observer` now and then.
pub(crate) fn observe(
    trace: &Trace,
    observer: &mut Observer<'_>,
    mut serve: impl FnMut(&Request) -> Result<(), ReplayError>,
) -> Result<(), ReplayError> {
    let of = trace.chunk_refs();
    let mut served = 0;
    let mut reported = 0;
    for request in trace.requests() {
        serve(request)?;
        served += u64::from(request.chunks);
        if served - reported >= CHUNKS_PER_REPORT {
            reported = served;
            let progress = Progress::Replaying { chunks: served, of };
            if observer(progress).is_break() {
                return Err(ReplayError::Interrupted);
            }
        }
    }
    Ok(())
}

/// What is replayed, and how large the tier is.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    trace: &'a Trace,
    policy: PolicyKind,
    capacity: &'a Capacity,
    capacity_chunks: u64,
    slots: usize,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        trace: &'a Trace,
        policy: PolicyKind,
        capacity: &'a Capacity,
    ) -> Result<Self, ReplayError> {
        if trace.chunk_refs() == 0 {
            return Err(ReplayError::NoChunks {
                trace: trace.name().to_owned(),
                chunk_tokens: trace.chunk_tokens(),
            });
        }
        let unique_chunks = trace.unique_chunks();
        let capacity_chunks = capacity.chunks_of(unique_chunks)?;
        // With room for every chunk nothing is ever evicted: more slots would change nothing.
        let slots = usize::try_from(capacity_chunks.min(unique_chunks)).unwrap_or(usize::MAX);
        Ok(Self {
            trace,
            policy,
            capacity,
            capacity_chunks,
            slots,
        })
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) fn manager(&self) -> Result<Manager, ConfigError> {
        let config = Config::new(self.slots)
            .policy(self.policy)
            .key_bytes(KEY_BYTES)
            .group_bytes(0)
            .hashing(KeyHashing::Seeded(HASH_SEED));
        Manager::new(config)
    }

    pub(crate) fn row(
        &self,
        manager: &Manager,
        hit_chunks: u64,
        seconds: f64,
        moved: Option<Moved>,
    ) -> Row {
        let chunks = self.trace.chunk_refs();
        let stats = manager.stats();
        Row {
            schema: SCHEMA,
            trace: self.trace.name().to_owned(),
            seed: self.trace.seed(),
            chunk_tokens: self.trace.chunk_tokens(),
            policy: self.policy.name(),
            capacity: self.capacity.given().to_owned(),
            capacity_chunks: self.capacity_chunks,
            requests: self.trace.requests().len() as u64,
            chunks,
            hit_chunks,
            hit_ratio: hit_chunks as f64 / chunks as f64,
            stored: stats.stored,
            evicted: stats.evicted,
            seconds,
            ns_per_chunk: seconds * NS_PER_SECOND / chunks as f64,
            moved,
        }
    }
}

/// Writes the keys of a chain of chunks into `keys`.
pub(crate) fn write_keys(chain: &[ChunkId], keys: &mut Vec<u8>) {
    keys.clear();
    for chunk in chain {
        keys.extend(u64::from(chunk.get()).to_le_bytes());
    }
}

/// The engine and what is reused from request to request.
#[derive(Debug)]
struct Server {
    manager: Manager,
    hit_chunks: u64,
    chain: Vec<ChunkId>,
    keys: Vec<u8>,
}

impl Server {
    fn new(manager: Manager) -> Self {
        Self {
            manager,
            hit_chunks: 0,
            chain: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Serves one request, whose chunks are in `chain`.
    fn serve(&mut self, now_us: u64, output_tokens: u64) -> Result<(), ReplayError> {
        write_keys(&self.chain, &mut self.keys);
        let keys = Keys::rows(&self.keys, KEY_BYTES).map_err(refused)?;
        let hits = self.manager.lookup_prefix(keys).map_err(refused)?.ready;
        let leading = Keys::rows(&self.keys[..hits * KEY_BYTES], KEY_BYTES).map_err(refused)?;
        self.hit_chunks += hits as u64;
        let mut access = self.manager.begin_request(now_us, 0);
        let load = self.manager.prepare_load(leading, Some(&mut access));
        self.manager.complete_load(load.map_err(refused)?);
        let store = self.manager.prepare_store(keys, Some(&mut access));
        match store.map_err(refused)? {
            StoreOutcome::Stored(output) => {
                self.manager.complete_store(output.ticket, true);
            }
            StoreOutcome::Rejected(reason) => {
                return Err(ReplayError::Declined {
                    chunks: keys.len(),
                    slots: self.manager.capacity(),
                    reason,
                });
            }
        }
        let finished = self.manager.finish_request(access, Some(output_tokens));
        finished.map_err(refused)
    }
}

/// An error of the engine, of whatever kind.
pub(crate) fn refused(error: impl std::error::Error + Send + Sync + 'static) -> ReplayError {
    ReplayError::Engine(Box::new(error))
}

#[cfg(test)]
mod tests;
