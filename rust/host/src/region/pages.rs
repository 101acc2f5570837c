//! Huge pages: asking for them, and seeing what was got.

use std::fs::{self, File};
use std::io;
use std::ops::Range;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{fstatfs, major, minor};

use super::config::HugePages;

/// The file system type of huge pages, as `statfs` names it.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Why there are fewer huge pages than were asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoHugePages {
    /// The kernel has none, or they are switched off.
    #[error("{switch} is {value:?}")]
    Off {
        /// Where that is set.
        switch: &'static str,
        /// What is set there.
        value: String,
    },
    /// The file system of the directory makes none.
    #[error("the file system is mounted with {option}: remount it with huge=advise")]
    Mount {
        /// How it is mounted.
        option: String,
    },
    /// The directory is on no hugetlbfs with pages of that size.
    #[error("the directory is on no hugetlbfs with pages of that size")]
    NoHugetlbfs,
    /// The administrator has not set enough of them aside.
    #[error("too few are set aside in /sys/kernel/mm/hugepages")]
    NotReserved,
    /// Memory is in pieces, or whatever else the kernel does not say.
    #[error("the kernel made no more")]
    Unsaid,
}

/// Maps memory for one process, of the huge pages that were set aside, if such are asked for.
pub(super) fn map_set_aside(bytes: usize, huge_pages: HugePages) -> Option<io::Result<MmapRaw>> {
    let HugePages::Explicit(size) = huge_pages else {
        return None;
    };
    let bits = u8::try_from(size.ilog2()).unwrap_or(u8::MAX);
    Some(
        MmapOptions::new()
            .len(bytes)
            .huge(Some(bits))
            .map_anon()
            .map(MmapRaw::from),
    )
}

/// Asks for transparent huge pages. A kernel without them refuses, and nothing is lost.
pub(super) fn advise(map: &MmapRaw, huge_pages: HugePages) {
    if huge_pages == HugePages::Transparent {
        map.advise(Advice::HugePage).ok();
    }
}

/// Whether a file consists of huge pages that were set aside.
pub(super) fn is_hugetlbfs(file: &File) -> bool {
    fstatfs(file).is_ok_and(|system| system.f_type == HUGETLBFS)
}

/// Says why the pages of a mapping are smaller than asked for, if more than a tenth of `touched` is.
pub(super) fn why_small(
    huge_pages: HugePages,
    file: Option<&File>,
    addresses: &Range<usize>,
    touched: u64,
) -> Option<(u64, NoHugePages)> {
    match huge_pages {
        HugePages::Off => None,
        HugePages::Explicit(size) => {
            let system = fstatfs(file?).ok()?;
            let there = is_hugetlbfs(file?) && u64::try_from(system.f_bsize) == Ok(size);
            (!there).then_some((0, NoHugePages::NoHugetlbfs))
        }
        HugePages::Transparent => {
            let got = huge_bytes(&fs::read_to_string("/proc/self/smaps").ok()?, addresses);
            (got < touched - touched / 10).then(|| (got, why_none(file)))
        }
    }
}

fn why_none(file: Option<&File>) -> NoHugePages {
    let switch = "/sys/kernel/mm/transparent_hugepage/enabled";
    let value = fs::read_to_string(switch).unwrap_or_else(|_| "absent".to_owned());
    let Some(file) = file else {
        let off = value == "absent" || value.contains("[never]");
        let value = value.trim().to_owned();
        return if off {
            NoHugePages::Off { switch, value }
        } else {
            NoHugePages::Unsaid
        };
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match rustix::fs::fstat(file) {
        Ok(status) => why_mount(&mounts, major(status.st_dev), minor(status.st_dev)),
        Err(_) => NoHugePages::Unsaid,
    }
}

/// Finds out how the file system with this device number is mounted.
fn why_mount(mounts: &str, major: u32, minor: u32) -> NoHugePages {
    let device = format!("{major}:{minor}");
    let mut lines = mounts.lines();
    let line = lines.find(|line| line.split(' ').nth(2) == Some(device.as_str()));
    let Some((_, system)) = line.and_then(|line| line.split_once(" - ")) else {
        return NoHugePages::Unsaid;
    };
    let options = system.split(' ').nth(2).unwrap_or_default();
    match options
        .split(',')
        .find(|option| option.starts_with("huge="))
    {
        // The option is absent from the list where it is the default.
        None => NoHugePages::Mount {
            option: "huge=never".to_owned(),
        },
        Some("huge=never") => NoHugePages::Mount {
            option: "huge=never".to_owned(),
        },
        Some(_) => NoHugePages::Unsaid,
    }
}

/// Adds up the huge pages of the mappings at these addresses, in a text like `/proc/self/smaps`.
fn huge_bytes(maps: &str, addresses: &Range<usize>) -> u64 {
    let mut within = false;
    let mut kilobytes = 0;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some(range) = hex_range(first) {
            within = range.start < addresses.end && addresses.start < range.end;
        } else if within
            && matches!(
                first,
                "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:"
            )
        {
            kilobytes += words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    kilobytes << 10
}

fn hex_range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests;
