//! What a region should be, and where its parts lie.
//!
//! 1. Every number of a [`Geometry`] is a sum or a product that did not overflow, and the file is no
//!    longer than an address space.
//! 2. All offsets are multiples of the alignment, which is a multiple of the page size.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::error::RegionError;
use super::header;

/// The most ranks that one region has room for: the accelerators of one node.
pub(super) const MAX_RANKS: usize = 64;

/// The file of a region is called this and its name.
pub(super) const PREFIX: &str = "kvferry-";

/// The longest name, in bytes. File systems take 255 with the prefix.
const MAX_NAME: usize = 200;

/// The size of a transparent huge page on the systems that have accelerators.
const TRANSPARENT_BYTES: u64 = 2 << 20;

/// Whose bytes a region holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Areas {
    /// An area for each rank, one after the other.
    PerRank,
    /// One area for all ranks, which hold equal bytes.
    Shared,
}

/// What a region holds. All ranks give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionLayout {
    /// Whose bytes it holds.
    pub areas: Areas,
    /// The length of an area.
    pub area_bytes: u64,
    /// How many chunks an area holds.
    pub slots: u64,
    /// The bytes of a chunk in an area.
    pub slot_bytes: u64,
}

/// What else has to be equal for two ranks to share a region: model, dtype, ranks, block hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Returns the fingerprint of some texts, in this order. `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Self {
        let mut hasher = Xxh3::new();
        for part in parts {
            let part = part.as_ref();
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.digest128())
    }
}

/// Which pages to ask for. What was got is in the report; less than was asked for is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Ordinary pages.
    Off,
    /// Huge pages where the system makes them itself.
    #[default]
    Transparent,
    /// Huge pages of this many bytes, from those that the administrator set aside. For a region with
    /// a name its directory is then on a hugetlbfs.
    Explicit(u64),
}

/// How to lay memory out in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryOptions {
    /// Which pages to ask for.
    pub huge_pages: HugePages,
    /// The NUMA node that this rank's bytes should lie on: that of its accelerator.
    pub numa_node: Option<u32>,
    /// How many threads touch this rank's bytes first; by default a fair share of the processors.
    pub touch_threads: Option<NonZeroUsize>,
}

/// A region that the ranks of one engine share, as one of them sees it.
#[derive(Debug, Clone)]
pub struct RegionConfig {
    /// The name of the engine: letters, digits, `.`, `_` and `-`. Two engines have different names.
    pub name: String,
    /// Where the file lives until all ranks have mapped it. `/dev/shm` by default.
    pub directory: PathBuf,
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub ranks: usize,
    /// What the region holds.
    pub layout: RegionLayout,
    /// What else has to be equal.
    pub fingerprint: Fingerprint,
    /// How to lay it out in the machine.
    pub memory: MemoryOptions,
    /// Whether the file keeps its name after all ranks have mapped it.
    /// Other starts of that name are then refused until the last rank has ended; the next one after that
    /// removes the file.
    pub keep_name: bool,
    /// How long to wait for the other ranks, from the call to the moment when all are there. It
    /// includes the time that they need to touch their memory. Five minutes by default.
    pub timeout: Duration,
}

impl RegionConfig {
    /// Returns the configuration of one rank, with defaults for the rest.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        rank: usize,
        ranks: usize,
        layout: RegionLayout,
        fingerprint: Fingerprint,
    ) -> Self {
        Self {
            name: name.into(),
            directory: PathBuf::from("/dev/shm"),
            rank,
            ranks,
            layout,
            fingerprint,
            memory: MemoryOptions::default(),
            keep_name: false,
            timeout: Duration::from_secs(300),
        }
    }

    /// Where the file of this name lives.
    pub(super) fn path(&self) -> Result<PathBuf, RegionError> {
        let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let length = self.name.len();
        if length == 0 || length > MAX_NAME || !self.name.bytes().all(ordinary) {
            return Err(RegionError::Name {
                name: self.name.clone(),
                max: MAX_NAME,
            });
        }
        Ok(Path::new(&self.directory).join(format!("{PREFIX}{}", self.name)))
    }
}

