//! `replay`: a trace through the engine, for the command line.
//!
//! Reads and replays with the interpreter released. About twenty times a second it comes back to
//! it, to run the handlers of signals and to tell the caller where it stands; an exception raised
//! there ends the replay.

use std::io;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvferry::PolicyKind;
use kvferry_sim::{
    Capacity, Fault, MoveOptions, Moved, Progress, ReadOptions, ReplayError, Row, Trace,
    TraceError, Workload, read_trace, replay_bytes,
};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::WrongByteError;

/// Time between two calls of `progress`.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(replay, m)?)
}

/// Replays a trace once for every policy and capacity; without a trace, the built-in workload.
///
/// `progress(what, done, total)` is called now and then; `total` is None where it is not known.
///
/// With `chunk_bytes`, bytes are moved, and those that are loaded are compared; the arguments after
/// it say how.
///
/// Raises ValueError for a faulty trace (with file and line), policy, capacity or chunk size,
/// OSError for a file that cannot be read, and WrongByteError if a loaded byte is wrong.
#[pyfunction]
#[pyo3(signature = (trace=None, *, policies, capacities, chunk_tokens=512, block_tokens=None, seed=0, progress=None, chunk_bytes=None, device_chunks=None, in_flight=None, fault_rate=0.0))]
#[expect(
    clippy::too_many_arguments,
    reason = "the keyword arguments of a Python function"
)]
fn replay<'py>(
    py: Python<'py>,
    trace: Option<PathBuf>,
    policies: Vec<String>,
    capacities: Vec<String>,
    chunk_tokens: u64,
    block_tokens: Option<NonZeroU32>,
    seed: u64,
    progress: Option<Py<PyAny>>,
    chunk_bytes: Option<u64>,
    device_chunks: Option<usize>,
    in_flight: Option<NonZeroUsize>,
    fault_rate: f64,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let policies = parsed::<PolicyKind>(&policies)?;
    let capacities = parsed::<Capacity>(&capacities)?;
    let mut options = ReadOptions::default();
    if let Some(tokens) = block_tokens {
        options.mooncake_block_tokens = tokens;
    }
    let moving = chunk_bytes.map(|chunk_bytes| {
        let mut moving = MoveOptions::default();
        moving.chunk_bytes = chunk_bytes;
        moving.device_chunks = device_chunks.unwrap_or(moving.device_chunks);
        moving.in_flight = in_flight.unwrap_or(moving.in_flight);
        moving.fault_rate = fault_rate;
        moving.fault_seed = seed;
        moving
    });
    let mut reporter = Reporter::new(progress);
    let rows = py.detach(move || -> PyResult<Vec<Row>> {
        let trace = match trace {
            Some(path) => reporter.read(&path, &options)?,
            None => Workload::with_seed(seed).generate(),
        };
        let trace = trace.coarsen(chunk_tokens).map_err(value_error)?;
        let of = trace.chunk_refs() * (policies.len() * capacities.len()) as u64;
        let mut rows = Vec::new();
        for policy in policies {
            for capacity in &capacities {
                let done = trace.chunk_refs() * rows.len() as u64;
                let moving = moving.as_ref();
                rows.push(reporter.replay(&trace, policy, capacity, moving, (done, of))?);
            }
        }
        Ok(rows)
    })?;
    rows.iter().map(|row| to_dict(py, row)).collect()
}

/// Each of the texts as a `T`.
fn parsed<T>(texts: &[String]) -> PyResult<Vec<T>>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    texts
        .iter()
        .map(|text| text.trim().parse().map_err(value_error))
        .collect()
}

/// Comes back to the interpreter now and then.
struct Reporter {
    progress: Option<Py<PyAny>>,
    last: Instant,
    raised: Option<PyErr>,
}

impl Reporter {
    fn new(progress: Option<Py<PyAny>>) -> Self {
        Self {
            progress,
            last: Instant::now(),
            raised: None,
        }
    }

