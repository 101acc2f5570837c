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

mod check;
mod error;
mod slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use error::LayoutError;
pub use slots::{HostPart, HostSlots};

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

/// The part of a tensor that a group uses: the first `page_bytes` bytes of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTensor {
    /// Which tensor.
    pub tensor: usize,
    /// At most the tensor's page.
    pub page_bytes: u64,
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
    /// Those first whose slots lie one after the other without gaps.
    pub(super) parts: Vec<Part>,
    /// How many those are. Runs of their pages may go on from slot to slot, those of others cannot.
    pub(super) gapless: usize,
    /// Ids below this one are blocks of every tensor that the group uses.
    pub(super) blocks: u64,
    pub(super) class: usize,
    /// Number of the class's block 0, where the blocks of all classes are numbered through.
    pub(super) first_unit: u64,
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
        check::counts(&groups, blocks_per_chunk, host.slots)?;
        let spans = check::tensors(&tensors)?;
        check::groups(&tensors, &groups)?;
        check::host(&groups, blocks_per_chunk, &host)?;
        check::apart(&spans, &host)?;
        let (class, class_blocks) = check::classes(&tensors, &groups);
        let chunk = u64::from(blocks_per_chunk);
        let ready = groups.iter().zip(&host.parts).zip(class);
        let ready = ready.map(|((group, places), class)| {
            let parts = group.iter().zip(places).map(|(it, place)| Part {
                device: tensors[it.tensor].address,
                block_stride: tensors[it.tensor].block_stride,
                host: host.address + place.offset,
                slot_stride: place.slot_stride,
                page_bytes: it.page_bytes,
            });
            let is_gapless = |part: &Part| part.slot_stride == part.page_bytes * chunk;
            let (mut parts, others): (Vec<_>, Vec<_>) = parts.partition(is_gapless);
            let gapless = parts.len();
            parts.extend(others);
            let blocks = group.iter().map(|it| tensors[it.tensor].blocks);
            Group {
                parts,
                gapless,
                blocks: blocks.min().unwrap_or(0),
                class,
                // Classes lie apart in memory, so their blocks can be numbered through.
                first_unit: class_blocks[..class].iter().sum(),
            }
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
