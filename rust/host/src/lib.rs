//! Host memory for KV-cache offloading, and a backend that copies with threads.
//!
//! [`HostBackend`] moves the bytes of jobs between two areas of this process's memory: for engines
//! that run on the CPU, and as the reference for backends that drive an accelerator. A
//! [`kvferry::transfer::JobEngine`] decides which jobs run, and when their memory is free again.
//!
//! # What makes the copies sound
//!
//! Copies go to bare addresses. Three things keep them where they belong:
//!
//! 1. A [`Plan`](kvferry::transfer::Plan) touches no byte outside of its layout: the planner checks
//!    that, without `unsafe`.
//! 2. The backend takes the plans of one layout, all of which lies within its [`HostMemory`].
//! 3. It lets go of that memory after its threads have ended. Until then the memory is there, which
//!    is what whoever makes a [`HostMemory`] promises.
//!
//! That jobs in flight do not conflict is the job engine's part.

mod backend;
mod copy;
mod error;
mod fault;
mod job;
mod local;
mod memory;
mod options;
mod pool;
#[cfg(target_os = "linux")]
mod region;
mod swap;
mod sync;

pub use backend::{HostBackend, HostRunning, HostStream, INLINE_BYTES};
pub use copy::NonTemporal;
pub use error::HostError;
pub use fault::{FaultInjection, FaultMoment};
pub use local::{LocalError, LocalShape, LocalTier, PageError};
pub use memory::{Extent, HostMemory, OwnedBuffer};
pub use options::{HostOptions, default_threads};
pub use swap::{SwapError, swap_blocks};

#[cfg(target_os = "linux")]
pub use region::{
    Areas, Fingerprint, Foreign, HugePages, MemoryOptions, NoHugePages, NoNode, OnProgress,
    PinnedRegion, PrivateConfig, Reason, RegionConfig, RegionError, RegionLayout, RegionNote,
    RegionProgress, RegionReport, RegionStage,
};
