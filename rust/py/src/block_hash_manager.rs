//! `BlockHashManager`: the verbs as vLLM 0.14 has them, by block hash alone.
//!
//! Base of `LRUOffloadingManager` and `ARCOffloadingManager`, so that their verbs are native
//! methods without a wrapper. Its callers keep no tickets: they guarantee that no completion
//! crosses a second store of the same hash.

use std::sync::OnceLock;

use kvferry::{Config, StoreOutcome};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple};

use crate::arguments::{boolean, integer, policy};
use crate::engine::Engine;
use crate::errors::{StateError, key_error, load_error, store_error};
use crate::inspect;
use crate::keys::{PackedKeys, key_list};
use crate::outputs::int64_array;
use crate::reader::PyReader;
use crate::stats::PyStats;
use crate::support::Support;

/// The engine of a manager that is asked by block hash.
///
/// Args:
///     capacity: chunks that the tier holds.
///     policy: "lru" or "arc".
///     block_size: tokens of a chunk, for events.
///     medium: the tier's name in events.
///     enable_events: whether events are kept for `take_events`, without a bound.
///     key_bytes: the longest block hash, 1 to 1024.
///
/// Raises:
///     ValueError, TypeError: A bad argument.
///     MemoryError: There is no memory for so many chunks.
#[pyclass(frozen, subclass, module = "kvferry")]
#[derive(Debug)]
pub(crate) struct BlockHashManager {
    inner: OnceLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    block_size: u64,
    medium: String,
}

impl BlockHashManager {
    fn inner(&self) -> PyResult<&Inner> {
        self.inner
            .get()
            .ok_or_else(|| StateError::new_err("the manager's __init__ was not called"))
    }

    fn keys(&self, block_hashes: &Bound<'_, PyAny>) -> PyResult<(&Engine, PackedKeys)> {
        let engine = &self.inner()?.engine;
        let keys = PackedKeys::extract("block_hashes", block_hashes, engine.key_bytes)?;
        Ok((engine, keys))
    }
}

/// A class of `kvferry.vllm_014`, which imports this module.
fn class<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let load =
        || -> PyResult<Py<PyAny>> { Ok(py.import("kvferry.vllm_014")?.getattr(name)?.unbind()) };
    Ok(cell.get_or_try_init(py, load)?.bind(py))
}

