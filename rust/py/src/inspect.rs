//! Inspection for tests: the order in full, and the engine's own invariants.

use pyo3::exceptions::{PyAssertionError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::engine::Engine;

pub(crate) fn lists<'py>(py: Python<'py>, engine: &Engine) -> PyResult<Bound<'py, PyDict>> {
    let lists = engine.enter()?.debug_lists();
    let keys = |keys: &[Vec<u8>]| PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)));
    let ghosts = |ghosts: &[u128]| {
        PyList::new(
            py,
            ghosts.iter().map(|g| PyBytes::new(py, &g.to_be_bytes())),
        )
    };
    let dict = PyDict::new(py);
    dict.set_item("t1", keys(&lists.t1)?)?;
    dict.set_item("t2", keys(&lists.t2)?)?;
    dict.set_item("b1", ghosts(&lists.b1)?)?;
    dict.set_item("b2", ghosts(&lists.b2)?)?;
    Ok(dict)
}

pub(crate) fn key_of(engine: &Engine, slot: u32) -> PyResult<Vec<u8>> {
    if slot as usize >= engine.capacity {
        return Err(PyIndexError::new_err("no such slot"));
    }
    Ok(engine.enter()?.debug_key(slot))
}

pub(crate) fn check(engine: &Engine) -> PyResult<()> {
    engine
        .enter()?
        .check_invariants()
        .map_err(PyAssertionError::new_err)
}
