//! Why a region cannot be had. Each message says what is needed, what there is, and what to change.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::RegionStage;
use super::config::RegionLayout;

/// Why a region cannot be had. Nothing is left behind but what the next start removes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A name that is not one part of a path, or too long.
    #[error("the region's name {name:?} is not 1 to {max} letters, digits, '.', '_' and '-'")]
    Name {
        /// What was asked for.
        name: String,
        /// The longest.
        max: usize,
    },
    /// A rank that is not one of the ranks, or too many of them.
    #[error("rank {rank} of {ranks}: the rank is below the number of ranks, which is 1 to {max}")]
    Ranks {
        /// The rank.
        rank: usize,
        /// How many there are.
        ranks: usize,
        /// The most.
        max: usize,
    },
    /// Slots that do not fit, or none.
    #[error(
        "{} slots of {} bytes do not fit an area of {} bytes, or are none",
        layout.slots, layout.slot_bytes, layout.area_bytes
    )]
    Slots {
        /// What was asked for.
        layout: RegionLayout,
    },
    /// More than an address space holds.
    #[error("{ranks} ranks of {} bytes are more than an address space holds", layout.area_bytes)]
    TooLarge {
        /// What was asked for.
        layout: RegionLayout,
        /// How many ranks.
        ranks: usize,
    },
    /// A size that no huge page has.
    #[error("huge pages of {bytes} bytes: the size is a power of two, and at least {page}")]
    HugePageBytes {
        /// What was asked for.
        bytes: u64,
        /// The size of an ordinary page.
        page: u64,
    },

    /// The file system of the directory has too little room.
    #[error(
        "{} has too little room: the region needs {}, {} are free. Make it larger (docker: \
         --shm-size; Kubernetes: an emptyDir of medium Memory with a larger sizeLimit; else mount \
         -o remount,size=…), choose another directory, or make the region smaller",
        directory.display(), Bytes(*need), Bytes(*have)
    )]
    NoSpace {
        /// The directory.
        directory: PathBuf,
        /// The bytes that are needed.
        need: u64,
        /// The bytes that are free.
        have: u64,
    },
    /// Too few huge pages are set aside.
    #[error(
        "too few huge pages are set aside for {}: the region needs {pages} of {}. Write that number to \
         nr_hugepages in /sys/kernel/mm/hugepages, choose another directory, or make the region \
         smaller",
        directory.display(), Bytes(*page)
    )]
    HugePages {
        /// The directory.
        directory: PathBuf,
        /// How many are needed.
        pages: u64,
        /// The size of each.
        page: u64,
    },
    /// The machine has too little memory.
    #[error(
        "the machine has too little memory: the region needs {}, {} are available with swap. Make \
         the region smaller",
        Bytes(*need), Bytes(*have)
    )]
    Memory {
        /// The bytes that are needed.
        need: u64,
        /// The bytes that are available.
        have: u64,
    },
    /// The memory limit of the container or service is too low.
    #[error(
        "the memory limit of the control group {} is too low: the region needs {}, {} are left. Raise \
         the limit (docker: --memory; Kubernetes: resources.limits.memory; systemd: MemoryMax), or \
         make the region smaller",
        group.display(), Bytes(*need), Bytes(*have)
    )]
    ControlGroup {
        /// Where the limit is set.
        group: PathBuf,
        /// The bytes that are needed.
        need: u64,
        /// The bytes that are left.
        have: u64,
    },
    /// The limit of the process's address space is too low.
    #[error(
        "RLIMIT_AS is too low: the region needs {}, {} are left. Raise it (ulimit -v unlimited), or \
         make the region smaller",
        Bytes(*need), Bytes(*have)
    )]
    AddressSpace {
        /// The bytes that are needed.
        need: u64,
        /// The bytes that are left.
        have: u64,
    },
    /// The limit of the length of a file is too low.
    #[error(
        "RLIMIT_FSIZE is too low: the region's file needs {}, the limit is {}. Raise it (ulimit -f \
         unlimited), or make the region smaller",
        Bytes(*need), Bytes(*have)
    )]
    FileSize {
        /// The bytes that are needed.
        need: u64,
        /// The limit.
        have: u64,
    },
    /// The system gave no memory for a page.
    #[error("no memory for the pages after {}", Bytes(*touched))]
    Touch {
        /// How much was touched before.
        touched: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A page of the machine's memory is damaged.
    #[error("the machine's memory is damaged within the {bytes} bytes at {address:#x}")]
    Poisoned {
        /// Where it was touched.
        address: u64,
        /// How much was touched in this step.
        bytes: u64,
    },

    /// Another engine uses the name.
    #[error(
        "{} is in use by a running engine: give this one another name, or end the other", path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Another process is this rank already.
    #[error("rank {rank} of {} is another running process", path.display())]
    RankTaken {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: usize,
    },
    /// A file of this name that is no region of this user. It is left alone.
    #[error("{} is {what}: remove it, or choose another name", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: Foreign,
    },
    /// The ranks do not agree about what the region holds.
    #[error(
        "the ranks do not agree: {field} is {ours} here and {theirs} in {}", path.display()
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        field: &'static str,
        /// This rank's value.
        ours: u128,
        /// The value of the rank that made the file.
        theirs: u128,
    },
    /// A header with a value that no rank writes.
    #[error("{field} in the header of {} is {value:#x}: another program wrote there", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Two ranks have files of their own.
    #[error("rank {rank} has mapped another file than {}: give all ranks one directory", path.display())]
    DifferentFile {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: usize,
    },

    /// Not all ranks came in time.
    #[error(
        "ranks {missing:?} did not come to {} within {waited:?}: have they all started, with one \
         directory and one name?",
        path.display()
    )]
    Timeout {
        /// The file.
        path: PathBuf,
        /// How long this rank has waited.
        waited: Duration,
        /// Who did not come, as far as this rank knows.
        missing: Vec<usize>,
    },
    /// A rank ended before all were there.
    #[error("rank {rank} of {} ended before all ranks were there", path.display())]
    MemberDied {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: usize,
    },
    /// A rank gave up before all were there.
    #[error("rank {rank} of {} gave up: {reason}", path.display())]
    MemberFailed {
        /// The file.
        path: PathBuf,
        /// The rank.
        rank: usize,
        /// Why.
        reason: Reason,
    },
    /// The progress callback said so.
    #[error("stopped as asked, at {stage:?}")]
    Stopped {
        /// How far it had come.
        stage: RegionStage,
    },
    /// A slot that the region does not have.
    #[error("slot {slot} of {slots}")]
    Slot {
        /// The slot.
        slot: u64,
        /// How many there are.
        slots: u64,
    },
    /// A call failed that ought not to.
    #[error("{call} {}: {source}", path.display())]
    Io {
        /// The call.
        call: &'static str,
        /// What it was about.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl RegionError {
    /// What to tell the other ranks.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::NoSpace { .. } => Reason::NoSpace,
            Self::Memory { .. }
            | Self::HugePages { .. }
            | Self::ControlGroup { .. }
            | Self::AddressSpace { .. }
            | Self::FileSize { .. }
            | Self::Touch { .. }
            | Self::Poisoned { .. } => Reason::Memory,
            Self::Timeout { .. } => Reason::Timeout,
            Self::Stopped { .. } => Reason::Stopped,
            Self::MemberDied { .. } => Reason::MemberDied,
            _ => Reason::Other,
        }
    }
}

