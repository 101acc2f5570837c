//! Which bytes a job copies.
//!
//! A plan is made of ranges that have been checked against their layout. Neighbours on both sides
//! are one range, as long as they belong to one tensor and one piece of registered memory.
//!
//! Order: groups as given. Within one, first the tensors whose slots lie one after the other,
//! tensor by tensor, so that a run of chunks becomes one range; then the others chunk by chunk,
//! since their chunks never merge and the parts of a slot usually lie together.
//!
//! Cost: O(blocks + ranges), and one pass over the ids before the first range is made.

use std::iter;

use thiserror::Error;

use super::layout::{Group, KvLayout, LayoutId, Part};

/// From where to where a job copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From blocks to slots.
    Store,
    /// From slots to blocks.
    Load,
}

/// What one job copies, as a scheduler names it.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a> {
    /// Which way.
    pub direction: Direction,
    /// Blocks of all groups, one group after the other; those of a group are consecutive in their
    /// request.
    pub block_ids: &'a [i64],
    /// How many of the blocks belong to each group.
    pub group_sizes: &'a [usize],
    /// Where the first block of each group stands in its request, in blocks. A chunk begins at
    /// every multiple of the blocks of a chunk: this says how far into its first chunk the job
    /// begins.
    pub block_indices: &'a [u64],
    /// The slots of the chunks that the blocks belong to, one group after the other.
    pub slots: &'a [i64],
}

/// A run of bytes that lie together on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CopyRange {
    /// Address in device memory.
    pub device: u64,
    /// Address in host memory.
    pub host: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl CopyRange {
    /// Where it is read.
    #[must_use]
    pub fn source(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Store => self.device,
            Direction::Load => self.host,
        }
    }

    /// Where it is written.
    #[must_use]
    pub fn destination(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Store => self.host,
            Direction::Load => self.device,
        }
    }
}

/// The ranges of a job. Made by [`KvLayout::plan`] alone, so that whoever has one knows that it was
/// checked.
#[derive(Debug)]
pub struct Plan {
    ranges: Vec<CopyRange>,
    bytes: u64,
    direction: Direction,
    layout: LayoutId,
}

impl Plan {
    /// What to copy. No two destinations overlap.
    #[must_use]
    pub fn ranges(&self) -> &[CopyRange] {
        &self.ranges
    }

    /// The bytes of all ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Which way.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The layout that it was checked against.
    #[must_use]
    pub fn layout(&self) -> LayoutId {
        self.layout
    }
}

/// Why a transfer cannot be planned. Each message begins with the field at fault.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// There are not as many sizes as groups.
    #[error("group_sizes: {given} for {groups} groups")]
    GroupSizes {
        /// How many were given.
        given: usize,
        /// How many groups the layout has.
        groups: usize,
    },
    /// There are not as many indices as groups.
    #[error("block_indices: {given} for {groups} groups")]
    BlockIndices {
        /// How many were given.
        given: usize,
        /// How many groups the layout has.
        groups: usize,
    },
    /// The sizes do not add up.
    #[error("group_sizes: they add up to {sizes:?} blocks, {blocks} are given")]
    BlockCount {
        /// Their sum, if it can be counted.
        sizes: Option<usize>,
        /// Blocks given.
        blocks: usize,
    },
    /// There are not as many slots as chunks.
    #[error("slots: {given} for {chunks} chunks")]
    SlotCount {
        /// Slots given.
        given: usize,
        /// Chunks that the blocks belong to.
        chunks: usize,
    },
    /// A block is out of range.
    #[error("block_ids[{at}]: {block} is out of range, group {group} has {blocks} blocks")]
    Block {
        /// Its place.
        at: usize,
        /// The block.
        block: i64,
        /// The group.
        group: usize,
        /// The group's blocks.
        blocks: u64,
    },
    /// A slot is out of range.
    #[error("slots[{at}]: {slot} is out of range, there are {slots}")]
    Slot {
        /// Its place.
        at: usize,
        /// The slot.
        slot: i64,
        /// How many there are.
        slots: u64,
    },
    /// A load writes a block twice.
    #[error("block_ids[{at}]: block {block} is there twice, in memory that groups share")]
    BlockTwice {
        /// Its second place.
        at: usize,
        /// The block.
        block: i64,
    },
    /// A store writes a slot twice.
    #[error("slots[{at}]: slot {slot} is there twice")]
    SlotTwice {
        /// Its second place.
        at: usize,
        /// The slot.
        slot: i64,
    },
}

