//! How the host backend works.

use std::num::NonZeroUsize;
use std::thread;

use crate::copy::NonTemporal;
use crate::fault::FaultInjection;

/// How the host backend works. The defaults are those that measured best.
#[derive(Debug, Clone, Default)]
pub struct HostOptions {
    /// Threads that copy; see [`default_threads`].
    pub threads: Option<NonZeroUsize>,
    /// The CPUs that the threads may use, each of them all; none listed: those of the process.
    ///
    /// Threads that are free to move copy about as fast as pinned ones on idle CPUs, and faster
    /// where others compute. Worth it where the memory belongs to one node of several.
    pub cpus: Vec<usize>,
    /// When copies go past the cache.
    pub non_temporal: NonTemporal,
    /// Jobs that are to fail.
    pub faults: Option<FaultInjection>,
}

/// Most threads that are taken without being asked for. One copies 15 to 23 GB/s where it has the
/// memory to itself, and each byte copied is a read and a write: 16 ask for what a socket moves.
const MOST_THREADS: usize = 16;

/// Threads that copy unless an option says otherwise: half of the CPUs that the process may use,
/// because the model computes on the others; two at least, where there are two, and 16 at most,
/// because memory is the limit then.
#[must_use]
pub fn default_threads() -> NonZeroUsize {
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = (cpus / 2).max(cpus.min(2)).min(MOST_THREADS);
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}
