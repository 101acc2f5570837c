//! `OffloadingManager`: the owner's verbs.

use std::sync::OnceLock;

use kvferry::{RequestAccess, ResetMode, StoreOutcome};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::access::{Entered, Places, PyRequestAccess};
use crate::arguments::{boolean, instance, integer, optional_integer, reset_mode};
use crate::engine::Engine;
use crate::errors::{StateError, key_error, load_error, one_key_error, store_error, type_error};
use crate::inspect;
use crate::keys::{PackedKeys, one_key};
use crate::options;
use crate::outputs::{
    PrepareLoadOutput, PrepareStoreOutput, load_ticket, refuse_ticket, result_array, store_ticket,
};
use crate::reader::PyReader;
use crate::stats::PyStats;
use crate::support::Support;
use crate::tickets::PyCompletion;

/// Decides what a host tier of `capacity` chunks holds: what is stored where, and what leaves for
/// it.
///
/// A key is the identity of a chunk, as bytes. Keys of a call are in prefix order, head first, and
/// given as an iterable of bytes (a list or tuple is fastest) or as a C-contiguous array,
/// `uint8[n, width]`.
///
/// Every verb raises TypeError or ValueError for a bad argument: a key that is empty or longer than
/// `key_bytes`, an array of another shape or layout, an object of another manager. The message
/// begins with the argument's name, and nothing has changed.
///
/// One thread at a time calls the verbs; a second one gets `ConcurrentUseError`. Lookups,
/// `stats()`, properties and `repr` work from any thread, and so does a `reader()`. A call of very
/// many keys releases the interpreter's lock.
///
/// Args:
///     capacity: chunks that the tier holds.
///     policy: which chunks leave when it is full: "lru" or "arc".
///     key_bytes: the longest key, 1 to 1024. Up to 40, a chunk's record is one cache line.
///     group_bytes: how many bytes at the end of a key are its KV-cache group: 4 or 0.
///     store_threshold: a key is stored once it has been offered this often; 0 and 1 store at once.
///     max_tracker_size: keys whose offers are counted, where the threshold is above 1.
///     enable_events: whether events are kept for `take_events`.
///     max_event_keys: keys that events may hold until they are taken.
///     touch_log_capacity: touches by readers that may wait for the owner.
///     pending_timeout_us: how long a store may be pending before `expire_pending` gives it up;
///         never by default.
///     hash_seed: a seed for the hash of keys, for runs that are alike; random by default.
///     uniform_keys: keys are uniformly distributed already (a cryptographic hash) and are not
///         hashed again.
///
/// Raises:
///     ValueError: An argument is out of range, or the policy is unknown.
///     TypeError: An argument has the wrong type.
///     MemoryError: There is no memory for so many chunks.
#[pyclass(frozen, subclass, module = "kvferry")]
#[derive(Debug)]
pub(crate) struct OffloadingManager {
    /// Made by `__init__`, so that a subclass may have an `__init__` of its own.
    engine: OnceLock<Engine>,
}

impl OffloadingManager {
    #[inline]
    fn engine(&self) -> PyResult<&Engine> {
        self.engine
            .get()
            .ok_or_else(|| StateError::new_err("OffloadingManager.__init__ was not called"))
    }

    fn keys(&self, keys: &Bound<'_, PyAny>) -> PyResult<(&Engine, PackedKeys)> {
        let engine = self.engine()?;
        Ok((engine, PackedKeys::extract("keys", keys, engine.key_bytes)?))
    }
}