impl KvLayout {
    /// Turns a transfer into byte ranges.
    ///
    /// # Errors
    ///
    /// If an id is out of range, the numbers do not match, or a destination is there twice.
    pub fn plan(&self, transfer: &Transfer<'_>) -> Result<Plan, PlanError> {
        let layout = &*self.inner;
        self.check_counts(transfer)?;
        self.check_ids(transfer)?;
        let mut builder = Builder {
            ranges: Vec::with_capacity(transfer.slots.len().max(1)),
            piece_shift: layout.piece_shift,
            host: layout.host.0,
            bytes: 0,
        };
        let chunk = layout.blocks_per_chunk;
        let (mut blocks, mut slots) = (transfer.block_ids, transfer.slots);
        for (group, run) in layout.groups.iter().zip(self.runs(transfer)) {
            let of_group;
            (of_group, blocks) = blocks.split_at(run.blocks);
            let places;
            (places, slots) = slots.split_at(run.slots);
            builder.group(group, of_group, places, run, chunk);
        }
        Ok(Plan {
            ranges: builder.ranges,
            bytes: builder.bytes,
            direction: transfer.direction,
            layout: self.id(),
        })
    }

    /// What each group's part of the lists is. The counts have been checked.
    fn runs<'a>(&'a self, transfer: &'a Transfer<'_>) -> impl Iterator<Item = Run> + 'a {
        let chunk = self.inner.blocks_per_chunk;
        let given = transfer.group_sizes.iter().zip(transfer.block_indices);
        given.map(move |(&blocks, &index)| {
            let skipped = index % chunk;
            let chunks = (skipped + blocks as u64).div_ceil(chunk);
            Run {
                blocks,
                skipped,
                // No more than blocks.
                slots: if blocks == 0 {
                    0
                } else {
                    usize::try_from(chunks).unwrap_or(blocks)
                },
            }
        })
    }

    fn check_counts(&self, transfer: &Transfer<'_>) -> Result<(), PlanError> {
        let groups = self.groups();
        if transfer.group_sizes.len() != groups {
            let given = transfer.group_sizes.len();
            return Err(PlanError::GroupSizes { given, groups });
        }
        if transfer.block_indices.len() != groups {
            let given = transfer.block_indices.len();
            return Err(PlanError::BlockIndices { given, groups });
        }
        let mut sizes = transfer.group_sizes.iter();
        let sizes = sizes.try_fold(0_usize, |sum, &size| sum.checked_add(size));
        let blocks = transfer.block_ids.len();
        if sizes != Some(blocks) {
            return Err(PlanError::BlockCount { sizes, blocks });
        }
        let chunks = self.runs(transfer).map(|run| run.slots).sum();
        let given = transfer.slots.len();
        if given != chunks {
            return Err(PlanError::SlotCount { given, chunks });
        }
        Ok(())
    }

    fn check_ids(&self, transfer: &Transfer<'_>) -> Result<(), PlanError> {
        let slots = self.inner.slots;
        for (at, &slot) in transfer.slots.iter().enumerate() {
            if u64::try_from(slot).map_or(true, |slot| slot >= slots) {
                return Err(PlanError::Slot { at, slot, slots });
            }
        }
        let mut at = 0;
        for (group, (it, &size)) in self
            .inner
            .groups
            .iter()
            .zip(transfer.group_sizes)
            .enumerate()
        {
            let blocks = it.blocks;
            for &block in &transfer.block_ids[at..at + size] {
                if u64::try_from(block).map_or(true, |block| block >= blocks) {
                    return Err(PlanError::Block {
                        at,
                        block,
                        group,
                        blocks,
                    });
                }
                at += 1;
            }
        }
        match transfer.direction {
            Direction::Store => {
                let slots = transfer.slots;
                match second(slots.iter().map(|slot| slot.cast_unsigned()), slots.len()) {
                    None => Ok(()),
                    Some(at) => Err(PlanError::SlotTwice {
                        at,
                        slot: slots[at],
                    }),
                }
            }
            Direction::Load => {
                let groups = self.inner.groups.iter().zip(transfer.group_sizes);
                let firsts = groups.flat_map(|(it, &size)| iter::repeat_n(it.first_unit, size));
                let blocks = transfer.block_ids;
                let units = firsts
                    .zip(blocks)
                    .map(|(first, id)| first + id.cast_unsigned());
                match second(units, blocks.len()) {
                    None => Ok(()),
                    Some(at) => Err(PlanError::BlockTwice {
                        at,
                        block: blocks[at],
                    }),
                }
            }
        }
    }
}

/// One group's part of a transfer.
#[derive(Debug, Clone, Copy)]
struct Run {
    blocks: usize,
    slots: usize,
    /// Blocks of the first chunk that come before the first block.
    skipped: u64,
}