static OUTPUT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static EVENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[pymethods]
impl BlockHashManager {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let _ = (args, kwargs);
        Self {
            inner: OnceLock::new(),
        }
    }

    #[pyo3(signature = (capacity, *, policy, block_size, medium, enable_events, key_bytes))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the keyword arguments of a Python class"
    )]
    fn __init__(
        &self,
        py: Python<'_>,
        capacity: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        block_size: &Bound<'_, PyAny>,
        medium: String,
        enable_events: &Bound<'_, PyAny>,
        key_bytes: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let config = Config::new(integer("capacity", capacity)?)
            .policy(self::policy("policy", policy)?)
            .key_bytes(integer("key_bytes", key_bytes)?)
            .group_bytes(0)
            .events(boolean("enable_events", enable_events)?)
            .max_event_keys(usize::MAX);
        let inner = Inner {
            block_size: integer("block_size", block_size)?,
            engine: Engine::new(py, config)?,
            medium,
        };
        self.inner
            .set(inner)
            .map_err(|_| StateError::new_err("the manager's __init__ was called twice"))
    }

    /// The length of the longest leading run of chunks that may be loaded.
    fn lookup(&self, py: Python<'_>, block_hashes: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (engine, keys) = self.keys(block_hashes)?;
        let hits = engine
            .read_keys(py, &keys, |reader, keys| reader.lookup_prefix(keys))
            .map_err(key_error)?;
        Ok(hits.ready)
    }

    /// Pins chunks, all of them ready, and says where they are. A hash twice is pinned twice. All
    /// or nothing.
    ///
    /// Raises:
    ///     NotResidentError, NotReadyError: A chunk is missing, or still being stored. No pin was
    ///         taken.
    fn prepare_load(&self, py: Python<'_>, block_hashes: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let (engine, keys) = self.keys(block_hashes)?;
        let ticket = engine
            .with_keys(py, &keys, |manager, keys| manager.prepare_load(keys, None))?
            .map_err(load_error)?;
        spec(py, ticket.slots())
    }

    /// "These chunks were used": one access, applied tail first.
    fn touch(&self, py: Python<'_>, block_hashes: &Bound<'_, PyAny>) -> PyResult<()> {
        let (engine, keys) = self.keys(block_hashes)?;
        engine
            .with_keys(py, &keys, |manager, keys| manager.touch(keys))?
            .map_err(key_error)
    }

    /// Ends a load: its pins are released.
    ///
    /// Raises:
    ///     NotResidentError, NotPinnedError: A chunk is missing, or not pinned as often as the call
    ///         names it. Nothing was released.
    fn complete_load(&self, py: Python<'_>, block_hashes: &Bound<'_, PyAny>) -> PyResult<()> {
        let (engine, keys) = self.keys(block_hashes)?;
        engine
            .with_keys(py, &keys, |manager, keys| manager.complete_load_keys(keys))?
            .map_err(load_error)
    }

    /// Offers chunks: missing ones get a slot each, chunks that nobody holds leave for them, never
    /// one of this call.
    ///
    /// Returns:
    ///     What to transfer and what left, or None if it did not fit. Then nothing has changed.
    fn prepare_store<'py>(
        &self,
        py: Python<'py>,
        block_hashes: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (engine, keys) = self.keys(block_hashes)?;
        let outcome = engine
            .with_keys(py, &keys, |manager, keys| manager.prepare_store(keys, None))?
            .map_err(store_error)?;
        let StoreOutcome::Stored(output) = outcome else {
            return Ok(None);
        };
        let stored = keys.select(&output.indices).to_list(py)?;
        let spec = spec(py, output.ticket.slots())?;
        let evicted = key_list(py, &output.evicted)?;
        class(py, &OUTPUT, "PrepareStoreOutput")?
            .call1((stored, spec, evicted))
            .map(Some)
    }

    /// Ends a store. In success its chunks may be loaded from now on, otherwise their slots are
    /// free again. Ready chunks are left alone in both cases, unknown ones are counted as late.
    #[pyo3(
        signature = (block_hashes, success=None),
        text_signature = "($self, block_hashes, success=True)"
    )]
    fn complete_store(
        &self,
        py: Python<'_>,
        block_hashes: &Bound<'_, PyAny>,
        success: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let success = success.map_or(Ok(true), |success| boolean("success", success))?;
        let (engine, keys) = self.keys(block_hashes)?;
        let done = engine.with_keys(py, &keys, |manager, keys| {
            manager.complete_store_keys(keys, success)
        })?;
        done.map(|_| ()).map_err(key_error)
    }

    /// An iterator over the events since the last call, in causal order. Empty unless events are
    /// enabled.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let inner = self.inner()?;
        let events = inner.engine.enter()?.take_events();
        let class = class(py, &EVENT, "OffloadingEvent")?;
        let list = PyList::empty(py);
        for event in &events.events {
            let removed = event.kind != kvferry::EventKind::Stored;
            let keys = key_list(py, &event.keys)?;
            list.append(class.call1((keys, inner.block_size, &inner.medium, removed))?)?;
        }
        list.try_iter()
    }

    /// Counters and gauges. From any thread.
    fn stats(&self) -> PyResult<PyStats> {
        Ok(PyStats::new(self.inner()?.engine.reader.stats()))
    }

    /// A handle for any thread. Cheap.
    fn reader(&self) -> PyResult<PyReader> {
        Ok(PyReader::new(&self.inner()?.engine))
    }

    /// How many chunks the tier holds at most.
    #[getter]
    fn cache_capacity(&self) -> PyResult<usize> {
        Ok(self.inner()?.engine.capacity)
    }

    /// ARC's adaptive target, in chunks; 0.0 under LRU.
    #[getter]
    fn target_t1_size(&self) -> PyResult<f64> {
        let stats = self.inner()?.engine.reader.stats();
        Ok(stats.target_t1_size.unwrap_or(0.0))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?;
        match slf.get().inner.get() {
            Some(inner) => Ok(inner.engine.describe(name)),
            None => Ok(format!("<{name} without an engine>")),
        }
    }

    fn _debug_lists<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        inspect::lists(py, &self.inner()?.engine)
    }

    fn _check_invariants(&self) -> PyResult<()> {
        inspect::check(&self.inner()?.engine)
    }
}

fn spec(py: Python<'_>, slots: &[u32]) -> PyResult<Py<PyAny>> {
    let block_ids = int64_array(py, slots.iter().copied().map(i64::from));
    Support::get(py)?.cpu_spec(py, &block_ids)
}
