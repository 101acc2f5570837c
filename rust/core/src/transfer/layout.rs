//! Where blocks and slots lie.
//!
//! Everything is checked when a layout is made. After that, block ids and slots within range are all
//! that a plan has to look at.
//!
//! 1. Every block of every tensor, and every part of every slot, lies within its extent, and no
//!    address overflows.
//! 2. Block `i` of a tensor and block `j` of any tensor overlap only if `i == j`; slots likewise.
//! 3. The parts of one group do not overlap, in blocks or in slots.
//! 4. Device memory and host memory lie apart.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// A tensor of blocks: `blocks` pages of `page_bytes` bytes, `block_stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceTensor {
    /// Where block 0 begins.
    pub address: u64,
    /// From the beginning of a block to that of the next one.
    pub block_stride: u64,
    /// Bytes of a block that hold KV.
    pub page_bytes: u64,
    /// How many blocks it has.
    pub blocks: u64,
}

impl DeviceTensor {
    fn span(&self) -> Option<Span> {
        Span::new(
            self.address,
            self.block_stride,
            self.blocks,
            self.page_bytes,
        )
    }
}

/// The part of a tensor that a group uses: the first `page_bytes` bytes of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTensor {
    /// Which tensor.
    pub tensor: usize,
    /// At most the tensor's page.
    pub page_bytes: u64,
}

/// Where a slot holds one [`GroupTensor`]: the pages of its blocks lie one after the other, from
/// `offset` on in slot 0, and `slot_stride` bytes further in each next slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPart {
    /// From the beginning of the host memory.
    pub offset: u64,
    /// From a slot to the next one.
    pub slot_stride: u64,
}

/// The host tier's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlots {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// How many slots it has.
    pub slots: u64,
    /// For each group, for each tensor that it uses, where the slots hold it.
    pub parts: Vec<Vec<HostPart>>,
    /// Where the memory is registered in pieces of so many bytes, a power of two: no range crosses
    /// from one to the next.
    pub piece_bytes: Option<u64>,
}

impl HostSlots {
    /// Slots one after the other, each with all that a group uses; as long as the largest group
    /// needs, in whole multiples of `alignment`.
    ///
    /// # Errors
    ///
    /// If there are no groups or slots, or the size overflows.
    pub fn slot_major(
        groups: &[Vec<GroupTensor>],
        blocks_per_chunk: u32,
        address: u64,
        slots: u64,
        alignment: u64,
    ) -> Result<Self, LayoutError> {
        let mut slot_bytes = 0;
        let mut parts = Vec::with_capacity(groups.len());
        for (group, tensors) in groups.iter().enumerate() {
            let mut offset = 0_u64;
            let mut offsets = Vec::with_capacity(tensors.len());
            for tensor in tensors {
                offsets.push(offset);
                offset = part_bytes(tensor.page_bytes, blocks_per_chunk)
                    .and_then(|bytes| offset.checked_add(bytes))
                    .ok_or(LayoutError::GroupTooLarge { group })?;
            }
            slot_bytes = slot_bytes.max(offset);
            parts.push(offsets);
        }
        let too_large = LayoutError::HostTooLarge { slots, slot_bytes };
        let slot_stride = slot_bytes
            .checked_next_multiple_of(alignment.max(1))
            .ok_or(too_large.clone())?;
        let part = |offset| HostPart {
            offset,
            slot_stride,
        };
        Ok(Self {
            address,
            bytes: slot_stride.checked_mul(slots).ok_or(too_large)?,
            slots,
            parts: parts
                .into_iter()
                .map(|offsets| offsets.into_iter().map(part).collect())
                .collect(),
            piece_bytes: None,
        })
    }

    /// An array of slots for each tensor, one array after the other, each beginning at a multiple of
    /// `alignment`. Groups that use one tensor share its array.
    ///
    /// # Errors
    ///
    /// If there are no groups or slots, or the size overflows.
    pub fn tensor_major(
        groups: &[Vec<GroupTensor>],
        blocks_per_chunk: u32,
        address: u64,
        slots: u64,
        alignment: u64,
    ) -> Result<Self, LayoutError> {
        let tensors = groups.iter().flatten().map(|it| it.tensor + 1).max();
        let mut pages = vec![0; tensors.unwrap_or(0)];
        for it in groups.iter().flatten() {
            pages[it.tensor] = it.page_bytes.max(pages[it.tensor]);
        }
        let mut bytes = 0_u64;
        let mut arrays = Vec::with_capacity(pages.len());
        for page in pages {
            let too_large = LayoutError::HostTooLarge {
                slots,
                slot_bytes: page,
            };
            let place = || {
                let offset = bytes.checked_next_multiple_of(alignment.max(1))?;
                let slot_stride = part_bytes(page, blocks_per_chunk)?;
                let end = offset.checked_add(slot_stride.checked_mul(slots)?)?;
                let part = HostPart {
                    offset,
                    slot_stride,
                };
                Some((part, end))
            };
            let (part, end) = place().ok_or(too_large)?;
            arrays.push(part);
            bytes = end;
        }
        Ok(Self {
            address,
            bytes,
            slots,
            parts: groups
                .iter()
                .map(|group| group.iter().map(|it| arrays[it.tensor]).collect())
                .collect(),
            piece_bytes: None,
        })
    }
}

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

