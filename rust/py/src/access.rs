//! `RequestAccess`: what one request did with the tier.

use std::sync::{Mutex, MutexGuard};

use kvferry::{Manager, RequestAccess};
use pyo3::prelude::*;

use crate::arguments::{instance, positions};
use crate::engine::{Engine, enter};
use crate::errors::{StateError, key_error, value_error};
use crate::keys::PackedKeys;

/// The record of one request: made by `begin_request`, filled by `prepare_load` and
/// `prepare_store`, applied by `finish_request`.
///
/// It remembers keys, not slots. Dropping it without finishing applies nothing. One thread at a time
/// uses it; a second one gets `ConcurrentUseError`.
#[pyclass(frozen, module = "kvferry", name = "RequestAccess")]
#[derive(Debug)]
pub(crate) struct PyRequestAccess {
    /// Nothing once the request has finished.
    access: Mutex<Option<RequestAccess>>,
    engine: u64,
    key_bytes: usize,
    gpu_hit: usize,
}

impl PyRequestAccess {
    pub(crate) fn new(engine: &Engine, access: RequestAccess) -> Self {
        Self {
            engine: engine.id,
            key_bytes: engine.key_bytes,
            gpu_hit: access.gpu_hit(),
            access: Mutex::new(Some(access)),
        }
    }

    pub(crate) fn check(&self, engine: &Engine) -> PyResult<()> {
        if self.engine == engine.id {
            return Ok(());
        }
        Err(value_error("access", "begun by another manager"))
    }

    pub(crate) fn enter(&self) -> PyResult<MutexGuard<'_, Option<RequestAccess>>> {
        enter(
            &self.access,
            "another thread is using this request's access",
        )
    }

    /// Applies the request, unless it has finished already.
    pub(crate) fn finish(&self, manager: &mut Manager, output_tokens: Option<u64>) -> PyResult<()> {
        match self.enter()?.take() {
            Some(access) => manager
                .finish_request(access, output_tokens)
                .map_err(|error| value_error("access", error)),
            None => Ok(()),
        }
    }
}

/// The access of an optional argument, for as long as the call lasts.
pub(crate) struct Entered<'a>(Option<MutexGuard<'a, Option<RequestAccess>>>);

impl<'a> Entered<'a> {
    pub(crate) fn new(engine: &Engine, access: Option<&'a Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(access) = access else {
            return Ok(Self(None));
        };
        let access = instance::<PyRequestAccess>("access", access)?.get();
        access.check(engine)?;
        let guard = access.enter()?;
        if guard.is_none() {
            return Err(finished());
        }
        Ok(Self(Some(guard)))
    }

    pub(crate) fn get(&mut self) -> Option<&mut RequestAccess> {
        self.0.as_mut().and_then(|guard| guard.as_mut())
    }
}

/// Keys and where each stands in its request's prefix.
pub(crate) struct Places {
    keys: PackedKeys,
    positions: Vec<u32>,
}

impl Places {
    fn extract(
        keys: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        key_bytes: usize,
    ) -> PyResult<Self> {
        let keys = PackedKeys::extract("keys", keys, key_bytes)?;
        let positions = self::positions("positions", positions)?;
        if keys.len() != positions.len() {
            let (n, m) = (positions.len(), keys.len());
            return Err(value_error(
                "positions",
                format!("{n} positions for {m} keys"),
            ));
        }
        Ok(Self { keys, positions })
    }

    /// Both or neither.
    pub(crate) fn optional(
        keys: Option<&Bound<'_, PyAny>>,
        positions: Option<&Bound<'_, PyAny>>,
        key_bytes: usize,
    ) -> PyResult<Option<Self>> {
        match (keys, positions) {
            (None, None) => Ok(None),
            (Some(keys), Some(positions)) => Self::extract(keys, positions, key_bytes).map(Some),
            (Some(_), None) => Err(value_error("positions", "needed with keys")),
            (None, Some(_)) => Err(value_error("keys", "needed with positions")),
        }
    }

    pub(crate) fn tell(&self, access: &mut RequestAccess) -> PyResult<()> {
        access
            .set_positions(self.keys.view().keys(), &self.positions)
            .map_err(key_error)
    }
}

fn finished() -> PyErr {
    StateError::new_err("the request has finished")
}

#[pymethods]
impl PyRequestAccess {
    /// Tells where keys stand in the request's prefix, for instance by the token at which the chunk
    /// ends.
    ///
    /// At the end of the request its chunks are applied in this order: per group if every key of
    /// the group has a position, across groups if every key has one.
    ///
    /// Args:
    ///     keys: keys of this request.
    ///     positions: one integer a key, 0 to 2**32 - 2.
    ///
    /// Raises:
    ///     ValueError: The lengths differ, or a key or position is out of range. Nothing is
    ///         recorded then.
    ///     StateError: The request has finished.
    ///     ConcurrentUseError: Another thread is using this access.
    fn set_positions(&self, keys: &Bound<'_, PyAny>, positions: &Bound<'_, PyAny>) -> PyResult<()> {
        let places = Places::extract(keys, positions, self.key_bytes)?;
        let mut guard = self.enter()?;
        places.tell(guard.as_mut().ok_or_else(finished)?)
    }

    /// How many keys this request has seen; 0 once it has finished.
    #[getter]
    fn seen(&self) -> PyResult<usize> {
        Ok(self.enter()?.as_ref().map_or(0, RequestAccess::seen))
    }

    /// How many leading keys the accelerator's own prefix cache served.
    #[getter]
    fn gpu_hit(&self) -> usize {
        self.gpu_hit
    }

    /// Whether `finish_request` has applied it.
    #[getter]
    fn finished(&self) -> PyResult<bool> {
        Ok(self.enter()?.is_none())
    }

    /// The bytes that this record occupies.
    fn memory_bytes(&self) -> PyResult<usize> {
        Ok(self
            .enter()?
            .as_ref()
            .map_or(0, RequestAccess::memory_bytes))
    }

    fn __repr__(&self) -> String {
        match self.access.try_lock().as_deref() {
            Ok(Some(access)) => format!("<RequestAccess {} keys seen>", access.seen()),
            Ok(None) => "<RequestAccess finished>".to_owned(),
            Err(_) => "<RequestAccess in use>".to_owned(),
        }
    }
}
