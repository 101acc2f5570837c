//! The tree of exceptions, and which of them each of the engine's errors becomes.
//!
//! A bad argument is a `ValueError` or `TypeError` whose message begins with the argument's name.
//! Everything else is a `KvferryError`.

use kvferry::transfer::SubmitError;
use kvferry::{ConfigError, KeyError, LoadError, StoreError};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    kvferry,
    KvferryError,
    PyException,
    "Base of the exceptions that kvferry raises for anything but a bad argument."
);
create_exception!(
    kvferry,
    ConcurrentUseError,
    KvferryError,
    "A second thread entered a verb of the owner, or used a request's access, during a call.\n\nNothing was changed."
);
create_exception!(
    kvferry,
    StateError,
    KvferryError,
    "The call does not fit the state of the tier or of an argument. Nothing was changed."
);
create_exception!(
    kvferry,
    NotResidentError,
    StateError,
    "A key is not in the tier."
);
create_exception!(
    kvferry,
    NotReadyError,
    StateError,
    "A key is still being stored."
);
create_exception!(
    kvferry,
    NotPinnedError,
    StateError,
    "A key is not pinned, or not as often as the call names it."
);
create_exception!(
    kvferry,
    StalePinError,
    StateError,
    "The chunk left by a reset while it was pinned: what was read must not be used."
);
create_exception!(
    kvferry,
    RegionError,
    KvferryError,
    "The host memory of an engine cannot be had, or not as one region of all its ranks."
);
create_exception!(
    kvferry,
    WrongByteError,
    KvferryError,
    "A replay loaded a byte that is not the one it stored."
);
create_exception!(
    kvferry,
    TransferConflictError,
    StateError,
    "A job in flight uses one of the blocks or slots. Nothing was submitted."
);
create_exception!(
    kvferry,
    TransferError,
    KvferryError,
    "A job failed: its destination must not be used."
);
create_exception!(
    kvferry,
    TransferCancelledError,
    TransferError,
    "A job was withdrawn before it was started."
);
create_exception!(
    kvferry,
    QuarantinedError,
    TransferError,
    "A job failed, and whether it still uses its memory cannot be found out: its blocks and slots are never to be used again."
);

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    m.add("KvferryError", py.get_type::<KvferryError>())?;
    m.add("ConcurrentUseError", py.get_type::<ConcurrentUseError>())?;
    m.add("StateError", py.get_type::<StateError>())?;
    m.add("NotResidentError", py.get_type::<NotResidentError>())?;
    m.add("NotReadyError", py.get_type::<NotReadyError>())?;
    m.add("NotPinnedError", py.get_type::<NotPinnedError>())?;
    m.add("StalePinError", py.get_type::<StalePinError>())?;
    m.add("RegionError", py.get_type::<RegionError>())?;
    m.add("WrongByteError", py.get_type::<WrongByteError>())?;
    m.add(
        "TransferConflictError",
        py.get_type::<TransferConflictError>(),
    )?;
    m.add("TransferError", py.get_type::<TransferError>())?;
    m.add(
        "TransferCancelledError",
        py.get_type::<TransferCancelledError>(),
    )?;
    m.add("QuarantinedError", py.get_type::<QuarantinedError>())
}

/// A `ValueError` about an argument.
pub(crate) fn value_error(name: &str, what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{name}: {what}"))
}

/// A `TypeError` about an argument.
pub(crate) fn type_error(name: &str, expected: &str, got: &Bound<'_, PyAny>) -> PyErr {
    match got.get_type().name() {
        Ok(got) => PyTypeError::new_err(format!("{name}: expected {expected}, got {got}")),
        Err(error) => error,
    }
}

pub(crate) fn key_error(error: KeyError) -> PyErr {
    value_error("keys", error)
}

/// For a verb that takes one key.
pub(crate) fn one_key_error(error: KeyError) -> PyErr {
    match error {
        KeyError::Empty { .. } => value_error("key", "the key is empty"),
        KeyError::TooLong { len, key_bytes, .. } => value_error(
            "key",
            format!("the key has {len} bytes, the manager holds at most {key_bytes}"),
        ),
        error => value_error("key", error),
    }
}

pub(crate) fn config_error(error: ConfigError) -> PyErr {
    match error {
        ConfigError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        error => PyValueError::new_err(error.to_string()),
    }
}

pub(crate) fn store_error(error: StoreError) -> PyErr {
    match error {
        StoreError::Key(error) => key_error(error),
        error => value_error("access", error),
    }
}

pub(crate) fn load_error(error: LoadError) -> PyErr {
    match error {
        LoadError::Key(error) => key_error(error),
        LoadError::NotResident { .. } => NotResidentError::new_err(error.to_string()),
        LoadError::NotReady { .. } => NotReadyError::new_err(error.to_string()),
        LoadError::NotPinned { .. } => NotPinnedError::new_err(error.to_string()),
        LoadError::Access(error) => value_error("access", error),
        error => StateError::new_err(error.to_string()),
    }
}

/// Every reason but a full queue, which is an answer.
pub(crate) fn submit_error(error: SubmitError) -> PyErr {
    match error {
        SubmitError::Plan(error) => PyValueError::new_err(error.to_string()),
        SubmitError::Duplicate(_) => value_error("job_id", error),
        SubmitError::ExpeditedStore => value_error("expedited", error),
        SubmitError::Conflict { .. } => TransferConflictError::new_err(error.to_string()),
        error => StateError::new_err(error.to_string()),
    }
}