/// Memory for one process.
#[derive(Debug, Clone, Copy)]
pub struct PrivateConfig {
    /// How much.
    pub bytes: u64,
    /// How many chunks it holds.
    pub slots: u64,
    /// How to lay it out in the machine.
    pub memory: MemoryOptions,
}

/// Where the parts of a region lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) layout: RegionLayout,
    pub(super) ranks: usize,
    /// What every offset is a multiple of.
    pub(super) alignment: u64,
    /// The header, and where the areas begin in the file.
    pub(super) header_bytes: u64,
    /// From one area to the next.
    pub(super) area_stride: u64,
    /// All areas.
    pub(super) data_bytes: u64,
}

impl Geometry {
    pub(super) fn new(config: &RegionConfig) -> Result<Self, RegionError> {
        let (rank, ranks) = (config.rank, config.ranks);
        if ranks == 0 || ranks > MAX_RANKS || rank >= ranks {
            let max = MAX_RANKS;
            return Err(RegionError::Ranks { rank, ranks, max });
        }
        Self::of(config.layout, ranks, config.memory.huge_pages)
    }

    pub(super) fn of(
        layout: RegionLayout,
        ranks: usize,
        huge_pages: HugePages,
    ) -> Result<Self, RegionError> {
        let too_large = || RegionError::TooLarge { layout, ranks };
        let used = layout
            .slots
            .checked_mul(layout.slot_bytes)
            .ok_or_else(too_large)?;
        if used == 0 || layout.area_bytes < used {
            return Err(RegionError::Slots { layout });
        }
        let alignment = alignment(huge_pages)?;
        let up = |bytes: u64| {
            bytes
                .checked_next_multiple_of(alignment)
                .ok_or_else(too_large)
        };
        let header_bytes = up(header::bytes_for(layout.slots).ok_or_else(too_large)?)?;
        let area_stride = up(layout.area_bytes)?;
        let areas = match layout.areas {
            Areas::PerRank => ranks as u64,
            Areas::Shared => 1,
        };
        let data_bytes = area_stride.checked_mul(areas).ok_or_else(too_large)?;
        let file_bytes = data_bytes.checked_add(header_bytes).ok_or_else(too_large)?;
        if isize::try_from(file_bytes).is_err() {
            return Err(too_large());
        }
        Ok(Self {
            layout,
            ranks,
            alignment,
            header_bytes,
            area_stride,
            data_bytes,
        })
    }

    /// The length of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.header_bytes + self.data_bytes
    }

    /// Where the area of a rank begins, from the first area.
    pub(super) fn area_offset(&self, rank: usize) -> u64 {
        match self.layout.areas {
            Areas::PerRank => self.area_stride * rank as u64,
            Areas::Shared => 0,
        }
    }

    /// What a rank touches first: its area, or its share of the area of all. `(offset, length)`.
    pub(super) fn share(&self, rank: usize) -> (u64, u64) {
        match self.layout.areas {
            Areas::PerRank => (self.area_offset(rank), self.area_stride),
            Areas::Shared => {
                let pages = self.data_bytes / self.alignment;
                let (each, more) = (pages / self.ranks as u64, pages % self.ranks as u64);
                let before = each * rank as u64 + more.min(rank as u64);
                let own = each + u64::from((rank as u64) < more);
                (before * self.alignment, own * self.alignment)
            }
        }
    }
}

fn alignment(huge_pages: HugePages) -> Result<u64, RegionError> {
    let page = rustix::param::page_size() as u64;
    match huge_pages {
        HugePages::Off => Ok(page),
        HugePages::Transparent => Ok(TRANSPARENT_BYTES.max(page)),
        HugePages::Explicit(bytes) if bytes.is_power_of_two() && bytes >= page => Ok(bytes),
        HugePages::Explicit(bytes) => Err(RegionError::HugePageBytes { bytes, page }),
    }
}

#[cfg(test)]
mod tests;