#[pymethods]
impl OffloadingManager {
    #[new]
    #[pyo3(
        signature = (*args, **kwargs),
        text_signature = "(capacity, policy='lru', *, key_bytes=36, group_bytes=4, \
                          store_threshold=1, max_tracker_size=64000, enable_events=False, \
                          max_event_keys=1048576, touch_log_capacity=16384, \
                          pending_timeout_us=None, hash_seed=None, uniform_keys=False)"
    )]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let _ = (args, kwargs);
        Self {
            engine: OnceLock::new(),
        }
    }

    #[pyo3(signature = (capacity, policy=None, **options))]
    fn __init__(
        &self,
        py: Python<'_>,
        capacity: &Bound<'_, PyAny>,
        policy: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        Support::get(py)?;
        let config = options::config(capacity, policy, options)?;
        self.engine
            .set(Engine::new(py, config)?)
            .map_err(|_| StateError::new_err("OffloadingManager.__init__ was called twice"))
    }

    /// Whether one chunk is in the tier: `MISS`, `HIT` or `HIT_PENDING`. Never pins, never changes
    /// the order.
    fn lookup(&self, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let result = self
            .engine()?
            .reader
            .lookup(one_key("key", key)?)
            .map_err(one_key_error)?;
        Ok(Support::get(key.py())?.lookup_result(key.py(), result))
    }

    /// The longest leading run of ready chunks, and of ready or pending ones: `(ready, known)`, in
    /// keys.
    fn lookup_prefix(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
        let (engine, keys) = self.keys(keys)?;
        let hits = engine
            .read_keys(py, &keys, |reader, keys| reader.lookup_prefix(keys))
            .map_err(key_error)?;
        Ok((hits.ready, hits.known))
    }

    /// One result a key, as the numbers of `LookupResult`: `uint8[n]`.
    fn lookup_each<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let (engine, keys) = self.keys(keys)?;
        let mut results = Vec::new();
        engine
            .read_keys(py, &keys, |reader, keys| {
                reader.lookup_each(keys, &mut results)
            })
            .map_err(key_error)?;
        Ok(result_array(py, &results))
    }

    /// "These chunks were used": one access, for callers that have no requests. Applied tail first.
    ///
    /// A pending chunk keeps its list. A key that ARC remembers as a ghost moves its target.
    /// Unknown keys are left out.
    fn touch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let (engine, keys) = self.keys(keys)?;
        engine
            .with_keys(py, &keys, |manager, keys| manager.touch(keys))?
            .map_err(key_error)
    }

    /// Begins the record of one request.
    ///
    /// Args:
    ///     now_us: the caller's clock in microseconds; a time before the last one is taken as the
    ///         last one.
    ///     keys: keys of the request whose places are known already; with `positions`.
    ///     positions: where each of `keys` stands in the prefix, as in
    ///         `RequestAccess.set_positions`.
    ///     gpu_hit: how many leading keys the accelerator's own prefix cache serves.
    #[pyo3(
        signature = (now_us=None, keys=None, positions=None, gpu_hit=None),
        text_signature = "($self, now_us=0, keys=None, positions=None, gpu_hit=0)"
    )]
    fn begin_request(
        &self,
        now_us: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        positions: Option<&Bound<'_, PyAny>>,
        gpu_hit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRequestAccess> {
        let engine = self.engine()?;
        let now_us = optional_integer("now_us", now_us)?.unwrap_or_default();
        let gpu_hit = optional_integer("gpu_hit", gpu_hit)?.unwrap_or_default();
        let places = Places::optional(keys, positions, engine.key_bytes)?;
        let mut access = engine.enter()?.begin_request(now_us, gpu_hit);
        if let Some(places) = places {
            places.tell(&mut access)?;
        }
        Ok(PyRequestAccess::new(engine, access))
    }

    /// Applies what a request did, once, tail to head: a chunk that it reused is one hit, a chunk
    /// that it stored itself regains its place in the order. An aborted request finishes like any
    /// other; a second time does nothing.
    ///
    /// Args:
    ///     access: what `begin_request` returned.
    ///     output_tokens: how much the request generated, for policies that learn from it.
    #[pyo3(signature = (access, output_tokens=None))]
    fn finish_request(
        &self,
        py: Python<'_>,
        access: &Bound<'_, PyAny>,
        output_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let engine = self.engine()?;
        let access = instance::<PyRequestAccess>("access", access)?.get();
        let output_tokens = optional_integer("output_tokens", output_tokens)?;
        access.check(engine)?;
        let size = access.enter()?.as_ref().map_or(0, RequestAccess::seen);
        engine.run(py, size, |manager| access.finish(manager, output_tokens))?
    }

    /// Offers the chunks of a request. Missing ones get a slot each and are pending until
    /// `complete_store`; chunks that nobody holds leave for them, never one of this call. A key
    /// twice in a call is stored once.
    ///
    /// Args:
    ///     keys: the chunks, in prefix order.
    ///     access: the request's record, if there is one.
    ///
    /// Returns:
    ///     What to transfer, or None if it did not fit: then `last_rejection` says why, and no
    ///     slot, resident key, order or event has changed. That the keys were offered is remembered
    ///     in both cases.
    ///
    /// Raises:
    ///     StateError: The request has finished.
    #[pyo3(signature = (keys, access=None))]
    fn prepare_store(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<PrepareStoreOutput>> {
        let (engine, keys) = self.keys(keys)?;
        let outcome = {
            let mut access = Entered::new(engine, access)?;
            let access = access.get();
            engine
                .with_keys(py, &keys, move |manager, keys| {
                    manager.prepare_store(keys, access)
                })?
                .map_err(store_error)?
        };
        match outcome {
            StoreOutcome::Stored(output) => {
                engine.note_rejection(None);
                PrepareStoreOutput::new(py, engine, keys, output).map(Some)
            }
            StoreOutcome::Rejected(why) => {
                engine.note_rejection(Some(why));
                Ok(None)
            }
        }
    }

    /// Why the last `prepare_store` returned None; None if it did not.
    #[getter]
    fn last_rejection(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let support = Support::get(py)?;
        let why = self.engine()?.last_rejection();
        Ok(why.map(|why| support.store_rejected(py, why)))
    }

    /// Ends a store. In success its chunks may be loaded from now on, otherwise their slots are
    /// free again.
    ///
    /// A ticket acts on the very slots that it was made for: slots that have changed hands since,
    /// and a ticket that comes twice, count as late and change nothing. Keys are for callers that
    /// guarantee that no completion crosses a reset or a second store of the same key: ready keys
    /// are left alone, unknown ones count as late.
    ///
    /// Args:
    ///     keys: the output of `prepare_store`, its ticket, or keys.
    ///     success: whether the transfer succeeded.
    #[pyo3(signature = (keys, success=None), text_signature = "($self, keys, success=True)")]
    fn complete_store(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        success: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyCompletion> {
        let success = success.map_or(Ok(true), |success| boolean("success", success))?;
        let engine = self.engine()?;
        if let Some(ticket) = store_ticket(keys) {
            return ticket.get().complete(py, engine, |manager, ticket| {
                manager.complete_store(ticket, success)
            });
        }
        refuse_ticket(keys, "keys, a PrepareStoreOutput or a StoreTicket")?;
        let (engine, keys) = self.keys(keys)?;
        engine
            .with_keys(py, &keys, |manager, keys| {
                manager.complete_store_keys(keys, success)
            })?
            .map(Into::into)
            .map_err(key_error)
    }

    /// Pins chunks, so that a transfer may read their slots. A key twice is pinned twice. All or
    /// nothing.
    ///
    /// Args:
    ///     keys: the chunks to load, all of them ready.
    ///     access: the request's record, if there is one; it records a reuse.
    ///
    /// Raises:
    ///     NotResidentError: A key is not in the tier. No pin was taken.
    ///     NotReadyError: A key is still being stored. No pin was taken.
    ///     StateError: A key holds the most pins that a slot can have (4095), or the request has
    ///         finished.
    #[pyo3(signature = (keys, access=None))]
    fn prepare_load(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        access: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PrepareLoadOutput> {
        let (engine, keys) = self.keys(keys)?;
        let ticket = {
            let mut access = Entered::new(engine, access)?;
            let access = access.get();
            engine
                .with_keys(py, &keys, move |manager, keys| {
                    manager.prepare_load(keys, access)
                })?
                .map_err(load_error)?
        };
        PrepareLoadOutput::new(py, engine, ticket)
    }

    /// Ends a load: its pins are released. A ticket that comes twice, or after a reset, counts as
    /// late.
    ///
    /// Args:
    ///     keys: the output of `prepare_load`, its ticket, or keys, as in `complete_store`.
    ///
    /// Returns:
    ///     With `late` above zero, what was read must not be used.
    ///
    /// Raises:
    ///     NotResidentError: A key is not in the tier. Nothing was released.
    ///     NotPinnedError: A key is not pinned, or not as often as the call names it. Nothing was
    ///         released.
    fn complete_load(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<PyCompletion> {
        let engine = self.engine()?;
        if let Some(ticket) = load_ticket(keys) {
            return ticket
                .get()
                .complete(py, engine, |manager, ticket| manager.complete_load(ticket));
        }
        refuse_ticket(keys, "keys, a PrepareLoadOutput or a LoadTicket")?;
        let (engine, keys) = self.keys(keys)?;
        engine
            .with_keys(py, &keys, |manager, keys| manager.complete_load_keys(keys))?
            .map_err(load_error)?;
        Ok(PyCompletion::all(keys.len()))
    }

    /// Gives up a store that will not come: its keys are a miss from now on, its slots drain until
    /// `complete_store` says that the transfer has ended. Slots that are not pending any more count
    /// as late.
    fn cancel_store(&self, py: Python<'_>, ticket: &Bound<'_, PyAny>) -> PyResult<PyCompletion> {
        match store_ticket(ticket) {
            Some(ticket) => ticket.get().cancel(py, self.engine()?),
            None => {
                let expected = "a PrepareStoreOutput or a StoreTicket";
                Err(type_error("ticket", expected, ticket))
            }
        }
    }

    /// Cancels every store that has been pending for `pending_timeout_us` at `now_us`. Returns how
    /// many chunks that were.
    fn expire_pending(&self, now_us: &Bound<'_, PyAny>) -> PyResult<usize> {
        let now_us = integer("now_us", now_us)?;
        Ok(self.engine()?.enter()?.expire_pending(now_us))
    }

    /// Tells the time, in microseconds of the caller's clock. A time before the last one is taken
    /// as the last one.
    fn advance_to(&self, now_us: &Bound<'_, PyAny>) -> PyResult<()> {
        let now_us = integer("now_us", now_us)?;
        self.engine()?.enter()?.advance_to(now_us);
        Ok(())
    }

    /// "These will not come back": each leaves now if nobody holds it, else as soon as nobody does,
    /// without a ghost. Offering a key again takes that back. Returns how many left now.
    fn drop_keys(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (engine, keys) = self.keys(keys)?;
        engine
            .with_keys(py, &keys, |manager, keys| manager.drop_keys(keys))?
            .map_err(key_error)
    }

    /// Forgets everything: no key of before is visible from now on. One event of kind "cleared"
    /// tells it. O(capacity).
    ///
    /// Args:
    ///     mode: "drain": slots with a transfer in flight wait for their tickets. "fenced": the
    ///         caller guarantees that no earlier transfer touches a slot from now on, and all
    ///         return at once.
    ///
    /// Returns:
    ///     How many slots are draining.
    #[pyo3(signature = (mode=None), text_signature = "($self, mode='drain')")]
    fn reset_cache(&self, py: Python<'_>, mode: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let mode = mode.map_or(Ok(ResetMode::Drain), reset_mode)?;
        let engine = self.engine()?;
        engine.run(py, engine.capacity, |manager| manager.reset_cache(mode))
    }

    /// The events since the last call, in causal order: `list[OffloadingEvent]`. Empty unless
    /// events are enabled.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.engine()?.enter()?.take_events();
        Support::get(py)?.events(py, &events)
    }

    /// Counters and gauges. From any thread.
    fn stats(&self) -> PyResult<PyStats> {
        Ok(PyStats::new(self.engine()?.reader.stats()))
    }

    /// The bytes that the engine occupies.
    fn memory_bytes(&self) -> PyResult<usize> {
        Ok(self.engine()?.enter()?.memory_bytes())
    }

    /// A handle for any thread. Cheap.
    fn reader(&self) -> PyResult<PyReader> {
        Ok(PyReader::new(self.engine()?))
    }

    /// How many chunks the tier holds at most.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        Ok(self.engine()?.capacity)
    }

    /// The policy's name.
    #[getter]
    fn policy(&self) -> PyResult<&'static str> {
        Ok(self.engine()?.policy.name())
    }

    /// The longest key.
    #[getter]
    fn key_bytes(&self) -> PyResult<usize> {
        Ok(self.engine()?.key_bytes)
    }

    /// ARC's adaptive target, in chunks; 0.0 under other policies.
    #[getter]
    fn target_t1_size(&self) -> PyResult<f64> {
        Ok(self.engine()?.reader.stats().target_t1_size.unwrap_or(0.0))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().name()?;
        match slf.get().engine.get() {
            Some(engine) => Ok(engine.describe(name)),
            None => Ok(format!("<{name} without an engine>")),
        }
    }

    fn _debug_lists<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        inspect::lists(py, self.engine()?)
    }

    fn _debug_fingerprint(&self, key: &Bound<'_, PyAny>) -> PyResult<[u8; 16]> {
        let key = one_key("key", key)?;
        Ok(self.engine()?.enter()?.debug_fingerprint(key).to_be_bytes())
    }

    fn _debug_digest(&self) -> PyResult<u64> {
        Ok(self.engine()?.enter()?.debug_digest())
    }

    fn _debug_key(&self, slot: u32) -> PyResult<Vec<u8>> {
        inspect::key_of(self.engine()?, slot)
    }

    fn _check_invariants(&self) -> PyResult<()> {
        inspect::check(self.engine()?)
    }
}
