//! Maps the memory of a region, touches this rank's share of it, and says what was got.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::thread::available_parallelism;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::config::{
    Areas, Fingerprint, Geometry, HugePages, MemoryOptions, PrivateConfig, RegionLayout,
};
use super::error::RegionError;
use super::header::{Header, Tag};
use super::numa::{self, NoNode, Node};
use super::pages::{self, NoHugePages};
use super::report::{RegionNote, RegionReport};
use super::touch::{Touch, TouchError};
use super::{OnProgress, PinnedRegion, RegionStage, claim, limits, tell};

/// More threads than this do not make one rank's share faster: the memory is the limit.
const MOST_THREADS: usize = 16;

/// Makes a region for one process.
pub(super) fn private(
    config: &PrivateConfig,
    progress: OnProgress<'_>,
) -> Result<PinnedRegion, RegionError> {
    let layout = RegionLayout {
        areas: Areas::PerRank,
        area_bytes: config.bytes,
        slots: config.slots,
        slot_bytes: config.bytes.checked_div(config.slots).unwrap_or(0),
    };
    let geometry = Geometry::of(layout, 1, config.memory.huge_pages)?;
    // Huge pages begin at multiples of their size, which a mapping need not do.
    let bytes = geometry.data_bytes + geometry.alignment;
    limits::check_mapping(bytes)?;
    let refused_by_mmap = |source| claim::failed("mmap", Path::new("(private memory)"), source);
    let length = usize::try_from(bytes).map_err(|_| RegionError::TooLarge { layout, ranks: 1 })?;
    let (map, no_huge) = match pages::map_set_aside(length, config.memory.huge_pages) {
        Some(Ok(map)) => (map, None),
        refused => {
            // What is set aside for huge pages is not among the memory that is available.
            limits::check_memory(geometry.data_bytes)?;
            let map = MmapMut::map_anon(length).map_err(refused_by_mmap)?.into();
            pages::advise(&map, config.memory.huge_pages);
            (map, refused.map(|_| NoHugePages::NotReserved))
        }
    };
    let header = Header::private(geometry.header_bytes, layout.slots).map_err(refused_by_mmap)?;
    header.describe(&geometry, &tag(Fingerprint(0), 0, false)?);
    let start = map
        .as_mut_ptr()
        .addr()
        .next_multiple_of(alignment(&geometry))
        - map.as_mut_ptr().addr();
    let memory = Memory {
        map: &map,
        range: start..start + length - alignment(&geometry),
        file: None,
        directory: Path::new(""),
        options: config.memory,
        ranks: 1,
        alignment: alignment(&geometry),
    };
    let mut report = memory.settle(no_huge, progress)?;
    report.bytes = geometry.data_bytes;
    Ok(PinnedRegion {
        map,
        start,
        header,
        geometry,
        file: None,
        report,
    })
}

/// What tells this region from others.
pub(super) fn tag(
    fingerprint: Fingerprint,
    maker: usize,
    name_kept: bool,
) -> Result<Tag, RegionError> {
    Ok(Tag {
        fingerprint,
        nonce: random()?,
        hash_seed: random()?,
        maker,
        name_kept,
    })
}

/// Maps all areas of a file that has its length.
pub(super) fn map_areas(file: &File, geometry: &Geometry) -> std::io::Result<MmapRaw> {
    let bytes = usize::try_from(geometry.data_bytes).map_err(std::io::Error::other)?;
    MmapOptions::new()
        .offset(geometry.header_bytes)
        .len(bytes)
        .map_raw(file)
}

/// The memory that a rank touches, and how it should be.
pub(super) struct Memory<'a> {
    pub(super) map: &'a MmapRaw,
    /// This rank's part of the mapping.
    pub(super) range: Range<usize>,
    /// The file, and where the mapping begins in it.
    pub(super) file: Option<(&'a File, u64)>,
    /// Where the file is.
    pub(super) directory: &'a Path,
    pub(super) options: MemoryOptions,
    pub(super) ranks: usize,
    pub(super) alignment: usize,
}