/// Tells layouts apart, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayoutId(u64);

/// See the module. A clone is the same layout.
#[derive(Debug, Clone)]
pub struct KvLayout {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    id: LayoutId,
    tensors: Vec<DeviceTensor>,
    pub(super) groups: Vec<Group>,
    pub(super) blocks_per_chunk: u64,
    pub(super) slots: u64,
    pub(super) host: (u64, u64),
    /// Exponent of the size of a piece of registered host memory.
    pub(super) piece_shift: Option<u32>,
    class_blocks: Vec<u64>,
}

/// One group, ready for planning.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) parts: Vec<Part>,
    /// Ids below this one are blocks of every tensor that the group uses.
    pub(super) blocks: u64,
    pub(super) class: usize,
    /// Number of the class's block 0, where the blocks of all classes are numbered through.
    pub(super) first_unit: u64,
    pub(super) order: Order,
}

/// In which order the pages of a group are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Tensor by tensor: slots of one tensor lie one after the other, so neighbours merge.
    Tensors,
    /// Chunk by chunk: the parts of a slot lie together, so the host's memory is gone through once.
    Chunks,
}

/// One tensor of a group, with its place in the slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) device: u64,
    pub(super) block_stride: u64,
    pub(super) host: u64,
    pub(super) slot_stride: u64,
    pub(super) page_bytes: u64,
}

impl KvLayout {
    /// Checks where everything lies.
    ///
    /// # Errors
    ///
    /// Names what is wrong: see [`LayoutError`].
    pub fn new(
        tensors: Vec<DeviceTensor>,
        groups: Vec<Vec<GroupTensor>>,
        blocks_per_chunk: u32,
        host: HostSlots,
    ) -> Result<Self, LayoutError> {
        if blocks_per_chunk == 0 {
            return Err(LayoutError::NoBlocksPerChunk);
        }
        let spans = check_tensors(&tensors)?;
        check_groups(&tensors, &groups)?;
        check_host(&groups, blocks_per_chunk, &host)?;
        check_apart(&spans, &host)?;
        let (class, class_blocks) = classes(&tensors, &groups);
        let chunk = u64::from(blocks_per_chunk);
        let ready = groups.iter().zip(&host.parts).zip(class);
        let ready = ready.map(|((group, places), class)| Group {
            parts: group
                .iter()
                .zip(places)
                .map(|(it, place)| Part {
                    device: tensors[it.tensor].address,
                    block_stride: tensors[it.tensor].block_stride,
                    host: host.address + place.offset,
                    slot_stride: place.slot_stride,
                    page_bytes: it.page_bytes,
                })
                .collect(),
            blocks: group
                .iter()
                .map(|it| tensors[it.tensor].blocks)
                .min()
                .unwrap_or(0),
            class,
            // Classes lie apart in memory, so their blocks can be numbered through.
            first_unit: class_blocks[..class].iter().sum(),
            order: if group
                .iter()
                .zip(places)
                .all(|(it, place)| place.slot_stride == it.page_bytes * chunk)
            {
                Order::Tensors
            } else {
                Order::Chunks
            },
        });
        // Relaxed: a number and nothing else.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let inner = Inner {
            id: LayoutId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            groups: ready.collect(),
            tensors,
            blocks_per_chunk: chunk,
            slots: host.slots,
            host: (host.address, host.bytes),
            piece_shift: host.piece_bytes.map(u64::trailing_zeros),
            class_blocks,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Tells it from every other layout of this process.
    #[must_use]
    pub fn id(&self) -> LayoutId {
        self.inner.id
    }

    /// How many slots the host tier has.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.inner.slots
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.inner.groups.len()
    }

    /// Blocks of a chunk.
    #[must_use]
    pub fn blocks_per_chunk(&self) -> u64 {
        self.inner.blocks_per_chunk
    }

    /// Bytes that a whole chunk of a group copies.
    #[must_use]
    pub fn bytes_per_chunk(&self, group: usize) -> Option<u64> {
        let group = self.inner.groups.get(group)?;
        let pages: u64 = group.parts.iter().map(|part| part.page_bytes).sum();
        Some(pages * self.inner.blocks_per_chunk)
    }

