//! Where the slots of the host tier lie, and the two usual ways to lay them out.

use std::collections::BTreeMap;

use super::{GroupTensor, LayoutError, check};

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
    /// If there are no groups, tensors, blocks or slots, or the size overflows.
    pub fn slot_major(
        groups: &[Vec<GroupTensor>],
        blocks_per_chunk: u32,
        address: u64,
        slots: u64,
        alignment: u64,
    ) -> Result<Self, LayoutError> {
        check::counts(groups, blocks_per_chunk, slots)?;
        let mut slot_bytes = 0;
        let mut parts = Vec::with_capacity(groups.len());
        for (group, tensors) in groups.iter().enumerate() {
            let mut offset = 0_u64;
            let mut offsets = Vec::with_capacity(tensors.len());
            for tensor in tensors {
                offsets.push(offset);
                offset = check::part_bytes(tensor.page_bytes, blocks_per_chunk)
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
    /// If there are no groups, tensors, blocks or slots, or the size overflows.
    pub fn tensor_major(
        groups: &[Vec<GroupTensor>],
        blocks_per_chunk: u32,
        address: u64,
        slots: u64,
        alignment: u64,
    ) -> Result<Self, LayoutError> {
        check::counts(groups, blocks_per_chunk, slots)?;
        let mut pages = BTreeMap::new();
        for it in groups.iter().flatten() {
            let page: &mut u64 = pages.entry(it.tensor).or_default();
            *page = it.page_bytes.max(*page);
        }
        let mut bytes = 0_u64;
        let mut arrays = BTreeMap::new();
        for (tensor, page) in pages {
            let too_large = LayoutError::HostTooLarge {
                slots,
                slot_bytes: page,
            };
            let place = || {
                let offset = bytes.checked_next_multiple_of(alignment.max(1))?;
                let slot_stride = check::part_bytes(page, blocks_per_chunk)?;
                let end = offset.checked_add(slot_stride.checked_mul(slots)?)?;
                let part = HostPart {
                    offset,
                    slot_stride,
                };
                Some((part, end))
            };
            let (part, end) = place().ok_or(too_large)?;
            arrays.insert(tensor, part);
            bytes = end;
        }
        Ok(Self {
            address,
            bytes,
            slots,
            parts: groups
                .iter()
                .map(|group| group.iter().map(|it| arrays[&it.tensor]).collect())
                .collect(),
            piece_bytes: None,
        })
    }
}
