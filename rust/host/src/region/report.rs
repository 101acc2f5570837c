//! What a region got, and why not more, in one line for a log.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::error::Bytes;
use super::numa::NoNode;
use super::pages::NoHugePages;

/// What a region got, and why not more. Its text is one line.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RegionReport {
    /// The file, if it has one, and whether it keeps its name.
    pub file: Option<(PathBuf, bool)>,
    /// The length of all areas.
    pub bytes: u64,
    /// How many ranks share it.
    pub ranks: usize,
    /// What this rank touched first.
    pub touched_bytes: u64,
    /// How long that took.
    pub touch_time: Duration,
    /// By how many threads.
    pub touch_threads: usize,
    /// How many bytes lie in a page of this size, if huge pages were asked for and got.
    pub huge_page_bytes: Option<u64>,
    /// The node that this rank's bytes were put on.
    pub numa_node: Option<u32>,
    /// Files of killed engines that were removed.
    pub removed: Vec<PathBuf>,
    /// What is less than it might be.
    pub notes: Vec<RegionNote>,
}

/// Something that works, but less well than it might.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionNote {
    /// Fewer huge pages than were asked for.
    #[error("{} of {} in huge pages: {why}", Bytes(*got), Bytes(*asked))]
    HugePages {
        /// The bytes that lie in huge pages.
        got: u64,
        /// The bytes that were to.
        asked: u64,
        /// Why not more.
        why: NoHugePages,
    },
    /// The memory is not put on the node that was asked for.
    #[error("not put on node {node}: {why}")]
    NoNode {
        /// The node.
        node: u32,
        /// Why.
        why: NoNode,
    },
    /// Not all of the memory lies on the node that was asked for.
    #[error("{:.0} % of it on node {node}: the node is full, or the process has a memory policy", share * 100.0)]
    OtherNode {
        /// The node.
        node: u32,
        /// The share that lies there.
        share: f64,
    },
    /// The kernel is older than 5.14.
    #[error("touched by writing: the kernel has no MADV_POPULATE_WRITE")]
    OldKernel,
    /// The limit of locked memory is below the size of the region.
    #[error(
        "RLIMIT_MEMLOCK is {}: accelerators register memory without it, mlock of the region would \
         need it (ulimit -l unlimited)",
        Bytes(*limit)
    )]
    LockedMemory {
        /// The limit.
        limit: u64,
    },
}

impl fmt::Display for RegionReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "host region of {}", Bytes(self.bytes))?;
        match &self.file {
            None => formatter.write_str(", private")?,
            Some((path, kept)) => {
                let name = if *kept { "named" } else { "its name removed" };
                write!(
                    formatter,
                    " in {}, {name} (ranks: {})",
                    path.display(),
                    self.ranks
                )?;
            }
        }
        write!(
            formatter,
            "; touched {} in {:.2} s (threads: {})",
            Bytes(self.touched_bytes),
            self.touch_time.as_secs_f64(),
            self.touch_threads,
        )?;
        match self.huge_page_bytes {
            Some(bytes) => write!(formatter, "; pages of {}", Bytes(bytes))?,
            None => formatter.write_str("; ordinary pages")?,
        }
        if let Some(node) = self.numa_node {
            write!(formatter, "; on NUMA node {node}")?;
        }
        for path in &self.removed {
            write!(formatter, "; removed the leftover {}", path.display())?;
        }
        for note in &self.notes {
            write!(formatter, "; {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
