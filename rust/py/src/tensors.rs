//! What Python says about its tensors, and the host tier beside them.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

use kvferry::transfer::{DeviceTensor, GroupTensor, HostSlots, KvLayout};
use kvferry_host::{
    Extent, HostBackend, HostMemory, HostOptions, MemoryOptions, PinnedRegion, PrivateConfig,
    SwapError,
};
use numpy::PyReadonlyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments::integer;
use crate::errors::{type_error, value_error};
use crate::region::region_error;

/// Slots begin at a page, which the fastest copies like.
const SLOT_ALIGNMENT: u64 = 4096;

/// The tensors and the groups that use them.
#[derive(Debug)]
pub(crate) struct Tensors {
    tensors: Vec<DeviceTensor>,
    groups: Vec<Vec<GroupTensor>>,
    blocks_per_chunk: u32,
}

/// A host tier, and what copies to and from it.
#[derive(Debug)]
pub(crate) struct HostTier {
    pub(crate) backend: HostBackend,
    pub(crate) layout: KvLayout,
}

impl Tensors {
    pub(crate) fn extract(
        tensors: &Bound<'_, PyAny>,
        groups: &Bound<'_, PyAny>,
        blocks_per_chunk: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let tensors: Vec<(u64, u64, u64, u64)> = tensors
            .extract()
            .map_err(|_| type_error("tensors", "a list of four integers each", tensors))?;
        let groups: Vec<Vec<(usize, u64)>> = groups
            .extract()
            .map_err(|_| type_error("groups", "a list of lists of two integers each", groups))?;
        Ok(Self {
            tensors: tensors
                .into_iter()
                .map(|(address, block_stride, page_bytes, blocks)| DeviceTensor {
                    address,
                    block_stride,
                    page_bytes,
                    blocks,
                })
                .collect(),
            groups: groups
                .into_iter()
                .map(|group| {
                    let used = group.into_iter();
                    used.map(|(tensor, page_bytes)| GroupTensor { tensor, page_bytes })
                        .collect()
                })
                .collect(),
            blocks_per_chunk: integer("blocks_per_chunk", blocks_per_chunk)?,
        })
    }

    /// Where slots lie: those of an address of zero tell how large they are.
    fn host_slots(&self, slots: u64, address: u64) -> PyResult<HostSlots> {
        let (groups, chunk) = (&self.groups, self.blocks_per_chunk);
        let made = HostSlots::slot_major(groups, chunk, address, slots, SLOT_ALIGNMENT);
        made.map_err(|error| value_error("kv_caches", error))
    }

    /// Puts the host tier into an area of a region, or into memory of its own.
    pub(crate) fn with_host_tier(
        self,
        slots: u64,
        threads: Option<NonZeroUsize>,
        area: Option<(Arc<PinnedRegion>, usize)>,
    ) -> PyResult<HostTier> {
        let bytes = self.host_slots(slots, 0)?.bytes;
        let (region, rank) = match area {
            Some(area) => area,
            None => (Arc::new(private(bytes, slots)?), 0),
        };
        let area = region
            .rank_area(rank)
            .ok_or_else(|| value_error("rank", format!("{rank} is out of range")))?;
        if area.bytes < bytes {
            let what = format!(
                "its areas have {} bytes, {slots} slots take {bytes}",
                area.bytes
            );
            return Err(value_error("region", what));
        }
        let host = self.host_slots(slots, area.address)?;
        let layout = KvLayout::new(self.tensors, self.groups, self.blocks_per_chunk, host);
        let layout = layout.map_err(|error| value_error("kv_caches", error))?;
        let device = layout.extents().0.into_iter();
        let device = device.map(|(address, bytes)| Extent { address, bytes });
        let memory = promised(device.chain([area]).collect(), region);
        let options = HostOptions {
            threads,
            ..HostOptions::default()
        };
        let backend = HostBackend::new(memory, options);
        let backend = backend.map_err(|error| value_error("threads", error))?;
        Ok(HostTier { backend, layout })
    }
}

fn private(bytes: u64, slots: u64) -> PyResult<PinnedRegion> {
    let config = PrivateConfig {
        bytes,
        slots,
        memory: MemoryOptions::default(),
    };
    PinnedRegion::private(&config, &mut |_| ControlFlow::Continue(())).map_err(region_error)
}

/// Python is taken at its word here, and in `swapped`.
#[expect(unsafe_code, reason = "addresses of tensors come from Python")]
fn promised(extents: Vec<Extent>, owner: Arc<PinnedRegion>) -> HostMemory {
    // SAFETY: the tensors are the caller's word, as the documentation of `JobEngine` says: the
    // package takes addresses and sizes from tensors, and hands them over with an owner that keeps
    // these alive for as long as the job engine, which is dropped first and then waits for its
    // jobs. Memory of another allocator is exposed to begin with. No conflicting jobs are let in by
    // the job engine; that nobody else touches the blocks of a job in flight is the contract of
    // submitting one.
    unsafe { HostMemory::new(extents, owner) }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(swap_blocks, m)?)?;
    m.add_function(wrap_pyfunction!(slot_bytes, m)?)
}

/// Bytes that a slot of the host tier takes for these groups, as `JobEngine` lays them out.
#[pyfunction]
fn slot_bytes(groups: &Bound<'_, PyAny>, blocks_per_chunk: &Bound<'_, PyAny>) -> PyResult<u64> {
    let no_tensors = PyList::empty(groups.py());
    let tensors = Tensors::extract(&no_tensors, groups, blocks_per_chunk)?;
    Ok(tensors.host_slots(1, 0)?.bytes)
}

/// Copies blocks of one run of memory to blocks of another: `(address, bytes)` of each, and
/// `int64[n, 2]` of block numbers. The addresses are the caller's word: `kvferry.swap_blocks` takes
/// them from tensors.
///
/// Raises ValueError for a block that is out of range, written twice, or read and written.
#[pyfunction]
fn swap_blocks(
    py: Python<'_>,
    src: (u64, u64),
    dst: (u64, u64),
    block_size_in_bytes: &Bound<'_, PyAny>,
    block_mapping: PyReadonlyArray2<'_, i64>,
) -> PyResult<()> {
    let block_bytes = integer("block_size_in_bytes", block_size_in_bytes)?;
    let [src, dst] = [src, dst].map(|(address, bytes)| Extent { address, bytes });
    // Copied: another thread may write the array while the interpreter's lock is released.
    let rows = block_mapping.as_array();
    let mapping: Vec<[i64; 2]> = rows
        .rows()
        .into_iter()
        .map(|row| [row[0], row[1]])
        .collect();
    drop(block_mapping);
    py.detach(|| swapped(src, dst, block_bytes, &mapping))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

#[expect(unsafe_code, reason = "addresses of tensors come from Python")]
fn swapped(
    src: Extent,
    dst: Extent,
    block_bytes: u64,
    mapping: &[[i64; 2]],
) -> Result<(), SwapError> {
    // SAFETY: the tensors are the caller's word, as above; he holds them until the call returns, and
    // using them meanwhile is his to avoid, as with any operation on a tensor.
    unsafe { kvferry_host::swap_blocks(src, dst, block_bytes, mapping) }
}
