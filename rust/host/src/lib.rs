//! Host memory for KV-cache offloading, and a backend that copies with threads.

#[cfg(target_os = "linux")]
mod region;

#[cfg(target_os = "linux")]
pub use region::{
    Areas, Fingerprint, Foreign, HugePages, MemoryOptions, NoHugePages, NoNode, OnProgress,
    PinnedRegion, PrivateConfig, Reason, RegionArea, RegionConfig, RegionError, RegionLayout,
    RegionNote, RegionProgress, RegionReport, RegionStage,
};
