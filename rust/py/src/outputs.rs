//! What `prepare_store` and `prepare_load` return. Lists and arrays are made when they are first
//! asked for.

use std::sync::OnceLock;

use kvferry::{KeyList, LoadTicket, LookupResult, StoreOutput};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::engine::Engine;
use crate::errors::type_error;
use crate::keys::{PackedKeys, key_list};
use crate::support::Support;
use crate::tickets::{PyLoadTicket, PyStoreTicket};

/// A Python object made at the first access, the same one ever after.
type Lazy = OnceLock<Py<PyAny>>;

/// No lock is held while `make` runs Python code: if two threads make one, the first to finish
/// counts.
fn lazy<'py>(
    cell: &Lazy,
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(made) = cell.get() {
        return Ok(made.bind(py).clone());
    }
    let made = make()?.unbind();
    let _ = cell.set(made.clone_ref(py));
    Ok(cell.get().unwrap_or(&made).bind(py).clone())
}

fn visit_all(cells: &[&Lazy], visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
    cells
        .iter()
        .filter_map(|cell| cell.get())
        .try_for_each(|made| visit.call(made))
}

pub(crate) fn int64_array<'py>(
    py: Python<'py>,
    numbers: impl ExactSizeIterator<Item = i64>,
) -> Bound<'py, PyAny> {
    PyArray1::from_iter(py, numbers).into_any()
}

/// What is to be transferred by a store, and what left for it.
#[pyclass(frozen, module = "kvferry")]
#[derive(Debug)]
pub(crate) struct PrepareStoreOutput {
    keys: PackedKeys,
    indices: Vec<usize>,
    slots: Box<[u32]>,
    evicted: KeyList,
    ticket: Py<PyStoreTicket>,
    keys_list: Lazy,
    indices_array: Lazy,
    block_ids_array: Lazy,
    evicted_list: Lazy,
    spec: Lazy,
}

impl PrepareStoreOutput {
    pub(crate) fn new(
        py: Python<'_>,
        engine: &Engine,
        keys: PackedKeys,
        output: StoreOutput,
    ) -> PyResult<Self> {
        Ok(Self {
            keys: keys.select(&output.indices),
            indices: output.indices,
            slots: output.ticket.slots().into(),
            evicted: output.evicted,
            ticket: Py::new(py, PyStoreTicket::new(engine, output.ticket))?,
            keys_list: Lazy::new(),
            indices_array: Lazy::new(),
            block_ids_array: Lazy::new(),
            evicted_list: Lazy::new(),
            spec: Lazy::new(),
        })
    }
}

#[pymethods]
impl PrepareStoreOutput {
    /// The keys to store, in call order: missing ones, each once. `list[bytes]`.
    #[getter]
    fn keys_to_store<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.keys_list, py, || {
            Ok(self.keys.to_list(py)?.into_any())
        })
    }

    /// `keys_to_store` under vLLM 0.14's name.
    #[getter]
    fn block_hashes_to_store<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.keys_to_store(py)
    }

    /// Where each key to store stands in the call, ascending. `int64[n]`.
    #[getter]
    fn indices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.indices_array, py, || {
            Ok(int64_array(py, self.indices.iter().map(|&i| i as i64)))
        })
    }

    /// The slot of each key to store. `int64[n]`.
    #[getter]
    fn block_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.block_ids_array, py, || {
            Ok(int64_array(py, self.slots.iter().copied().map(i64::from)))
        })
    }

    /// `block_ids` as a `CPULoadStoreSpec`.
    #[getter]
    fn store_spec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.spec, py, || {
            let spec = Support::get(py)?.cpu_spec(py, &self.block_ids(py)?)?;
            Ok(spec.into_bound(py))
        })
    }

    /// The keys that left to make room, in the order of their leaving. `list[bytes]`.
    #[getter]
    fn evicted_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.evicted_list, py, || {
            Ok(key_list(py, &self.evicted)?.into_any())
        })
    }

    /// `evicted_keys` under vLLM 0.14's name.
    #[getter]
    fn block_hashes_evicted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.evicted_keys(py)
    }

    /// What `complete_store` and `cancel_store` take; they take the output itself as well.
    #[getter]
    fn ticket(&self, py: Python<'_>) -> Py<PyStoreTicket> {
        self.ticket.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        format!(
            "<PrepareStoreOutput {} to store, {} evicted>",
            self.slots.len(),
            self.evicted.len()
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ticket)?;
        let Self {
            keys_list,
            indices_array,
            block_ids_array,
            evicted_list,
            spec,
            ..
        } = self;
        visit_all(
            &[
                keys_list,
                indices_array,
                block_ids_array,
                evicted_list,
                spec,
            ],
            &visit,
        )
    }
}

