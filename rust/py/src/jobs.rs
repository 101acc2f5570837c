//! `JobEngine`: jobs between KV-cache tensors and a host tier.
//!
//! The interpreter's lock is released while a call waits, never for a submit: that is shorter than
//! getting the lock back. What a job reads is copied first, since numpy's loops write arrays without
//! the lock.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvferry::transfer::{
    Direction, JobEngine, JobId, JobOptions, JobResult, Priority, SubmitError, Transfer,
};
use kvferry_host::{HostBackend, HostStream};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments::{boolean, ids, integer, optional_integer};
use crate::errors::{submit_error, type_error, value_error};
use crate::job_results::{PyJobStats, PyTransferResult};
use crate::region::PyPinnedRegion;
use crate::tensors::{HostTier, Tensors};

/// How long a wait goes on before it looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Copies chunks between blocks of tensors and slots of a host tier, in jobs.
///
/// A job ends once, in success or with an error. Those of one direction complete in the order of
/// submission. Until a job has ended, nothing else may use its blocks and slots: a job that would is
/// refused. Every call works from any thread.
///
/// The addresses are the caller's word: `kvferry.CpuGpuOffloadingHandlers` takes them from tensors.
///
/// Args:
///     tensors: (address, block stride, page size, blocks) of each tensor; bytes.
///     groups: (tensor, page size) of each tensor that a KV-cache group uses, for each group.
///     blocks_per_chunk: blocks of a chunk.
///     slots: slots of the host tier, one chunk each.
///     owner: kept alive as long as this object; it keeps the tensors alive.
///     max_jobs: jobs that are in flight or have not been collected.
///     threads: threads that copy; by default, chosen by the number of CPUs.
///     region: where the slots lie; by default, in memory of their own.
///     rank: in whose area of the region.
///
/// Raises:
///     ValueError: The tensors, the groups or a number cannot be used; the message says which.
///     TypeError: An argument has the wrong type.
///     MemoryError: There is no memory for the host tier.
#[pyclass(frozen, module = "kvferry", name = "JobEngine")]
#[derive(Debug)]
pub(crate) struct PyJobEngine {
    /// Before the owner: it is dropped first, and waits for what is in flight.
    jobs: JobEngine<HostBackend>,
    /// Ended jobs that a poll for the other direction came upon.
    ended: Mutex<[VecDeque<JobResult>; 2]>,
    _owner: Py<PyAny>,
}

