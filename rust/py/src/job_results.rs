//! What has become of a job, and the counters of a job engine.

use kvferry::transfer::{Direction, JobError, JobId, JobResult, JobStats, Transferred};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{QuarantinedError, TransferCancelledError, TransferError};

/// How a job ended.
#[pyclass(frozen, module = "kvferry", name = "TransferResult")]
#[derive(Debug)]
pub(crate) struct PyTransferResult {
    job: JobId,
    direction: Direction,
    outcome: Result<Transferred, JobError>,
}

impl PyTransferResult {
    pub(crate) fn new(result: JobResult) -> Self {
        Self {
            job: result.job,
            direction: result.direction,
            outcome: result.outcome,
        }
    }
}

#[pymethods]
impl PyTransferResult {
    /// The job.
    #[getter]
    fn job_id(&self) -> u64 {
        self.job.0
    }

    /// Whether every byte is where it belongs. Only then may the destination be used.
    #[getter]
    fn success(&self) -> bool {
        self.outcome.is_ok()
    }

    /// Bytes copied; None after a failure.
    #[getter]
    fn transfer_size(&self) -> Option<u64> {
        let copied = self.outcome.as_ref().ok();
        copied.map(|copied| copied.bytes())
    }

    /// Seconds from the submit to the end; None after a failure.
    #[getter]
    fn transfer_time(&self) -> Option<f64> {
        let copied = self.outcome.as_ref().ok();
        copied.map(|copied| copied.seconds())
    }

    /// Source and destination medium: ("GPU", "CPU") or ("CPU", "GPU").
    #[getter]
    fn transfer_type(&self) -> (&'static str, &'static str) {
        match self.direction {
            Direction::Store => ("GPU", "CPU"),
            Direction::Load => ("CPU", "GPU"),
        }
    }

    /// Why the job failed, not raised: a `TransferError`. None after success.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let error = self.outcome.as_ref().err()?;
        let message = error.to_string();
        let error = match error {
            JobError::Quarantined(_) => QuarantinedError::new_err(message),
            JobError::Cancelled => TransferCancelledError::new_err(message),
            _ => TransferError::new_err(message),
        };
        Some(error.value(py).clone().into_any())
    }

    fn __repr__(&self) -> String {
        match &self.outcome {
            Ok(copied) => format!(
                "<TransferResult of job {}: {} bytes>",
                self.job.0,
                copied.bytes()
            ),
            Err(error) => format!("<TransferResult of job {}: failed, {error}>", self.job.0),
        }
    }
}

/// The numbers of a job engine at one moment.
#[pyclass(frozen, eq, module = "kvferry", name = "JobStats")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyJobStats {
    stats: JobStats,
}

impl PyJobStats {
    pub(crate) fn new(stats: JobStats) -> Self {
        Self { stats }
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[pymethods]
        impl PyJobStats {
            $(
                $(#[$doc])*
                #[getter]
                fn $name(&self) -> u64 {
                    self.stats.$name
                }
            )*

            /// The numbers by name, for exporters: `dict[str, int]`.
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(dict.set_item(stringify!($name), self.stats.$name)?;)*
                Ok(dict)
            }

            fn __repr__(&self) -> String {
                let numbers = [$((stringify!($name), self.stats.$name)),*];
                let numbers: Vec<String> = numbers
                    .iter()
                    .filter(|&(_, number)| *number > 0)
                    .map(|(name, number)| format!("{name}={number}"))
                    .collect();
                format!("<JobStats {}>", numbers.join(" "))
            }
        }
    };
}

getters! {
    /// Jobs that were taken.
    submitted,
    /// Jobs that ended in success.
    succeeded,
    /// Jobs that failed.
    failed,
    /// Jobs that were withdrawn before they were started.
    cancelled,
    /// Jobs that wait to be started.
    queued,
    /// Jobs that were started and have not ended.
    in_flight,
    /// Jobs that have ended and were not collected.
    uncollected,
    /// Jobs that failed, and may still use their memory.
    quarantined,
    /// Slots never to be used again.
    poisoned_slots,
    /// Blocks never to be used again.
    poisoned_blocks,
    /// Bytes that successful stores copied.
    bytes_stored,
    /// Bytes that successful loads copied.
    bytes_loaded,
}