    /// Where the tensors lie, each as address and length, gaps between blocks included; and the host
    /// memory.
    #[must_use]
    pub fn extents(&self) -> (Vec<(u64, u64)>, (u64, u64)) {
        let device = self.inner.tensors.iter().map(|tensor| {
            let last = (tensor.blocks - 1) * tensor.block_stride;
            (tensor.address, last + tensor.page_bytes)
        });
        (device.collect(), self.inner.host)
    }

    /// Which blocks a group shares with others: equal ids of groups of one class are, or may be, the
    /// same memory.
    #[must_use]
    pub fn block_class(&self, group: usize) -> Option<usize> {
        self.inner.groups.get(group).map(|group| group.class)
    }

    /// The number of a group's block 0, where the blocks of all classes are numbered through.
    pub(super) fn first_unit(&self, group: usize) -> u64 {
        self.inner.groups[group].first_unit
    }

    pub(super) fn first_unit_of_class(&self, class: usize) -> u64 {
        self.inner.class_blocks[..class].iter().sum()
    }

    /// The class and block of a number among the blocks of all classes.
    pub(super) fn class_of_unit(&self, unit: u64) -> (usize, u64) {
        let mut block = unit;
        for (class, &blocks) in self.inner.class_blocks.iter().enumerate() {
            if block < blocks {
                return (class, block);
            }
            block -= blocks;
        }
        unreachable!("a number of no block");
    }

    /// How many blocks each class has.
    #[must_use]
    pub fn block_classes(&self) -> &[u64] {
        &self.inner.class_blocks
    }
}

/// Runs of `len` bytes, `stride` bytes apart.
#[derive(Debug, Clone)]
struct Span {
    /// From the first byte of the first run to the last of the last one.
    extent: Range<u64>,
    stride: u64,
    len: u64,
}

impl Span {
    /// None if it reaches beyond the last address.
    fn new(start: u64, stride: u64, count: u64, len: u64) -> Option<Self> {
        let last = stride.checked_mul(count.checked_sub(1)?)?;
        let end = start.checked_add(last)?.checked_add(len)?;
        Some(Self {
            extent: start..end,
            stride,
            len,
        })
    }

    fn lies_apart(&self, other: &Self) -> bool {
        self.extent.end <= other.extent.start || other.extent.end <= self.extent.start
    }

    /// Whether run `i` of one and run `j` of the other can overlap for `i == j` alone.
    fn is_in_step_with(&self, other: &Self) -> bool {
        let start = self.extent.start.min(other.extent.start);
        let ends = [self, other].map(|it| it.extent.start + it.len);
        self.stride == other.stride && ends[0].max(ends[1]) - start <= self.stride
    }

    /// Whether equal runs overlap, of two that are in step.
    fn overlaps(&self, other: &Self) -> bool {
        self.extent.start < other.extent.start + other.len
            && other.extent.start < self.extent.start + self.len
    }
}

fn part_bytes(page_bytes: u64, blocks_per_chunk: u32) -> Option<u64> {
    page_bytes.checked_mul(u64::from(blocks_per_chunk))
}

fn check_tensors(tensors: &[DeviceTensor]) -> Result<Vec<Span>, LayoutError> {
    let mut spans: Vec<Span> = Vec::with_capacity(tensors.len());
    for (tensor, it) in tensors.iter().enumerate() {
        let &DeviceTensor {
            block_stride,
            page_bytes,
            blocks,
            ..
        } = it;
        if blocks == 0 || page_bytes == 0 {
            return Err(LayoutError::EmptyTensor {
                tensor,
                blocks,
                page_bytes,
            });
        }
        if block_stride < page_bytes {
            return Err(LayoutError::BlocksOverlap {
                tensor,
                page_bytes,
                block_stride,
            });
        }
        let span = it.span().ok_or(LayoutError::TensorTooLarge { tensor })?;
        for (first, other) in spans.iter().enumerate() {
            if !span.lies_apart(other) && !span.is_in_step_with(other) {
                return Err(LayoutError::TensorsOverlap {
                    first,
                    second: tensor,
                });
            }
        }
        spans.push(span);
    }
    Ok(spans)
}

fn check_groups(tensors: &[DeviceTensor], groups: &[Vec<GroupTensor>]) -> Result<(), LayoutError> {
    if groups.is_empty() {
        return Err(LayoutError::NoGroups);
    }
    for (group, used) in groups.iter().enumerate() {
        if used.is_empty() {
            return Err(LayoutError::EmptyGroup { group });
        }
        for (at, it) in used.iter().enumerate() {
            let &GroupTensor { tensor, page_bytes } = it;
            let of = tensors.get(tensor).ok_or(LayoutError::NoSuchTensor {
                group,
                tensor,
                tensors: tensors.len(),
            })?;
            if page_bytes == 0 || page_bytes > of.page_bytes {
                return Err(LayoutError::GroupPage {
                    group,
                    tensor,
                    page_bytes,
                    of: of.page_bytes,
                });
            }
            for other in &used[..at] {
                if uses_same_bytes(tensors, it, other) {
                    return Err(LayoutError::GroupOverlaps {
                        group,
                        first: other.tensor,
                        second: tensor,
                    });
                }
            }
        }
    }
    Ok(())
}

