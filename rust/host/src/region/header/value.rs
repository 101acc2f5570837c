//! What the words of a header mean.

use super::super::config::Fingerprint;

/// How far a region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Phase {
    /// The header is being written: nothing in it means anything.
    Writing,
    /// The header says what the region is.
    Described,
    /// The file has its length.
    Sized,
    /// All ranks have mapped it, and its name is gone or is kept.
    Complete,
}

impl Phase {
    pub(super) const ALL: [Self; 4] = [Self::Writing, Self::Described, Self::Sized, Self::Complete];
}

/// How far a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Stage {
    /// It has not come.
    Absent,
    /// It holds its lock.
    Joined,
    /// It has mapped the file and touched its bytes.
    Arrived,
}

impl Stage {
    pub(super) const ALL: [Self; 3] = [Self::Absent, Self::Joined, Self::Arrived];
}

/// A value that no member writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct BadWord {
    pub(in super::super) field: &'static str,
    pub(in super::super) value: u64,
}

/// A value that is not what this rank would have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Difference {
    pub(in super::super) field: &'static str,
    pub(in super::super) ours: u128,
    pub(in super::super) theirs: u128,
}

/// Which file a member has mapped, and of which region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Identity {
    pub(in super::super) device: u64,
    pub(in super::super) inode: u64,
    pub(in super::super) nonce: u64,
}

/// What distinguishes a region beside its geometry.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Tag {
    pub(in super::super) fingerprint: Fingerprint,
    pub(in super::super) nonce: u64,
    pub(in super::super) hash_seed: u64,
    pub(in super::super) maker: usize,
    pub(in super::super) name_kept: bool,
}
