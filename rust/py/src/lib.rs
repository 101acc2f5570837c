//! The native module of the Python package `kvferry`: conversion only.
#![deny(unsafe_code)]

mod access;
mod arguments;
mod block_hash_manager;
mod engine;
mod errors;
mod inspect;
mod job_results;
mod jobs;
mod keys;
mod manager;
mod options;
mod outputs;
mod reader;
mod region;
mod replay;
mod stats;
mod support;
mod tensors;
mod tickets;

use pyo3::prelude::*;

/// The native half of `kvferry`.
#[pymodule(gil_used = false)]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<manager::OffloadingManager>()?;
    m.add_class::<block_hash_manager::BlockHashManager>()?;
    m.add_class::<reader::PyReader>()?;
    m.add_class::<reader::PyPin>()?;
    m.add_class::<access::PyRequestAccess>()?;
    m.add_class::<outputs::PrepareStoreOutput>()?;
    m.add_class::<outputs::PrepareLoadOutput>()?;
    m.add_class::<tickets::PyStoreTicket>()?;
    m.add_class::<tickets::PyLoadTicket>()?;
    m.add_class::<tickets::PyCompletion>()?;
    m.add_class::<stats::PyStats>()?;
    m.add_class::<jobs::PyJobEngine>()?;
    m.add_class::<job_results::PyTransferResult>()?;
    m.add_class::<job_results::PyJobStats>()?;
    m.add_class::<region::PyPinnedRegion>()?;
    tensors::register(m)?;
    errors::register(m)?;
    replay::register(m)?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
