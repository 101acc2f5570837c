//! Host memory for KV chunks: one region, shared by the ranks of a node, whose pages all exist.
//!
//! The ranks of an engine start at the same time and do not know who is first. Each opens the region
//! under the engine's name; one of them makes the file, the others map it. When all have mapped and
//! touched it, the name is removed, so that nothing is left however they end. A start that is killed
//! before leaves a file that nobody holds a lock of, which the next start removes.
//!
//! 1. A region is handed out only when every page of it exists, and all ranks have mapped one file.
//! 2. The memory belongs to other processes as well, which copy into it at any time: no reference to
//!    its bytes is handed out, only its address.
//! 3. It stays mapped until the [`PinnedRegion`] is dropped.
//!
//! It is not locked in memory: an accelerator's driver does that when it registers it. Nothing here
//! guards against a program that shortens the file while it is mapped.

mod claim;
mod config;
mod error;
mod header;
mod join;
mod limits;
mod numa;
mod pages;
mod report;
mod settle;
mod touch;

use std::fmt;
use std::fs::File;
use std::ops::ControlFlow;

use memmap2::MmapRaw;

use crate::memory::Extent;

use config::Geometry;
use header::Header;

pub use config::{
    Areas, Fingerprint, HugePages, MemoryOptions, PrivateConfig, RegionConfig, RegionLayout,
};
pub use error::{Foreign, Reason, RegionError};
pub use numa::NoNode;
pub use pages::NoHugePages;
pub use report::{RegionNote, RegionReport};

/// Memory that the ranks of one node share, or that one process has for itself.
pub struct PinnedRegion {
    map: MmapRaw,
    /// Where the first area begins in `map`.
    start: usize,
    header: Header,
    geometry: Geometry,
    /// Its locks say that this rank lives. None for one process.
    file: Option<File>,
    report: RegionReport,
}

/// How far a start has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionProgress {
    /// What has been reached, or is being done.
    pub stage: RegionStage,
    /// How much of it is done: bytes for [`RegionStage::Touching`]; for [`RegionStage::Joined`],
    /// [`RegionStage::Waiting`] and [`RegionStage::Met`] the ranks that have mapped the file; else 0.
    pub done: u64,
    /// How much there is, in the same unit.
    pub total: u64,
}

/// The steps of a start, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RegionStage {
    /// Looking for the file that another rank makes.
    Searching,
    /// This rank has made the file.
    Made,
    /// It has locked the file.
    Locked,
    /// The header has its room.
    HeaderSized,
    /// The header is written.
    Described,
    /// The file has its length.
    Sized,
    /// This rank has joined the file that another made.
    Joined,
    /// The memory is mapped.
    Mapped,
    /// Its pages are touched.
    Touching,
    /// Waiting for the other ranks.
    Waiting,
    /// All ranks are there.
    Met,
    /// The name is removed.
    Unnamed,
}

/// What hears of the progress, on the caller's thread, at least every 50 ms. If it answers `Break`,
/// the start ends with [`RegionError::Stopped`].
pub type OnProgress<'a> = &'a mut dyn FnMut(RegionProgress) -> ControlFlow<()>;

impl PinnedRegion {
    /// Makes the region and waits for the other ranks.
    ///
    /// # Errors
    ///
    /// [`RegionError::InUse`] where another engine uses the name; else any of its other kinds.
    pub fn create(config: &RegionConfig, progress: OnProgress<'_>) -> Result<Self, RegionError> {
        join::open(config, join::Role::Make, progress)
    }

    /// Waits for the region that another rank makes, and for the other ranks.
    ///
    /// # Errors
    ///
    /// [`RegionError::Timeout`] where nobody makes it; else any of its other kinds.
    pub fn attach(config: &RegionConfig, progress: OnProgress<'_>) -> Result<Self, RegionError> {
        join::open(config, join::Role::Join, progress)
    }

    /// Makes the region if this rank is the first, else joins it, and waits for the other ranks.
    ///
    /// # Errors
    ///
    /// Any kind of [`RegionError`].
    pub fn open(config: &RegionConfig, progress: OnProgress<'_>) -> Result<Self, RegionError> {
        join::open(config, join::Role::Either, progress)
    }

    /// Makes a region for one process, without a file.
    ///
    /// # Errors
    ///
    /// Where there is too little memory, or a limit is too low.
    pub fn private(config: &PrivateConfig, progress: OnProgress<'_>) -> Result<Self, RegionError> {
        settle::private(config, progress)
    }

    /// Where the first area starts: at a page of the size that was asked for, if huge pages were got.
    #[must_use]
    pub fn address(&self) -> u64 {
        // In bounds: `start` and the length of all areas were added up to the length of the mapping.
        self.map
            .as_mut_ptr()
            .wrapping_add(self.start)
            .expose_provenance() as u64
    }

    /// The length of all areas together, with what fills their last pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.geometry.data_bytes
    }

    /// Where the bytes of a rank are: the same for all where the ranks share one area.
    #[must_use]
    pub fn rank_area(&self, rank: usize) -> Option<Extent> {
        (rank < self.geometry.ranks).then(|| Extent {
            address: self.address() + self.geometry.area_offset(rank),
            bytes: self.geometry.layout.area_bytes,
        })
    }

    /// How many ranks share it.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.geometry.ranks
    }

    /// How many slots an area has.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.header.slots()
    }

    /// A random number that all ranks see and that no other region has.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.header.nonce()
    }

    /// A random number that all ranks see, for tables that they share.
    #[must_use]
    pub fn hash_seed(&self) -> u64 {
        self.header.hash_seed()
    }

    /// Marks a slot whose store has failed, or takes the mark away: all ranks see it.
    ///
    /// # Errors
    ///
    /// [`RegionError::Slot`] if there is no such slot.
    pub fn set_failed(&self, slot: u64, failed: bool) -> Result<(), RegionError> {
        self.header
            .set_failed(slot, failed)
            .ok_or_else(|| self.no_slot(slot))
    }

    /// Whether a store of this slot has failed, by any rank, and none has been done since.
    ///
    /// # Errors
    ///
    /// [`RegionError::Slot`] if there is no such slot.
    pub fn is_failed(&self, slot: u64) -> Result<bool, RegionError> {
        self.header
            .is_failed(slot)
            .ok_or_else(|| self.no_slot(slot))
    }

    /// What was got, and why not more.
    #[must_use]
    pub fn report(&self) -> &RegionReport {
        &self.report
    }

    fn no_slot(&self, slot: u64) -> RegionError {
        let slots = self.slots();
        RegionError::Slot { slot, slots }
    }
}

impl fmt::Debug for PinnedRegion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("PinnedRegion");
        debug.field("address", &format_args!("{:#x}", self.address()));
        debug
            .field("bytes", &self.bytes())
            .field("geometry", &self.geometry);
        debug.field("file", &self.file).finish_non_exhaustive()
    }
}

/// Tells the callback, and hears whether to stop.
fn tell(
    progress: OnProgress<'_>,
    stage: RegionStage,
    done: u64,
    total: u64,
) -> Result<(), RegionError> {
    match progress(RegionProgress { stage, done, total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(RegionError::Stopped { stage }),
    }
}
