//! Replays request traces through the kvferry engine: what a host tier of some size and policy
//! would have hit on real traffic. The engine is the one that production runs; there is no second
//! one.
//!
//! ```
//! use kvferry::PolicyKind;
//! use kvferry_sim::{Workload, replay, unobserved};
//!
//! let trace = Workload::default().generate().coarsen(512)?;
//! let row = replay(&trace, PolicyKind::Lru, &"5%".parse()?, &mut unobserved)?;
//! assert!(row.hit_ratio > 0.4 && row.hit_ratio < 0.7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Traces
//!
//! A trace is a list of requests in the order of their times, each a chain of *blocks*: the full
//! blocks of its prompt. A block is identified together with everything before it, as engines'
//! block hashes are: the same id after another prefix is another block. Several consecutive blocks
//! make a *chunk*, the unit of offloading; a chunk is identified by its last block, and the blocks
//! that fill no chunk at the end of a request are left out ([`Trace::coarsen`]).
//!
//! [`read_trace`] reads two formats and tells them apart by their content. Both are JSON, one
//! object a line, plain or compressed by zstd; blank lines are skipped, fields that are not named
//! here are ignored. Times are milliseconds, whole or not, from 0 on, and never decrease. A fault
//! is an error that names the file and the line.
//!
//! ## Mooncake
//!
//! The traces published with Mooncake, and what follows their form. Every line is a request:
//!
//! ```json
//! {"timestamp": 27482, "input_length": 1500, "output_length": 52, "hash_ids": [46, 47, 2353]}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `timestamp` | arrival, milliseconds |
//! | `input_length` | tokens of the prompt |
//! | `output_length` | tokens generated |
//! | `hash_ids` | one id for each block of the prompt, 0 to 2^64 - 1 |
//!
//! A block has 512 tokens unless [`ReadOptions`] says otherwise. The partial block at the end may
//! be listed or not, and is dropped, since engines cache full blocks only; any other number of ids
//! is an error. There are no sessions.
//!
//! ## kvtrace-1
//!
//! A compact form for long contexts. The first line is a header, every other one a request:
//!
//! ```json
//! {"format": "kvtrace-1", "name": "agents", "block_size": 64, "requests": 2, "unique_blocks": 7}
//! {"t": 631, "in": 300, "out": 259, "s": 381, "f": 1, "p": [0, 0], "n": [[0, 4]]}
//! {"t": 2028, "in": 390, "out": 100, "s": 381, "f": 2, "p": [1, 3], "n": [[4, 3]]}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `block_size` | tokens of a block |
//! | `requests` | number of requests in the file; checked if given |
//! | `t` | arrival, milliseconds |
//! | `in`, `out` | tokens of the prompt, tokens generated |
//! | `s` | session; 0 or absent if unknown |
//! | `p` | `[back, keep]`: the first `keep` blocks are those of the request `back` requests earlier; `[0, 0]` for none |
//! | `n` | `[[start, len], …]`: then come the blocks `start` to `start + len - 1`, for each run |
//!
//! Ids are dense, in the order of first appearance: a run starts at most at the first id that no
//! earlier run has named. A request lists exactly the full blocks of its prompt, `in / block_size`.
//!
//! # The built-in workload
//!
//! [`Workload`] generates traffic of coding agents and chats from a seed, the same on every
//! machine.
//!
//! # Replay
//!
//! [`replay()`] serves the requests one after the other: it looks up the longest resident prefix
//! and counts it as hits, loads it, offers all chunks in one store, and finishes the request.
//! Results are comparable between policies and capacities, and flattering in the absolute: real
//! requests overlap, and an accelerator's own cache takes the hits that come soonest.
//!
//! [`replay_bytes()`] does the same with several requests in flight, and moves the bytes: every
//! page that it loads is compared in full.
#![forbid(unsafe_code)]

mod bytes;
mod capacity;
mod chains;
mod error;
mod progress;
mod read;
mod replay;
mod trace;
mod workload;

pub use bytes::{MoveOptions, Moved, replay_bytes};
pub use capacity::{Capacity, CapacityError};
pub use error::{ChunkSizeError, Fault, TraceError};
pub use progress::{Observer, Progress, unobserved};
pub use read::{
    MAX_BLOCKS, MAX_BLOCKS_PER_REQUEST, MAX_LINE_BYTES, ReadOptions, read_trace, read_trace_from,
};
pub use replay::{ReplayError, Row, SCHEMA, replay};
pub use trace::{ChunkId, Request, Trace};
pub use workload::{Agents, Chats, Spread, Workload};
