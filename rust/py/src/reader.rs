//! `Reader` and `Pin`: for any thread, while the owner works.

use std::sync::Mutex;

use kvferry::{Pin, Reader, TryPin, Unpinned};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arguments::instance;
use crate::engine::{Engine, detach_if_long, enter};
use crate::errors::{StalePinError, StateError, key_error, one_key_error, value_error};
use crate::keys::{PackedKeys, one_key};
use crate::outputs::result_array;
use crate::stats::PyStats;
use crate::support::Support;

/// Looks up, pins and touches from any thread while the owner works. Made by a manager's
/// `reader()`; the engine lives for as long as a reader of it does.
///
/// Nothing here blocks the owner or another reader.
#[pyclass(frozen, module = "kvferry", name = "Reader")]
#[derive(Debug)]
pub(crate) struct PyReader {
    reader: Reader,
    engine: u64,
    key_bytes: usize,
}

impl PyReader {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            reader: engine.reader.clone(),
            engine: engine.id,
            key_bytes: engine.key_bytes,
        }
    }

    fn keys(&self, keys: &Bound<'_, PyAny>) -> PyResult<PackedKeys> {
        PackedKeys::extract("keys", keys, self.key_bytes)
    }
}

#[pymethods]
impl PyReader {
    /// As the manager's.
    fn lookup(&self, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let result = self
            .reader
            .lookup(one_key("key", key)?)
            .map_err(one_key_error)?;
        Ok(Support::get(key.py())?.lookup_result(key.py(), result))
    }

    /// As the manager's: `(ready, known)`.
    fn lookup_prefix(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
        let keys = self.keys(keys)?;
        let run = || self.reader.lookup_prefix(keys.view().keys());
        let hits = detach_if_long(py, keys.len(), run).map_err(key_error)?;
        Ok((hits.ready, hits.known))
    }

    /// As the manager's: `uint8[n]`.
    fn lookup_each<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let keys = self.keys(keys)?;
        let mut results = Vec::new();
        let run = || self.reader.lookup_each(keys.view().keys(), &mut results);
        detach_if_long(py, keys.len(), run).map_err(key_error)?;
        Ok(result_array(py, &results))
    }

    /// Pins a ready chunk, so that its slot may be read: it cannot be evicted until the pin is
    /// given back.
    ///
    /// Returns:
    ///     A `Pin`, or, falsy, the `PinRefused` that says why not.
    fn try_pin(&self, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = key.py();
        let tried = self
            .reader
            .try_pin(one_key("key", key)?)
            .map_err(one_key_error)?;
        let support = Support::get(py)?;
        match tried {
            TryPin::Pinned(pin) => Ok(Py::new(py, PyPin::new(self, pin))?.into_any()),
            TryPin::Miss => Ok(support.pin_miss(py)),
            TryPin::Pending => Ok(support.pin_pending(py)),
            TryPin::Busy => Ok(support.pin_busy(py)),
        }
    }

    /// Gives a pin back.
    ///
    /// Returns:
    ///     Whether what was read is valid: False if the chunk left by a reset meanwhile.
    ///
    /// Raises:
    ///     StateError: The pin was given back before. No other pin is released.
    ///     TypeError, ValueError: Not a pin of this engine.
    fn unpin(&self, pin: &Bound<'_, PyAny>) -> PyResult<bool> {
        let pin = instance::<PyPin>("pin", pin)?.get();
        if pin.engine != self.engine {
            return Err(value_error(
                "pin",
                "taken through a reader of another manager",
            ));
        }
        pin.unpin()
    }

    /// "These chunks were used": the owner applies it, tail first, when it next changes anything.
    ///
    /// Touches that do not fit the log are dropped and counted. Unknown keys are left out.
    fn touch(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = self.keys(keys)?;
        let run = || self.reader.touch(keys.view().keys());
        detach_if_long(py, keys.len(), run).map_err(key_error)
    }

    /// Counters and gauges of the engine.
    fn stats(&self) -> PyStats {
        PyStats::new(self.reader.stats())
    }

    fn __repr__(&self) -> String {
        format!("<Reader of {}>", self.reader.stats())
    }
}

/// The right to read one slot, until it is given back by `unpin`, by `Reader.unpin` or at the end
/// of a `with` block.
///
/// A pin that is dropped instead keeps its chunk in the tier until the next reset.
#[pyclass(frozen, module = "kvferry", name = "Pin")]
#[derive(Debug)]
pub(crate) struct PyPin {
    /// Nothing once it was given back.
    pin: Mutex<Option<Pin>>,
    reader: Reader,
    engine: u64,
    slot: u32,
    generation: u32,
}

impl PyPin {
    fn new(reader: &PyReader, pin: Pin) -> Self {
        Self {
            slot: pin.slot(),
            generation: pin.generation(),
            pin: Mutex::new(Some(pin)),
            reader: reader.reader.clone(),
            engine: reader.engine,
        }
    }

    fn take(&self) -> PyResult<Option<Pin>> {
        Ok(enter(&self.pin, "another thread is giving this pin back")?.take())
    }
}

#[pymethods]
impl PyPin {
    /// The slot that may be read.
    #[getter]
    fn slot(&self) -> u32 {
        self.slot
    }

    /// How often the slot had changed hands when it was pinned.
    #[getter]
    fn generation(&self) -> u32 {
        self.generation
    }

    /// Gives the pin back. Returns whether what was read is valid: False if the chunk left by a
    /// reset meanwhile.
    ///
    /// Raises:
    ///     StateError: It was given back before. No other pin is released.
    fn unpin(&self) -> PyResult<bool> {
        match self.take()? {
            Some(pin) => Ok(self.reader.unpin(pin) == Unpinned::Released),
            None => Err(StateError::new_err("the pin was given back before")),
        }
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Gives the pin back unless the block did.
    ///
    /// Raises:
    ///     StalePinError: The chunk left by a reset: what was read must not be used. Not raised
    ///         over another exception.
    #[pyo3(signature = (kind, value, traceback))]
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (value, traceback);
        let Some(pin) = self.take()? else {
            return Ok(());
        };
        if self.reader.unpin(pin) == Unpinned::Stale && kind.is_none() {
            return Err(StalePinError::new_err(
                "the chunk left by a reset while it was pinned: what was read must not be used",
            ));
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = match self.pin.try_lock() {
            Ok(pin) if pin.is_none() => ", given back",
            _ => "",
        };
        format!(
            "<Pin slot {} generation {}{state}>",
            self.slot, self.generation
        )
    }
}
