//! `PinnedRegion`: host memory that the workers of one engine share, or that one process has.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvferry_host::{
    Areas, Fingerprint, HugePages, MemoryOptions, PinnedRegion, PrivateConfig, RegionConfig,
    RegionError, RegionLayout, RegionProgress,
};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::errors::{RegionError as PyRegionError, value_error};

/// Host memory for chunks, whose pages all exist. It lives as long as this object and the job
/// engines over it.
///
/// The bytes are others' as well: only their address is given.
#[pyclass(frozen, module = "kvferry", name = "PinnedRegion")]
#[derive(Debug)]
pub(crate) struct PyPinnedRegion {
    pub(crate) region: Arc<PinnedRegion>,
}

#[pymethods]
impl PyPinnedRegion {
    /// Makes the region of an engine, or joins it, and waits until all ranks have it.
    ///
    /// The ranks need not know who is first. Once all are there the file has no name any more, so
    /// that nothing is left however they end; a file that a killed start left is removed by the
    /// next one.
    ///
    /// Args:
    ///     name: the engine: letters, digits, `.`, `_`, `-`. Two engines have different names.
    ///     rank: this rank, from 0.
    ///     ranks: how many there are, 64 at most.
    ///     slots: slots of each rank.
    ///     slot_bytes: bytes of a slot of a rank: see `CpuGpuOffloadingHandlers.slot_bytes`.
    ///     fingerprint: whatever else has to be equal: model, dtype, layout.
    ///     shared: whether the ranks hold equal bytes and share one area.
    ///     directory: where the file lives meanwhile.
    ///     huge_pages: "off", "transparent", or the size of pages that were set aside.
    ///     numa_node: where this rank's bytes should lie.
    ///     touch_threads: threads that touch them first.
    ///     keep_name: whether the file keeps its name.
    ///     timeout: seconds to wait for the others.
    ///     progress: called now and then with what is done, how far, and of how much.
    ///
    /// Raises:
    ///     RegionError: The region cannot be had: too little room, another engine of that name, a
    ///         rank that died. The message says what is needed, and what to do.
    ///     ValueError: An argument is out of range.
    ///     MemoryError: There is less memory than it needs.
    #[staticmethod]
    #[pyo3(signature = (name, *, rank, ranks, slots, slot_bytes, fingerprint=Vec::new(), shared=false, directory=None, huge_pages=None, numa_node=None, touch_threads=None, keep_name=false, timeout=300.0, progress=None))]
    #[pyo3(
        text_signature = "(name, *, rank, ranks, slots, slot_bytes, fingerprint=(), shared=False, directory=None, huge_pages='transparent', numa_node=None, touch_threads=None, keep_name=False, timeout=300.0, progress=None)"
    )]
    #[expect(
        clippy::too_many_arguments,
        reason = "the keyword arguments of a Python function"
    )]
    fn open(
        py: Python<'_>,
        name: String,
        rank: usize,
        ranks: usize,
        slots: u64,
        slot_bytes: u64,
        fingerprint: Vec<String>,
        shared: bool,
        directory: Option<PathBuf>,
        huge_pages: Option<&Bound<'_, PyAny>>,
        numa_node: Option<u32>,
        touch_threads: Option<std::num::NonZeroUsize>,
        keep_name: bool,
        timeout: f64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let area_bytes = slots
            .checked_mul(slot_bytes)
            .ok_or_else(|| value_error("slots", "their bytes cannot be counted"))?;
        let layout = RegionLayout {
            areas: if shared {
                Areas::Shared
            } else {
                Areas::PerRank
            },
            area_bytes,
            slots,
            slot_bytes,
        };
        let mut config = RegionConfig::new(name, rank, ranks, layout, Fingerprint::of(fingerprint));
        config.memory = memory_options(huge_pages, numa_node, touch_threads)?;
        config.keep_name = keep_name;
        config.timeout =
            Duration::try_from_secs_f64(timeout).map_err(|error| value_error("timeout", error))?;
        if let Some(directory) = directory {
            config.directory = directory;
        }
        made(py, progress, |told| PinnedRegion::open(&config, told))
    }

    /// Memory of this process alone, without a file.
    ///
    /// Raises as `open` does.
    #[staticmethod]
    #[pyo3(signature = (num_bytes, slots, *, huge_pages=None, numa_node=None, touch_threads=None, progress=None))]
    #[pyo3(
        text_signature = "(num_bytes, slots, *, huge_pages='transparent', numa_node=None, touch_threads=None, progress=None)"
    )]
    #[expect(
        clippy::too_many_arguments,
        reason = "the keyword arguments of a Python function"
    )]
    fn private(
        py: Python<'_>,
        num_bytes: u64,
        slots: u64,
        huge_pages: Option<&Bound<'_, PyAny>>,
        numa_node: Option<u32>,
        touch_threads: Option<std::num::NonZeroUsize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let config = PrivateConfig {
            bytes: num_bytes,
            slots,
            memory: memory_options(huge_pages, numa_node, touch_threads)?,
        };
        made(py, progress, |told| PinnedRegion::private(&config, told))
    }

    /// Where the first area begins.
    #[getter]
    fn address(&self) -> u64 {
        self.region.address()
    }

    /// The length of all areas together.
    #[getter]
    fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    /// How many ranks share it.
    #[getter]
    fn ranks(&self) -> usize {
        self.region.ranks()
    }

    /// Slots of a rank.
    #[getter]
    fn slots(&self) -> u64 {
        self.region.slots()
    }

    /// A random number that all ranks see and that no other region has.
    #[getter]
    fn nonce(&self) -> u64 {
        self.region.nonce()
    }

    /// What was got, and why not more: one line for a log.
    #[getter]
    fn report(&self) -> String {
        self.region.report().to_string()
    }

    /// The address and the length of a rank's area.
    fn rank_area(&self, rank: usize) -> PyResult<(u64, u64)> {
        let area = self.region.rank_area(rank);
        let area = area.ok_or_else(|| value_error("rank", format!("{rank} is out of range")))?;
        Ok((area.address, area.bytes))
    }

    /// Marks a slot whose store has failed, or takes the mark away. All ranks see it.
    fn set_failed(&self, slot: u64, failed: bool) -> PyResult<()> {
        self.region.set_failed(slot, failed).map_err(region_error)
    }

    /// Whether any rank's store of this slot has failed.
    fn is_failed(&self, slot: u64) -> PyResult<bool> {
        self.region.is_failed(slot).map_err(region_error)
    }

    fn __repr__(&self) -> String {
        format!(
            "<PinnedRegion {} slots, {} ranks, {} bytes>",
            self.slots(),
            self.ranks(),
            self.bytes()
        )
    }
}

