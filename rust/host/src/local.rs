//! Blocks, a host tier, and the jobs between them, all in memory of this process's own: what a
//! replay and a test of a scheduler move bytes with, without `unsafe` of theirs.

use std::num::TryFromIntError;
use std::slice;
use std::sync::Arc;

use kvferry::transfer::{
    BackendError, DeviceTensor, GroupTensor, HostSlots, JobEngine, JobId, JobOptions, KvLayout,
    LayoutError, Priority, SubmitError, Transfer,
};
use thiserror::Error;

use crate::backend::{HostBackend, HostStream};
use crate::error::HostError;
use crate::memory::{HostMemory, OwnedBuffer};
use crate::options::HostOptions;

/// How large a [`LocalTier`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalShape {
    /// Blocks of each tensor.
    pub blocks: u64,
    /// Bytes of a page, for each tensor. One KV-cache group uses them all.
    pub page_bytes: Vec<u64>,
    /// Blocks of a chunk.
    pub blocks_per_chunk: u32,
    /// Slots of the host tier.
    pub slots: u64,
}

/// Why a [`LocalTier`] cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The shape makes no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There is no memory for it.
    #[error("no memory for a pool of {bytes} bytes")]
    Memory {
        /// The pool's size.
        bytes: u64,
        /// What the system said, if it was asked.
        #[source]
        source: Option<std::io::Error>,
    },
    /// The options do not fit the machine.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The backend refused the layout.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a page cannot be looked at.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// There is no such page.
    #[error("there is no page {block} in tensor {tensor}")]
    OutOfRange {
        /// The tensor.
        tensor: usize,
        /// The block.
        block: i64,
    },
    /// A job in flight uses the block.
    #[error("a job in flight uses block {block}")]
    InFlight {
        /// The block.
        block: i64,
    },
}

/// See the module.
///
/// Pages are looked at through `&mut self`, so that no job can be submitted meanwhile, and only
/// while no job in flight uses them.
#[derive(Debug)]
pub struct LocalTier {
    jobs: JobEngine<HostBackend>,
    shape: LocalShape,
    tensors: Arc<[OwnedBuffer]>,
}

impl LocalTier {
    /// Allocates blocks and slots, all zero.
    ///
    /// # Errors
    ///
    /// If the shape makes no layout, there is no memory, or the options do not fit the machine.
    pub fn new(
        shape: LocalShape,
        host: HostOptions,
        options: JobOptions,
    ) -> Result<Self, LocalError> {
        let tensors: Vec<OwnedBuffer> = shape
            .page_bytes
            .iter()
            .map(|page| buffer(page.saturating_mul(shape.blocks)))
            .collect::<Result<_, _>>()?;
        let groups = [shape.page_bytes.iter().enumerate()]
            .map(|pages| pages.map(|(tensor, &page_bytes)| GroupTensor { tensor, page_bytes }))
            .map(Iterator::collect::<Vec<_>>)
            .to_vec();
        // Where the slots lie does not matter to how large they are.
        let sized = |address| {
            let (chunk, slots) = (shape.blocks_per_chunk, shape.slots);
            HostSlots::slot_major(&groups, chunk, address, slots, SLOT_ALIGNMENT)
        };
        let slots = buffer(sized(0)?.bytes)?;
        let layout = KvLayout::new(
            tensors
                .iter()
                .zip(&shape.page_bytes)
                .map(|(tensor, &page_bytes)| DeviceTensor {
                    address: tensor.address(),
                    block_stride: page_bytes,
                    page_bytes,
                    blocks: shape.blocks,
                })
                .collect(),
            groups.clone(),
            shape.blocks_per_chunk,
            sized(slots.address())?,
        )?;
        let tensors: Arc<[OwnedBuffer]> = tensors.into();
        let extents = tensors.iter().chain([&slots]).map(OwnedBuffer::extent);
        let extents = extents.collect();
        let owner = (Arc::clone(&tensors), slots);
        // SAFETY: the buffers are the owner's, can be read and written for as long as they are not
        // dropped, and expose their addresses. `JobEngine` lets no conflicting job in. Only
        // `page_mut` touches the memory otherwise, after it has seen that no job uses the page, and
        // with `self` borrowed so that none can be submitted while the page is.
        let memory = unsafe { HostMemory::new(extents, owner) };
        let backend = HostBackend::new(memory, host)?;
        Ok(Self {
            jobs: JobEngine::new(backend, layout, options)?,
            shape,
            tensors,
        })
    }

    /// The jobs between blocks and slots.
    #[must_use]
    pub fn jobs(&self) -> &JobEngine<HostBackend> {
        &self.jobs
    }

    /// Submits a job.
    ///
    /// # Errors
    ///
    /// As [`JobEngine::submit`].
    pub fn submit(
        &self,
        job: JobId,
        transfer: &Transfer<'_>,
        priority: Priority,
    ) -> Result<(), SubmitError> {
        self.jobs.submit(job, transfer, HostStream, priority, None)
    }

    /// The page of a block in one of the tensors.
    ///
    /// # Errors
    ///
    /// If there is no such page, or a job in flight uses the block.
    pub fn page_mut(&mut self, tensor: usize, block: i64) -> Result<&mut [u8], PageError> {
        let out_of_range = PageError::OutOfRange { tensor, block };
        let index = u64::try_from(block).ok().filter(|&b| b < self.shape.blocks);
        let (Some(index), Some(buffer)) = (index, self.tensors.get(tensor)) else {
            return Err(out_of_range);
        };
        if !self.jobs.is_idle_block(0, index) {
            return Err(PageError::InFlight { block });
        }
        let page_bytes = self.shape.page_bytes[tensor];
        let address = buffer.address() + index * page_bytes;
        let fits: Result<(usize, usize), TryFromIntError> = address
            .try_into()
            .and_then(|a| Ok((a, page_bytes.try_into()?)));
        let (address, len) = fits.map_err(|_| out_of_range)?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the page lies within the buffer: `index` is less than the tensor's blocks, which
        // the buffer was made for. No job in flight uses the block, and none can be submitted while
        // `self` is borrowed mutably; nobody else has a reference into the buffer for the same
        // reason. Mapped memory is initialised.
        Ok(unsafe { slice::from_raw_parts_mut(start, len) })
    }
}

/// Slots start at a page, which the fastest copies like.
const SLOT_ALIGNMENT: u64 = 4096;

fn buffer(bytes: u64) -> Result<OwnedBuffer, LocalError> {
    let Ok(len) = usize::try_from(bytes) else {
        return Err(LocalError::Memory {
            bytes,
            source: None,
        });
    };
    OwnedBuffer::zeroed(len).map_err(|source| LocalError::Memory {
        bytes,
        source: Some(source),
    })
}
