//! Bookkeeping for KV-cache offloading: which chunks of KV an inference engine has in its host
//! tier, in which slots, who may touch them, and which leave when there is no room.
//!
//! The engine moves no bytes and hashes no tokens. A *key* names a chunk (the inference engine's
//! block hash and KV-cache group), a *slot* is a place for one chunk in host memory; the verbs are
//! those of vLLM's offloading manager. No Python, no CUDA, no runtime, no `unsafe`.
//!
//! # Overview
//!
//! One [`Manager`] owns the tier: it decides what is stored and what leaves. Any number of
//! [`Reader`]s look chunks up and pin them from other threads while it works. A [`RequestAccess`]
//! remembers what one request did, so that it counts as one access.
//!
//! ```
//! use kvferry::{Config, Keys, Manager, PolicyKind};
//!
//! let mut manager = Manager::new(Config::new(4096).policy(PolicyKind::Arc))?;
//! let prompt = [7u8; 36 * 3]; // the keys of three chunks, head first
//! # let prompt: Vec<u8> = (0..3u8).flat_map(|i| [i; 36]).collect();
//! let keys = Keys::rows(&prompt, 36)?;
//!
//! let mut access = manager.begin_request(0, 0);
//! assert_eq!(manager.lookup_prefix(keys)?.ready, 0);
//! let store = manager.prepare_store(keys, Some(&mut access))?.stored().expect("the tier is empty");
//! // … the worker copies chunk `store.indices[i]` into slot `store.ticket.slots()[i]` …
//! manager.complete_store(store.ticket, true);
//! manager.finish_request(access, None)?;
//!
//! let mut access = manager.begin_request(1_000_000, 0);
//! let hits = manager.lookup_prefix(keys)?.ready;
//! assert_eq!(hits, 3);
//! let load = manager.prepare_load(keys, Some(&mut access))?;
//! // … the worker copies slot `load.slots()[i]` into the block for key `i` …
//! manager.complete_load(load);
//! manager.finish_request(access, Some(250))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/scheduler.rs` is this loop in full: requests that share prefixes, a tier that is too
//! small, and a reader thread that pins chunks while they come and go.
//!
//! # What it promises
//!
//! * **Never a wrong hit.** A hit means that the whole key was equal, its length included. A slot
//!   that is pinned keeps its chunk. A completion that comes late, twice or after a reset acts on
//!   nothing: tickets and pins name the generation of their slot.
//! * **All or nothing.** A store that does not fit and a load that cannot be served change no slot,
//!   no order and no event.
//! * **A full tier, a missing key, an abort are normal.** They are results and errors, never
//!   panics.
//! * **Exact policies.** [`PolicyKind::Lru`] and [`PolicyKind::Arc`] choose the victims that vLLM
//!   0.32's managers choose, one for one.
//! * **No cliff.** Every verb is O(keys in the call), amortised, with any number of chunks resident
//!   or pinned. The exceptions go over the tier by their nature: [`Manager::reset_cache`] and
//!   [`Manager::rebuild`].
//! * **Fixed memory.** Everything is allocated when the engine is built; see
//!   [`Manager::memory_bytes`]. With keys of up to 40 bytes, 110 bytes a chunk, and for ARC 64 more
//!   for its ghosts.
//!
//! # Threads
//!
//! The manager's verbs take `&mut self`. A [`Reader`] is a cheap clone for any thread: its lookups
//! and pins are lock-free and never block the manager or each other. A reader's pin and the
//! manager's eviction race for one word, and one of them wins. See [`Reader`] for what is promised
//! of each call.
//!
//! # Time
//!
//! The engine reads no clock. Times are microseconds of the caller's clock; a time that goes back
//! is taken as the last one.
//!
//! # Features
//!
//! * `testing`: `Manager::check_invariants` and the `debug_…` calls. Adds code, changes nothing
//!   else.
#![forbid(unsafe_code)]

mod access;
mod admission;
mod config;
mod dedupe;
mod error;
mod event;
mod guess;
mod hash;
mod index;
mod key;
#[cfg(loom)]
#[cfg(test)]
mod loom;
mod manager;
mod mutant;
mod notice;
mod policy;
mod reader;
mod shared;
mod slot;
mod stats;
mod storage;
mod sync;
mod ticket;
pub mod transfer;

pub use access::RequestAccess;
pub use config::Config;
pub use error::{AccessError, ConfigError, KeyError, LoadError, StoreError};
pub use event::{Event, EventKind, Events};
pub use hash::KeyHashing;
pub use key::{KeyList, Keys};
#[cfg(any(test, feature = "testing"))]
pub use manager::DebugLists;
pub use manager::{Manager, ResetMode, StoreOutcome, StoreOutput, StoreRejected};
pub use policy::{PolicyKind, UnknownPolicy};
pub use reader::{Pin, Reader, TryPin, Unpinned};
pub use shared::{LookupResult, PrefixHits, Storage};
pub use stats::Stats;
pub use ticket::{Completion, LoadTicket, StoreTicket};