    fn report(&mut self, what: &str, done: u64, total: Option<u64>) -> ControlFlow<()> {
        if self.last.elapsed() < REPORT_INTERVAL {
            return ControlFlow::Continue(());
        }
        self.last = Instant::now();
        let outcome = Python::attach(|py| {
            py.check_signals()?;
            if let Some(progress) = &self.progress {
                progress.call1(py, (what, done, total))?;
            }
            Ok(())
        });
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(raised) => {
                self.raised = Some(raised);
                ControlFlow::Break(())
            }
        }
    }

    fn read(&mut self, path: &std::path::Path, options: &ReadOptions) -> PyResult<Trace> {
        let mut observer = |progress| match progress {
            Progress::Reading { bytes, of } => self.report("reading", bytes, of),
            _ => ControlFlow::Continue(()),
        };
        let outcome = read_trace(path, options, &mut observer);
        outcome.map_err(|error| self.trace_error(error))
    }

    fn replay(
        &mut self,
        trace: &Trace,
        policy: PolicyKind,
        capacity: &Capacity,
        moving: Option<&MoveOptions>,
        (done, of): (u64, u64),
    ) -> PyResult<Row> {
        let what = format!("{policy} {capacity}");
        let mut observer = |progress| match progress {
            Progress::Replaying { chunks, .. } => self.report(&what, done + chunks, Some(of)),
            _ => ControlFlow::Continue(()),
        };
        let outcome = match moving {
            Some(moving) => replay_bytes(trace, policy, capacity, moving, &mut observer),
            None => kvferry_sim::replay(trace, policy, capacity, &mut observer),
        };
        outcome.map_err(|error| self.replay_error(error))
    }

    fn trace_error(&mut self, error: TraceError) -> PyErr {
        match &error {
            TraceError::Interrupted => self.interruption(),
            TraceError::Open { source, .. } => os_error(source, &error),
            TraceError::Line {
                fault: Fault::Read(source),
                ..
            } if source.raw_os_error().is_some() => os_error(source, &error),
            _ => value_error(error),
        }
    }

    fn replay_error(&mut self, error: ReplayError) -> PyErr {
        match error {
            ReplayError::Interrupted => self.interruption(),
            ReplayError::Pools(_) => PyMemoryError::new_err(error.to_string()),
            ReplayError::WrongByte { .. } => WrongByteError::new_err(error.to_string()),
            ReplayError::Engine(_) | ReplayError::Declined { .. } | ReplayError::Transfer(_) => {
                PyRuntimeError::new_err(error.to_string())
            }
            error => value_error(error),
        }
    }

    /// What was raised when the interpreter was asked.
    fn interruption(&mut self) -> PyErr {
        let raised = self.raised.take();
        raised.unwrap_or_else(|| PyRuntimeError::new_err("interrupted without an exception"))
    }
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The subclass of OSError that belongs to `source`, with the message of `error`.
fn os_error(source: &io::Error, error: &TraceError) -> PyErr {
    io::Error::new(source.kind(), error.to_string()).into()
}

fn to_dict<'py>(py: Python<'py>, row: &Row) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("schema", row.schema)?;
    dict.set_item("trace", &row.trace)?;
    dict.set_item("seed", row.seed)?;
    dict.set_item("chunk_tokens", row.chunk_tokens)?;
    dict.set_item("policy", row.policy)?;
    dict.set_item("capacity", &row.capacity)?;
    dict.set_item("capacity_chunks", row.capacity_chunks)?;
    dict.set_item("requests", row.requests)?;
    dict.set_item("chunks", row.chunks)?;
    dict.set_item("hit_chunks", row.hit_chunks)?;
    dict.set_item("hit_ratio", row.hit_ratio)?;
    dict.set_item("stored", row.stored)?;
    dict.set_item("evicted", row.evicted)?;
    dict.set_item("seconds", row.seconds)?;
    dict.set_item("ns_per_chunk", row.ns_per_chunk)?;
    dict.set_item(
        "moved",
        row.moved.as_ref().map(|m| moved(py, m)).transpose()?,
    )?;
    Ok(dict)
}

fn moved<'py>(py: Python<'py>, moved: &Moved) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("chunk_bytes", moved.chunk_bytes)?;
    dict.set_item("bytes_stored", moved.bytes_stored)?;
    dict.set_item("bytes_loaded", moved.bytes_loaded)?;
    dict.set_item("bytes_verified", moved.bytes_verified)?;
    dict.set_item("failed_stores", moved.failed_stores)?;
    dict.set_item("failed_loads", moved.failed_loads)?;
    dict.set_item("declined_stores", moved.declined_stores)?;
    dict.set_item("gb_per_second", moved.gb_per_second)?;
    Ok(dict)
}
