//! The native module of the Python package `kvferry`: conversion only.
#![forbid(unsafe_code)]

use pyo3::prelude::*;

/// The native half of `kvferry`.
#[pymodule(gil_used = false)]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
