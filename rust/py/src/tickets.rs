//! Tickets and what a completion did.
//!
//! A ticket is given back once. A second completion with the same ticket changes nothing and is
//! counted as late.

use std::sync::Mutex;

use kvferry::{Completion, LoadTicket, Manager, StoreTicket};
use pyo3::prelude::*;

use crate::engine::{Engine, enter};
use crate::errors::value_error;

const HELD: &str = "another thread is using this ticket";

/// What a completion did.
///
/// For a load, `late` above zero means that what was read must not be used: its chunks had left by
/// a reset.
#[pyclass(frozen, eq, hash, module = "kvferry", name = "Completion")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PyCompletion {
    /// Chunks that it acted on.
    #[pyo3(get)]
    applied: usize,
    /// Chunks whose slot had changed hands, or that were completed before: counted, otherwise left
    /// alone.
    #[pyo3(get)]
    late: usize,
}

impl From<Completion> for PyCompletion {
    fn from(done: Completion) -> Self {
        Self {
            applied: done.applied,
            late: done.late,
        }
    }
}

impl PyCompletion {
    pub(crate) fn all(applied: usize) -> Self {
        Self { applied, late: 0 }
    }
}

#[pymethods]
impl PyCompletion {
    fn __repr__(&self) -> String {
        format!("Completion(applied={}, late={})", self.applied, self.late)
    }
}

macro_rules! ticket {
    ($(#[$doc:meta])* $class:ident, $name:literal, $ticket:ty) => {
        $(#[$doc])*
        #[pyclass(frozen, module = "kvferry", name = $name)]
        #[derive(Debug)]
        pub(crate) struct $class {
            /// Nothing once it was given back.
            ticket: Mutex<Option<$ticket>>,
            engine: u64,
            chunks: usize,
        }

        impl $class {
            pub(crate) fn new(engine: &Engine, ticket: $ticket) -> Self {
                Self {
                    engine: engine.id,
                    chunks: ticket.slots().len(),
                    ticket: Mutex::new(Some(ticket)),
                }
            }

            /// Refuses a ticket of another engine.
            fn check(&self, engine: &Engine) -> PyResult<()> {
                if self.engine == engine.id {
                    return Ok(());
                }
                Err(value_error("ticket", "made by another manager"))
            }

            /// Gives the ticket back to its engine; a second time counts as late.
            pub(crate) fn complete(
                &self,
                py: Python<'_>,
                engine: &Engine,
                verb: impl FnOnce(&mut Manager, $ticket) -> Completion + Send,
            ) -> PyResult<PyCompletion> {
                self.check(engine)?;
                let done = engine.run(py, self.chunks, |manager| -> PyResult<Completion> {
                    Ok(match enter(&self.ticket, HELD)?.take() {
                        Some(ticket) => verb(manager, ticket),
                        None => manager.count_late(self.chunks),
                    })
                })?;
                done.map(Into::into)
            }
        }

        #[pymethods]
        impl $class {
            fn __len__(&self) -> usize {
                self.chunks
            }

            fn __repr__(&self) -> String {
                let spent = match self.ticket.try_lock() {
                    Ok(ticket) if ticket.is_none() => ", given back",
                    _ => "",
                };
                format!("<{} {} chunks{spent}>", $name, self.chunks)
            }
        }
    };
}

ticket! {
    /// The slots of one store, to be given to `complete_store` when its transfer has ended. `len()`
    /// is the number of chunks.
    PyStoreTicket, "StoreTicket", StoreTicket
}

ticket! {
    /// The pinned slots of one load, to be given to `complete_load` when its transfer has ended.
    /// `len()` is the number of chunks.
    PyLoadTicket, "LoadTicket", LoadTicket
}

impl PyStoreTicket {
    pub(crate) fn cancel(&self, py: Python<'_>, engine: &Engine) -> PyResult<PyCompletion> {
        self.check(engine)?;
        let done = engine.run(py, self.chunks, |manager| -> PyResult<Completion> {
            Ok(match &*enter(&self.ticket, HELD)? {
                Some(ticket) => manager.cancel_store(ticket),
                None => manager.count_late(self.chunks),
            })
        })?;
        done.map(Into::into)
    }
}