impl Run {
    /// The blocks of each of its chunks, and how many blocks of the chunk come before them.
    fn chunks(self, ids: &[i64], chunk: u64) -> impl Iterator<Item = (&[i64], u64)> {
        let mut left = ids;
        let mut skipped = self.skipped;
        iter::from_fn(move || {
            let room = usize::try_from(chunk - skipped).unwrap_or(usize::MAX);
            let (of_chunk, rest) = left.split_at(room.min(left.len()));
            left = rest;
            let found = (of_chunk, std::mem::take(&mut skipped));
            (!of_chunk.is_empty()).then_some(found)
        })
    }
}

/// Collects ranges.
#[derive(Debug)]
struct Builder {
    ranges: Vec<CopyRange>,
    bytes: u64,
    /// Where the host memory begins, and the exponent of the size of its pieces.
    host: u64,
    piece_shift: Option<u32>,
}

impl Builder {
    fn group(&mut self, group: &Group, ids: &[i64], slots: &[i64], run: Run, chunk: u64) {
        let pages: u64 = group.parts.iter().map(|part| part.page_bytes).sum();
        self.bytes += pages * ids.len() as u64;
        let (gapless, others) = group.parts.split_at(group.gapless);
        for part in gapless {
            let mut open = None;
            if chunk == 1 {
                for (&block, &slot) in ids.iter().zip(slots) {
                    self.extend(&mut open, part.page(block, slot, 0));
                }
            } else {
                for ((blocks, skipped), &slot) in run.chunks(ids, chunk).zip(slots) {
                    self.chunk(&mut open, part, blocks, slot, skipped);
                }
            }
            self.close(open);
        }
        if others.is_empty() {
            return;
        }
        for ((blocks, skipped), &slot) in run.chunks(ids, chunk).zip(slots) {
            for part in others {
                let mut open = None;
                self.chunk(&mut open, part, blocks, slot, skipped);
                self.close(open);
            }
        }
    }

    fn chunk(
        &mut self,
        open: &mut Option<CopyRange>,
        part: &Part,
        blocks: &[i64],
        slot: i64,
        skipped: u64,
    ) {
        for (place, &block) in (skipped..).zip(blocks) {
            self.extend(open, part.page(block, slot, place));
        }
    }

    /// Appends to the open range if it goes on there on both sides, else begins another.
    #[inline]
    fn extend(&mut self, open: &mut Option<CopyRange>, next: CopyRange) {
        match open {
            Some(range)
                if range.device + range.bytes == next.device
                    && range.host + range.bytes == next.host =>
            {
                range.bytes += next.bytes;
            }
            _ => self.close(open.replace(next)),
        }
    }

    #[inline]
    fn close(&mut self, range: Option<CopyRange>) {
        let Some(range) = range else { return };
        match self.piece_shift {
            None => self.ranges.push(range),
            Some(shift) => self.split(range, shift),
        }
    }

    /// Cuts a range where a piece of the host memory ends.
    fn split(&mut self, mut range: CopyRange, shift: u32) {
        while range.bytes > 0 {
            let offset = range.host - self.host;
            let left = (1_u64 << shift) - (offset & ((1 << shift) - 1));
            let bytes = range.bytes.min(left);
            self.ranges.push(CopyRange { bytes, ..range });
            range = CopyRange {
                device: range.device + bytes,
                host: range.host + bytes,
                bytes: range.bytes - bytes,
            };
        }
    }
}

impl Part {
    /// One page. The ids have been checked, so that nothing overflows: the layout has checked the
    /// last page.
    #[inline]
    fn page(&self, block: i64, slot: i64, place: u64) -> CopyRange {
        CopyRange {
            device: self.device + block.cast_unsigned() * self.block_stride,
            host: self.host + slot.cast_unsigned() * self.slot_stride + place * self.page_bytes,
            bytes: self.page_bytes,
        }
    }
}

/// The place of the first number that was there before.
///
/// Numbers that ascend are told apart at once; others are entered in a table of twice their number.
fn second(numbers: impl Iterator<Item = u64> + Clone, count: usize) -> Option<usize> {
    let mut last = None;
    let ascend = numbers
        .clone()
        .all(|number| last.replace(number) < Some(number));
    if ascend {
        return None;
    }
    // Half full at most, so that a free place is near.
    let places = (2 * count).next_power_of_two();
    let shift = u64::BITS - places.trailing_zeros();
    let mut table = vec![FREE; places];
    numbers.enumerate().find_map(|(at, number)| {
        // Fibonacci hashing: runs of ids spread evenly.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift;
        let mut place = usize::try_from(hash).expect("the table has that many places");
        loop {
            match table[place] {
                FREE => {
                    table[place] = number;
                    return None;
                }
                there if there == number => return Some(at),
                _ => place = (place + 1) & (places - 1),
            }
        }
    })
}

/// No number: ids are below 2^63, and so is how many there are of a class.
const FREE: u64 = u64::MAX;
