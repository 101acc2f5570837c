//! How long work tells its caller where it stands, and lets him stop it.

use std::ops::ControlFlow;

/// Where a reading or a replay stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// A trace file is being read.
    Reading {
        /// Bytes of the file read so far.
        bytes: u64,
        /// Bytes of the file; none for a pipe.
        of: Option<u64>,
    },
    /// A trace is being replayed.
    Replaying {
        /// Chunk references replayed so far.
        chunks: u64,
        /// Chunk references of the trace.
        of: u64,
    },
}

/// Called every few thousand chunks with the present state; `Break` stops the work.
pub type Observer<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// An observer that does not care.
pub fn unobserved(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
