//! The classes of the Python package that the native code makes instances of.
//!
//! They are looked up when the first engine is made, not when the module is imported: the package
//! imports this module first.

use kvferry::{Event, EventKind, Events, LookupResult, StoreRejected};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

use crate::keys::key_list;

/// See the module.
#[derive(Debug)]
pub(crate) struct Support {
    /// `LookupResult`'s members, by the engine's number.
    lookup_results: [Py<PyAny>; 3],
    pin_miss: Py<PyAny>,
    pin_pending: Py<PyAny>,
    pin_busy: Py<PyAny>,
    store_full: Py<PyAny>,
    store_index_full: Py<PyAny>,
    event: Py<PyAny>,
    cpu_spec: Py<PyAny>,
    new_object: Py<PyAny>,
}

static SUPPORT: PyOnceLock<Support> = PyOnceLock::new();

impl Support {
    pub(crate) fn get(py: Python<'_>) -> PyResult<&Self> {
        SUPPORT.get_or_try_init(py, || Self::load(py))
    }

    fn load(py: Python<'_>) -> PyResult<Self> {
        let results = py.import("kvferry.results")?;
        let member = |class: &str, name: &str| -> PyResult<Py<PyAny>> {
            Ok(results.getattr(class)?.getattr(name)?.unbind())
        };
        Ok(Self {
            lookup_results: [
                member("LookupResult", "MISS")?,
                member("LookupResult", "HIT")?,
                member("LookupResult", "HIT_PENDING")?,
            ],
            pin_miss: member("PinRefused", "MISS")?,
            pin_pending: member("PinRefused", "PENDING")?,
            pin_busy: member("PinRefused", "BUSY")?,
            store_full: member("StoreRejected", "FULL")?,
            store_index_full: member("StoreRejected", "INDEX_FULL")?,
            event: results.getattr("OffloadingEvent")?.unbind(),
            cpu_spec: py
                .import("kvferry.specs")?
                .getattr("CPULoadStoreSpec")?
                .unbind(),
            new_object: py.get_type::<PyAny>().getattr("__new__")?.unbind(),
        })
    }

    #[inline]
    pub(crate) fn lookup_result(&self, py: Python<'_>, result: LookupResult) -> Py<PyAny> {
        self.lookup_results[result as usize].clone_ref(py)
    }

    pub(crate) fn pin_miss(&self, py: Python<'_>) -> Py<PyAny> {
        self.pin_miss.clone_ref(py)
    }

    pub(crate) fn pin_pending(&self, py: Python<'_>) -> Py<PyAny> {
        self.pin_pending.clone_ref(py)
    }

    pub(crate) fn pin_busy(&self, py: Python<'_>) -> Py<PyAny> {
        self.pin_busy.clone_ref(py)
    }

    pub(crate) fn store_rejected(&self, py: Python<'_>, why: StoreRejected) -> Py<PyAny> {
        match why {
            StoreRejected::IndexFull => self.store_index_full.clone_ref(py),
            _ => self.store_full.clone_ref(py),
        }
    }

    /// A `CPULoadStoreSpec` over an array of block ids. Its `__init__` would check them, which takes
    /// longer than a small store.
    pub(crate) fn cpu_spec(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let spec = self.new_object.call1(py, (&self.cpu_spec,))?;
        spec.setattr(py, intern!(py, "block_ids"), block_ids)?;
        Ok(spec)
    }

    /// A list of `OffloadingEvent`; one of kind `lost` at the end if some did not fit.
    pub(crate) fn events<'py>(
        &self,
        py: Python<'py>,
        events: &Events,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for Event { kind, keys } in &events.events {
            let keys = key_list(py, keys)?;
            list.append(self.event.call1(py, (keys, kind_name(*kind)))?)?;
        }
        if events.lost > 0 {
            list.append(self.event.call1(py, (PyList::empty(py), "lost"))?)?;
        }
        Ok(list)
    }
}

pub(crate) fn kind_name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Stored => "stored",
        EventKind::Removed => "removed",
        _ => "cleared",
    }
}