impl Memory<'_> {
    /// Touches this rank's part, and reports. `no_huge` is known of the pages already.
    pub(super) fn settle(
        &self,
        no_huge: Option<NoHugePages>,
        progress: OnProgress<'_>,
    ) -> Result<RegionReport, RegionError> {
        let mut notes = Vec::new();
        let node = self.node(&mut notes);
        let total = self.range.len() as u64;
        let touch = Touch {
            map: self.map,
            range: self.range.clone(),
            file: self.file,
            alignment: self.alignment,
            threads: self.threads(node.as_ref()),
            node: node.as_ref(),
        };
        let mut stage = |done| {
            progress(super::RegionProgress {
                stage: RegionStage::Touching,
                done,
                total,
            })
        };
        let touched = touch.run(&mut stage).map_err(|error| self.explain(error))?;
        if !touched.populated {
            notes.push(RegionNote::OldKernel);
        }
        let mut numa_node = node.as_ref().map(Node::number);
        if let Some(node) = numa_node.take_if(|_| !touched.on_node) {
            let why = NoNode::NotAllowed;
            notes.push(RegionNote::NoNode { node, why });
        }
        let addresses = self.addresses();
        if let Some(node) = numa_node
            && let Some(share) = numa::share_on(node, &addresses)
            && share < 0.99
        {
            notes.push(RegionNote::OtherNode { node, share });
        }
        let huge_page_bytes = self.huge_pages(no_huge, &mut notes);
        if let Some(limit) = limits::locked_memory().filter(|limit| *limit < total) {
            notes.push(RegionNote::LockedMemory { limit });
        }
        Ok(RegionReport {
            file: None,
            bytes: self.map.len() as u64,
            ranks: self.ranks,
            touched_bytes: total,
            touch_time: touched.elapsed,
            touch_threads: touched.threads,
            huge_page_bytes,
            numa_node,
            removed: Vec::new(),
            notes,
        })
    }

    fn addresses(&self) -> Range<usize> {
        let base = self.map.as_mut_ptr().addr();
        base + self.range.start..base + self.range.end
    }

    fn node(&self, notes: &mut Vec<RegionNote>) -> Option<Node> {
        let number = self.options.numa_node?;
        match Node::find(number) {
            Ok(node) => node,
            Err(why) => {
                notes.push(RegionNote::NoNode { node: number, why });
                None
            }
        }
    }

    fn threads(&self, node: Option<&Node>) -> NonZeroUsize {
        let fair = || {
            let all = available_parallelism().map_or(1, NonZeroUsize::get);
            let usable = node.map_or(all, |node| node.processors().min(all));
            NonZeroUsize::new((usable / self.ranks).min(MOST_THREADS))
        };
        self.options
            .touch_threads
            .or_else(fair)
            .unwrap_or(NonZeroUsize::MIN)
    }

    fn huge_pages(&self, no_huge: Option<NoHugePages>, notes: &mut Vec<RegionNote>) -> Option<u64> {
        let asked = self.range.len() as u64;
        let wanted = self.options.huge_pages;
        if wanted == HugePages::Off || asked == 0 {
            return None;
        }
        let file = self.file.map(|(file, _)| file);
        let less = match no_huge {
            Some(why) => Some((0, why)),
            None => pages::why_small(wanted, file, &self.addresses(), asked),
        };
        match less {
            None => Some(self.alignment as u64),
            Some((got, why)) => {
                notes.push(RegionNote::HugePages { got, asked, why });
                None
            }
        }
    }

    /// Says what a refused page means.
    fn explain(&self, error: TouchError) -> RegionError {
        let (address, bytes, touched, source) = match error {
            TouchError::Stopped => {
                let stage = RegionStage::Touching;
                return RegionError::Stopped { stage };
            }
            TouchError::Failed {
                address,
                bytes,
                touched,
                source,
            } => (address, bytes, touched, source),
        };
        match (Errno::from_io_error(&source), self.file) {
            (Some(Errno::HWPOISON), _) => RegionError::Poisoned { address, bytes },
            // A page that is not there because the file system is full would be a SIGBUS.
            (Some(Errno::FAULT | Errno::NOSPC | Errno::DQUOT), Some((file, _))) => {
                RegionError::NoSpace {
                    directory: self.directory.to_owned(),
                    need: self.range.len() as u64 - touched,
                    have: limits::room(file).unwrap_or(0),
                }
            }
            _ => RegionError::Touch { touched, source },
        }
    }
}

/// Tells the stage that needs no numbers.
pub(super) fn reached(progress: OnProgress<'_>, stage: RegionStage) -> Result<(), RegionError> {
    tell(progress, stage, 0, 0)
}

fn alignment(geometry: &Geometry) -> usize {
    // It is no longer than the file, whose length fits.
    usize::try_from(geometry.alignment).unwrap_or(usize::MAX)
}

fn random() -> Result<u64, RegionError> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| claim::failed("getrandom", Path::new(""), error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}
