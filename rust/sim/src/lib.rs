//! Replays request traces through the kvferry engine.
#![forbid(unsafe_code)]

mod capacity;
mod chains;
mod error;
mod progress;
mod read;
mod replay;
mod trace;
mod workload;

pub use capacity::{Capacity, CapacityError};
pub use error::{ChunkSizeError, Fault, TraceError};
pub use progress::{Observer, Progress, unobserved};
pub use read::{
    MAX_BLOCKS, MAX_BLOCKS_PER_REQUEST, MAX_LINE_BYTES, ReadOptions, read_trace, read_trace_from,
};
pub use replay::{ReplayError, Row, SCHEMA, replay};
pub use trace::{ChunkId, Request, Trace};
pub use workload::{Agents, Chats, Spread, Workload};