/// Whether two uses of tensors, whose blocks are in step or apart, share bytes.
fn uses_same_bytes(tensors: &[DeviceTensor], a: &GroupTensor, b: &GroupTensor) -> bool {
    let [a, b] = [a, b].map(|it| {
        let page_bytes = it.page_bytes;
        let tensor = DeviceTensor {
            page_bytes,
            ..tensors[it.tensor]
        };
        tensor.span()
    });
    a.zip(b)
        .is_some_and(|(a, b)| !a.lies_apart(&b) && a.overlaps(&b))
}

fn check_host(
    groups: &[Vec<GroupTensor>],
    blocks_per_chunk: u32,
    host: &HostSlots,
) -> Result<(), LayoutError> {
    let slots = host.slots;
    if slots == 0 {
        return Err(LayoutError::NoSlots);
    }
    if host.address.checked_add(host.bytes).is_none() {
        let slot_bytes = host.bytes / slots;
        return Err(LayoutError::HostTooLarge { slots, slot_bytes });
    }
    if let Some(piece_bytes) = host.piece_bytes.filter(|bytes| !bytes.is_power_of_two()) {
        return Err(LayoutError::Pieces { piece_bytes });
    }
    if host.parts.len() != groups.len() {
        return Err(LayoutError::PartCount {
            group: groups.len(),
            parts: host.parts.len(),
            tensors: groups.len(),
        });
    }
    let mut spans: Vec<((usize, usize), Span)> = Vec::new();
    for (group, (used, parts)) in groups.iter().zip(&host.parts).enumerate() {
        if used.len() != parts.len() {
            return Err(LayoutError::PartCount {
                group,
                parts: parts.len(),
                tensors: used.len(),
            });
        }
        for (part, (it, place)) in used.iter().zip(parts).enumerate() {
            let len = part_bytes(it.page_bytes, blocks_per_chunk)
                .ok_or(LayoutError::GroupTooLarge { group })?;
            if slots > 1 && place.slot_stride < len {
                return Err(LayoutError::SlotsOverlap {
                    group,
                    part,
                    part_bytes: len,
                    slot_stride: place.slot_stride,
                });
            }
            let span = Span::new(place.offset, place.slot_stride, slots, len)
                .filter(|span| span.extent.end <= host.bytes)
                .ok_or(LayoutError::PartOutside {
                    group,
                    part,
                    bytes: host.bytes,
                })?;
            for (first, other) in &spans {
                let clash =
                    !span.is_in_step_with(other) || (first.0 == group && span.overlaps(other));
                if !span.lies_apart(other) && clash {
                    return Err(LayoutError::PartsOverlap {
                        first: *first,
                        second: (group, part),
                    });
                }
            }
            spans.push(((group, part), span));
        }
    }
    Ok(())
}

fn check_apart(tensors: &[Span], host: &HostSlots) -> Result<(), LayoutError> {
    let host = host.address..host.address + host.bytes;
    for (tensor, span) in tensors.iter().enumerate() {
        if span.extent.start < host.end && host.start < span.extent.end {
            return Err(LayoutError::DeviceInHost { tensor });
        }
    }
    Ok(())
}

/// For each group its class, and for each class how many blocks it has.
fn classes(tensors: &[DeviceTensor], groups: &[Vec<GroupTensor>]) -> (Vec<usize>, Vec<u64>) {
    // The first group of each class stands for it.
    let mut first: Vec<usize> = (0..groups.len()).collect();
    for group in 1..groups.len() {
        for other in 0..group {
            let shared = groups[group].iter().any(|a| {
                let same = |b| uses_same_bytes(tensors, a, b);
                groups[other].iter().any(same)
            });
            if shared {
                let (from, to) = (
                    first[group].max(first[other]),
                    first[group].min(first[other]),
                );
                first
                    .iter_mut()
                    .filter(|it| **it == from)
                    .for_each(|it| *it = to);
            }
        }
    }
    let mut numbers: Vec<usize> = Vec::new();
    let mut blocks: Vec<u64> = Vec::new();
    let class = first.iter().zip(groups).map(|(first, group)| {
        let number = numbers
            .iter()
            .position(|it| it == first)
            .unwrap_or_else(|| {
                numbers.push(*first);
                blocks.push(0);
                numbers.len() - 1
            });
        let most = group.iter().map(|it| tensors[it.tensor].blocks).max();
        blocks[number] = blocks[number].max(most.unwrap_or(0));
        number
    });
    let class: Vec<usize> = class.collect();
    (class, blocks)
}
