//! What a layout promises, checked.

use std::ops::Range;

use super::{DeviceTensor, GroupTensor, HostSlots, LayoutError};

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

/// Runs of `len` bytes, `stride` bytes apart.
#[derive(Debug, Clone)]
pub(super) struct Span {
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

pub(super) fn counts(
    groups: &[Vec<GroupTensor>],
    blocks_per_chunk: u32,
    slots: u64,
) -> Result<(), LayoutError> {
    if blocks_per_chunk == 0 {
        return Err(LayoutError::NoBlocksPerChunk);
    }
    if groups.is_empty() {
        return Err(LayoutError::NoGroups);
    }
    if let Some(group) = groups.iter().position(Vec::is_empty) {
        return Err(LayoutError::EmptyGroup { group });
    }
    if slots == 0 {
        return Err(LayoutError::NoSlots);
    }
    Ok(())
}

pub(super) fn part_bytes(page_bytes: u64, blocks_per_chunk: u32) -> Option<u64> {
    page_bytes.checked_mul(u64::from(blocks_per_chunk))
}

pub(super) fn tensors(tensors: &[DeviceTensor]) -> Result<Vec<Span>, LayoutError> {
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

pub(super) fn groups(
    tensors: &[DeviceTensor],
    groups: &[Vec<GroupTensor>],
) -> Result<(), LayoutError> {
    for (group, used) in groups.iter().enumerate() {
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

pub(super) fn host(
    groups: &[Vec<GroupTensor>],
    blocks_per_chunk: u32,
    host: &HostSlots,
) -> Result<(), LayoutError> {
    let slots = host.slots;
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

pub(super) fn apart(tensors: &[Span], host: &HostSlots) -> Result<(), LayoutError> {
    let host = host.address..host.address + host.bytes;
    for (tensor, span) in tensors.iter().enumerate() {
        if span.extent.start < host.end && host.start < span.extent.end {
            return Err(LayoutError::DeviceInHost { tensor });
        }
    }
    Ok(())
}

/// For each group its class, and for each class how many blocks it has.
pub(super) fn classes(
    tensors: &[DeviceTensor],
    groups: &[Vec<GroupTensor>],
) -> (Vec<usize>, Vec<u64>) {
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
