//! Why a layout cannot be used.

use thiserror::Error;

/// Why a layout cannot be used. Nothing was made.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// A chunk has no blocks.
    #[error("blocks_per_chunk is 0")]
    NoBlocksPerChunk,
    /// There is no group.
    #[error("there is no KV-cache group")]
    NoGroups,
    /// A group uses no tensor.
    #[error("group {group} uses no tensor")]
    EmptyGroup {
        /// The group.
        group: usize,
    },
    /// A tensor has no blocks or pages of no bytes.
    #[error("tensor {tensor} has {blocks} blocks with pages of {page_bytes} bytes")]
    EmptyTensor {
        /// The tensor.
        tensor: usize,
        /// Its blocks.
        blocks: u64,
        /// Its page.
        page_bytes: u64,
    },
    /// The pages of a tensor overlap each other.
    #[error("tensor {tensor}: blocks of {page_bytes} bytes lie {block_stride} bytes apart")]
    BlocksOverlap {
        /// The tensor.
        tensor: usize,
        /// Its page.
        page_bytes: u64,
        /// Its stride.
        block_stride: u64,
    },
    /// A tensor ends beyond the last address.
    #[error("tensor {tensor} reaches beyond the last address")]
    TensorTooLarge {
        /// The tensor.
        tensor: usize,
    },
    /// A block of one tensor overlaps another block of a second one.
    #[error("tensors {first} and {second} overlap, and not block by block")]
    TensorsOverlap {
        /// One tensor.
        first: usize,
        /// The other one.
        second: usize,
    },
    /// A group names a tensor that is not there.
    #[error("group {group} uses tensor {tensor} of {tensors}")]
    NoSuchTensor {
        /// The group.
        group: usize,
        /// The tensor.
        tensor: usize,
        /// How many there are.
        tensors: usize,
    },
    /// A group's page is empty, or larger than its tensor's.
    #[error("group {group} uses {page_bytes} bytes of the {of} bytes of a page of tensor {tensor}")]
    GroupPage {
        /// The group.
        group: usize,
        /// The tensor.
        tensor: usize,
        /// The group's page.
        page_bytes: u64,
        /// The tensor's.
        of: u64,
    },
    /// A group uses some bytes of a block twice.
    #[error("group {group} uses bytes of its blocks twice, in tensors {first} and {second}")]
    GroupOverlaps {
        /// The group.
        group: usize,
        /// One tensor.
        first: usize,
        /// The other one.
        second: usize,
    },
    /// The bytes of a group's chunk cannot be counted.
    #[error("a chunk of group {group} has more bytes than can be counted")]
    GroupTooLarge {
        /// The group.
        group: usize,
    },
    /// There are no slots.
    #[error("there are no slots")]
    NoSlots,
    /// The host memory ends beyond the last address.
    #[error("{slots} slots of {slot_bytes} bytes or more reach beyond the last address")]
    HostTooLarge {
        /// How many.
        slots: u64,
        /// Bytes that one needs at least.
        slot_bytes: u64,
    },
    /// There are not as many parts as tensors in the groups.
    #[error("the host slots have {parts} parts for the {tensors} tensors of group {group}")]
    PartCount {
        /// The group, or how many there are.
        group: usize,
        /// Parts.
        parts: usize,
        /// Tensors.
        tensors: usize,
    },
    /// A part of a slot lies outside of the host memory.
    #[error("group {group}, part {part}: slots reach beyond the {bytes} bytes of host memory")]
    PartOutside {
        /// The group.
        group: usize,
        /// The part.
        part: usize,
        /// The host memory.
        bytes: u64,
    },
    /// Slots overlap each other.
    #[error(
        "group {group}, part {part}: slots of {part_bytes} bytes lie {slot_stride} bytes apart"
    )]
    SlotsOverlap {
        /// The group.
        group: usize,
        /// The part.
        part: usize,
        /// Its bytes.
        part_bytes: u64,
        /// Its stride.
        slot_stride: u64,
    },
    /// Two parts overlap, and not slot by slot, or within one group.
    #[error("parts {first:?} and {second:?} (group, part) of the host slots overlap")]
    PartsOverlap {
        /// Group and part.
        first: (usize, usize),
        /// Group and part.
        second: (usize, usize),
    },
    /// Pieces are not of a power of two.
    #[error("piece_bytes: {piece_bytes} is no power of two")]
    Pieces {
        /// What was given.
        piece_bytes: u64,
    },
    /// Device and host memory overlap.
    #[error("tensor {tensor} overlaps the host memory")]
    DeviceInHost {
        /// The tensor.
        tensor: usize,
    },
}