#[pymethods]
impl PyJobEngine {
    #[new]
    #[pyo3(signature = (tensors, groups, blocks_per_chunk, slots, *, owner, max_jobs=None, threads=None, region=None, rank=0))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the keyword arguments of a Python function"
    )]
    fn new(
        py: Python<'_>,
        tensors: &Bound<'_, PyAny>,
        groups: &Bound<'_, PyAny>,
        blocks_per_chunk: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        owner: Py<PyAny>,
        max_jobs: Option<&Bound<'_, PyAny>>,
        threads: Option<&Bound<'_, PyAny>>,
        region: Option<&Bound<'_, PyPinnedRegion>>,
        rank: usize,
    ) -> PyResult<Self> {
        let area = region.map(|region| (Arc::clone(&region.get().region), rank));
        let tensors = Tensors::extract(tensors, groups, blocks_per_chunk)?;
        let slots = integer("slots", slots)?;
        let threads = positive("threads", threads)?;
        let mut options = JobOptions::default();
        if let Some(max_jobs) = positive("max_jobs", max_jobs)? {
            options.capacity = max_jobs.get();
        }
        // A large tier takes long to allocate.
        let jobs = py.detach(move || {
            let HostTier { backend, layout } = tensors.with_host_tier(slots, threads, area)?;
            JobEngine::new(backend, layout, options).map_err(|error| value_error("tensors", error))
        })?;
        Ok(Self {
            jobs,
            ended: Mutex::default(),
            _owner: owner,
        })
    }

    /// Submits a job; never waits for a copy. False if `max_jobs` are under way: nothing was
    /// submitted.
    ///
    /// Blocks are listed group by group. `block_indices` says where the first block of each group
    /// stands in its request: so far into its first chunk does the job begin. Slots are listed
    /// group by group as well, one for each chunk that the blocks touch.
    ///
    /// `compute_stream` is the raw handle of the stream whose earlier work the job waits for, and
    /// ignored for tensors on the CPU.
    #[pyo3(signature = (direction, job_id, *, block_ids, group_sizes, block_indices, slots, compute_stream, expedited=None))]
    #[pyo3(
        text_signature = "($self, direction, job_id, *, block_ids, group_sizes, block_indices, slots, compute_stream, expedited=False)"
    )]
    #[expect(
        clippy::too_many_arguments,
        reason = "the keyword arguments of a Python function"
    )]
    fn submit(
        &self,
        direction: &Bound<'_, PyAny>,
        job_id: &Bound<'_, PyAny>,
        block_ids: &Bound<'_, PyAny>,
        group_sizes: &Bound<'_, PyAny>,
        block_indices: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        compute_stream: Option<&Bound<'_, PyAny>>,
        expedited: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let job = JobId(integer("job_id", job_id)?);
        let _: Option<u64> = optional_integer("compute_stream", compute_stream)?;
        let priority = match expedited {
            Some(expedited) if boolean("expedited", expedited)? => Priority::Expedited,
            _ => Priority::Ordinary,
        };
        let sizes: Vec<usize> = ids("group_sizes", group_sizes)?;
        let indices: Vec<u64> = ids("block_indices", block_indices)?;
        let transfer = Transfer {
            direction: direction_of(direction)?,
            block_ids: &ids("block_ids", block_ids)?,
            group_sizes: &sizes,
            block_indices: &indices,
            slots: &ids("slots", slots)?,
        };
        match self.jobs.submit(job, &transfer, HostStream, priority, None) {
            Ok(()) => Ok(true),
            Err(SubmitError::Full { .. }) => Ok(false),
            Err(error) => Err(submit_error(error)),
        }
    }

    /// The jobs of a direction that have ended since the last call, each once.
    fn poll_finished<'py>(&self, direction: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let py = direction.py();
        let direction = direction_of(direction)?;
        let results: Vec<JobResult> = {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            for result in self.jobs.poll_finished() {
                ended[place(result.direction)].push_back(result);
            }
            ended[place(direction)].drain(..).collect()
        };
        let results = results.into_iter().map(PyTransferResult::new);
        PyList::new(
            py,
            results
                .map(|it| Py::new(py, it))
                .collect::<PyResult<Vec<_>>>()?,
        )
    }

    /// Waits until the jobs have ended; ids of no job are ignored. False if `timeout`, in seconds,
    /// passed first.
    #[pyo3(signature = (job_ids, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        job_ids: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let mut jobs = Vec::new();
        for id in job_ids
            .try_iter()
            .map_err(|_| type_error("job_ids", "an iterable of int", job_ids))?
        {
            jobs.push(JobId(integer("job_ids", &id?)?));
        }
        patiently(py, seconds("timeout", timeout)?, |timeout| {
            self.jobs.wait(&jobs, Some(timeout))
        })
    }

    /// Withdraws a job that has not been started. False if there is none.
    fn cancel(&self, job_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.jobs.cancel(JobId(integer("job_id", job_id)?)))
    }

    /// Waits until no job is in flight. False if `timeout`, in seconds, passed first.
    #[pyo3(signature = (timeout=None))]
    fn drain(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        patiently(py, seconds("timeout", timeout)?, |timeout| {
            self.jobs.drain(Some(timeout))
        })
    }

    /// Takes no more jobs and waits for those in flight. Results can still be collected.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.jobs.shutdown());
    }

    /// Counters and gauges.
    fn stats(&self) -> PyJobStats {
        PyJobStats::new(self.jobs.stats())
    }
}

/// A number of one or more.
fn positive(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<NonZeroUsize>> {
    let number: Option<usize> = optional_integer(name, given)?;
    number
        .map(|number| NonZeroUsize::new(number).ok_or_else(|| value_error(name, "0 is too few")))
        .transpose()
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::Store => 0,
        Direction::Load => 1,
    }
}

fn direction_of(given: &Bound<'_, PyAny>) -> PyResult<Direction> {
    match given.extract::<&str>() {
        Ok("store") => Ok(Direction::Store),
        Ok("load") => Ok(Direction::Load),
        Ok(other) => Err(value_error(
            "direction",
            format!("{other:?} is neither 'store' nor 'load'"),
        )),
        Err(_) => Err(type_error("direction", "a str", given)),
    }
}

/// A number of seconds, zero or more; one too large to count is no limit.
fn seconds(name: &str, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    let Some(given) = given else {
        return Ok(None);
    };
    let number: f64 = given
        .extract()
        .map_err(|_| type_error(name, "a number of seconds", given))?;
    if number.is_nan() || number < 0.0 {
        return Err(value_error(name, format!("{number} is not a time to wait")));
    }
    Ok(Duration::try_from_secs_f64(number).ok())
}

/// Calls `wait` without the interpreter's lock until it answers true or time runs out, and lets the
/// handlers of signals run.
fn patiently(
    py: Python<'_>,
    timeout: Option<Duration>,
    wait: impl Fn(Duration) -> bool + Sync,
) -> PyResult<bool> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let slice = left.unwrap_or(SIGNAL_INTERVAL).min(SIGNAL_INTERVAL);
        if py.detach(|| wait(slice)) {
            return Ok(true);
        }
        py.check_signals()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(false);
        }
    }
}