/// The pinned slots of a load.
#[pyclass(frozen, module = "kvferry")]
#[derive(Debug)]
pub(crate) struct PrepareLoadOutput {
    slots: Box<[u32]>,
    ticket: Py<PyLoadTicket>,
    block_ids_array: Lazy,
    spec: Lazy,
}

impl PrepareLoadOutput {
    pub(crate) fn new(py: Python<'_>, engine: &Engine, ticket: LoadTicket) -> PyResult<Self> {
        Ok(Self {
            slots: ticket.slots().into(),
            ticket: Py::new(py, PyLoadTicket::new(engine, ticket))?,
            block_ids_array: Lazy::new(),
            spec: Lazy::new(),
        })
    }
}

#[pymethods]
impl PrepareLoadOutput {
    /// The slot of each key of the call: `block_ids[i]` belongs to `keys[i]`. `int64[n]`.
    #[getter]
    fn block_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.block_ids_array, py, || {
            Ok(int64_array(py, self.slots.iter().copied().map(i64::from)))
        })
    }

    /// `block_ids` as a `CPULoadStoreSpec`.
    #[getter]
    fn load_spec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lazy(&self.spec, py, || {
            let spec = Support::get(py)?.cpu_spec(py, &self.block_ids(py)?)?;
            Ok(spec.into_bound(py))
        })
    }

    /// What `complete_load` takes; it takes the output itself as well.
    #[getter]
    fn ticket(&self, py: Python<'_>) -> Py<PyLoadTicket> {
        self.ticket.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        format!("<PrepareLoadOutput {} pinned>", self.slots.len())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ticket)?;
        visit_all(&[&self.block_ids_array, &self.spec], &visit)
    }
}

/// The ticket in an argument that is a store's output or ticket.
pub(crate) fn store_ticket<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, PyStoreTicket>> {
    if let Ok(output) = given.cast::<PrepareStoreOutput>() {
        return Some(output.get().ticket.bind(given.py()).clone());
    }
    given.cast::<PyStoreTicket>().ok().cloned()
}

/// The ticket in an argument that is a load's output or ticket.
pub(crate) fn load_ticket<'py>(given: &Bound<'py, PyAny>) -> Option<Bound<'py, PyLoadTicket>> {
    if let Ok(output) = given.cast::<PrepareLoadOutput>() {
        return Some(output.get().ticket.bind(given.py()).clone());
    }
    given.cast::<PyLoadTicket>().ok().cloned()
}

/// Where keys are expected, a ticket of the other direction is refused by name.
pub(crate) fn refuse_ticket(given: &Bound<'_, PyAny>, expected: &str) -> PyResult<()> {
    if store_ticket(given).is_some() || load_ticket(given).is_some() {
        return Err(type_error("keys", expected, given));
    }
    Ok(())
}

/// `uint8[n]`.
pub(crate) fn result_array<'py>(
    py: Python<'py>,
    results: &[LookupResult],
) -> Bound<'py, PyArray1<u8>> {
    PyArray1::from_iter(py, results.iter().map(|&result| result as u8))
}
