//! Bookkeeping for KV-cache offloading.
#![forbid(unsafe_code)]

mod access;
mod admission;
mod config;
mod dedupe;
mod error;
mod event;
mod hash;
mod index;
mod key;
#[cfg(all(test, loom))]
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