fn memory_options(
    huge_pages: Option<&Bound<'_, PyAny>>,
    numa_node: Option<u32>,
    touch_threads: Option<std::num::NonZeroUsize>,
) -> PyResult<MemoryOptions> {
    let huge_pages = match huge_pages {
        None => HugePages::default(),
        Some(given) => match (given.extract::<&str>(), given.extract::<u64>()) {
            (Ok("off"), _) => HugePages::Off,
            (Ok("transparent"), _) => HugePages::Transparent,
            (_, Ok(bytes)) => HugePages::Explicit(bytes),
            _ => {
                let what = "expected 'off', 'transparent' or a size in bytes";
                return Err(value_error("huge_pages", what));
            }
        },
    };
    Ok(MemoryOptions {
        huge_pages,
        numa_node,
        touch_threads,
    })
}

/// Makes a region without the interpreter's lock; comes back to it for signals and the callback.
fn made(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    make: impl FnOnce(
        &mut dyn FnMut(RegionProgress) -> ControlFlow<()>,
    ) -> Result<PinnedRegion, RegionError>
    + Send,
) -> PyResult<PyPinnedRegion> {
    let mut raised = None;
    let made = py.detach(|| {
        make(&mut |at: RegionProgress| {
            let told = Python::attach(|py| {
                py.check_signals()?;
                if let Some(progress) = &progress {
                    let stage = format!("{:?}", at.stage).to_lowercase();
                    progress.call1(py, (stage, at.done, at.total))?;
                }
                PyResult::Ok(())
            });
            match told {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    raised = Some(error);
                    ControlFlow::Break(())
                }
            }
        })
    });
    match (made, raised) {
        (_, Some(raised)) => Err(raised),
        (Ok(region), None) => Ok(PyPinnedRegion {
            region: Arc::new(region),
        }),
        (Err(error), None) => Err(region_error(error)),
    }
}

pub(crate) fn region_error(error: RegionError) -> PyErr {
    let message = error.to_string();
    match error {
        RegionError::Name { .. }
        | RegionError::Ranks { .. }
        | RegionError::Slots { .. }
        | RegionError::TooLarge { .. }
        | RegionError::HugePageBytes { .. }
        | RegionError::Slot { .. } => PyValueError::new_err(message),
        RegionError::Memory { .. }
        | RegionError::ControlGroup { .. }
        | RegionError::AddressSpace { .. } => PyMemoryError::new_err(message),
        _ => PyRegionError::new_err(message),
    }
}
