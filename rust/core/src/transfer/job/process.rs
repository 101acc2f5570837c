//! The process that an engine works in: a fork leaves its child without the engine's threads, and
//! with locks that nobody gives back.

use std::process;

use crate::sync::{AtomicU64, Ordering};

/// No process has this id.
const NONE: u64 = 0;

/// The process of the first use. Nothing here waits: a fork may happen at any moment.
#[derive(Debug)]
pub(super) struct Process {
    first: AtomicU64,
    current: fn() -> u32,
}

impl Process {
    pub(super) fn new() -> Self {
        Self::with(process::id)
    }

    /// Where `current` says in which process it is called.
    pub(super) fn with(current: fn() -> u32) -> Self {
        Self {
            first: AtomicU64::new(NONE),
            current,
        }
    }

    /// Whether this is the child of the process of the first use. The first call is a use.
    pub(super) fn is_forked(&self) -> bool {
        let now = u64::from((self.current)());
        // Relaxed, twice: the word is written once and publishes nothing; all threads of a process
        // write the same.
        let first = self.first.load(Ordering::Relaxed);
        if first != NONE {
            return first != now;
        }
        let taken = self
            .first
            .compare_exchange(NONE, now, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_err_and(|first| first != now)
    }
}