/// Why another rank gave up. Its own error says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It got no memory, or met a limit.
    Memory,
    /// The file system is full.
    NoSpace,
    /// It has waited long enough.
    Timeout,
    /// It was told to stop.
    Stopped,
    /// A rank has ended.
    MemberDied,
    /// Something else.
    Other,
}

impl Reason {
    const ALL: [Self; 6] = [
        Self::Memory,
        Self::NoSpace,
        Self::Timeout,
        Self::Stopped,
        Self::MemberDied,
        Self::Other,
    ];

    /// What stands in the header for it: never 0.
    pub(super) fn code(self) -> u32 {
        self as u32 + 1
    }

    /// What a code means. One that no rank writes is "something else".
    pub(super) fn of_code(code: u32) -> Self {
        let known = Self::ALL.into_iter().find(|reason| reason.code() == code);
        known.unwrap_or(Self::Other)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "it got too little memory",
            Self::NoSpace => "the file system is full",
            Self::Timeout => "it has waited for too long",
            Self::Stopped => "it was told to stop",
            Self::MemberDied => "a rank has ended",
            Self::Other => "its own error says why",
        })
    }
}

/// What a file is that is no region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A link, a folder, a pipe.
    NoFile,
    /// Someone else's.
    Owner(u32),
    /// Written by another program.
    Content,
}

impl fmt::Display for Foreign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => formatter.write_str("no regular file"),
            Self::Owner(user) => write!(formatter, "the file of user {user}"),
            Self::Content => formatter.write_str("no region of kvferry"),
        }
    }
}

/// A number of bytes, as people read it.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let bits = self.0.max(1).ilog2() as usize;
        match UNITS.get((bits / 10).min(UNITS.len()).wrapping_sub(1)) {
            None => write!(formatter, "{} bytes", self.0),
            Some(unit) => {
                let shift = (bits / 10).min(UNITS.len()) * 10;
                let hundredths = (u128::from(self.0) * 100) >> shift;
                write!(
                    formatter,
                    "{}.{:02} {unit}",
                    hundredths / 100,
                    hundredths % 100
                )
            }
        }
    }
}
