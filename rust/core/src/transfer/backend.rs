//! What the job engine asks of whoever moves the bytes.

use std::error::Error;
use std::time::Duration;

use thiserror::Error;

use super::layout::KvLayout;
use super::plan::Plan;
use super::waker::Waker;

/// Moves the bytes of jobs: a copy engine, threads, or a fault that a test asks for.
///
/// The job engine calls [`fence`](Self::fence) on the thread that submits, and the other functions
/// under its own lock, in the order of submission within a lane (without the lock where
/// [`ENQUEUE_MAY_BLOCK`](Self::ENQUEUE_MAY_BLOCK) says so, and then from one thread). It keeps the memory of
/// a job untouched and alive from `enqueue` until `poll` or `quiesce` says that the job has ended.
pub trait TransferBackend: Send + Sync + 'static {
    /// Names the compute stream whose earlier work a job waits for. Not optional: a backend
    /// without streams has a type of its own for "none".
    type Stream: Copy + Send;
    /// A point in a compute stream: what was enqueued before it.
    type Fence: Send;
    /// A job that the backend works on.
    type Running: Send;

    /// Whether `enqueue` may wait for a device. The engine then calls it from a thread of its own.
    const ENQUEUE_MAY_BLOCK: bool;

    /// Takes note of the layout whose plans will come, once, before the first job.
    ///
    /// # Errors
    ///
    /// If the backend cannot reach all memory of the layout.
    fn attach(&self, layout: &KvLayout) -> Result<(), BackendError>;

    /// Marks the work that was enqueued on `stream` until now.
    ///
    /// # Errors
    ///
    /// If the stream is invalid or cannot be waited for.
    fn fence(&self, stream: Self::Stream) -> Result<Self::Fence, BackendError>;

    /// Starts the copies of a plan, to run after `fence`. `waker` is to be woken when the job has
    /// ended, if the backend can tell; else [`poll_interval`](Self::poll_interval) says how often to ask.
    ///
    /// # Errors
    ///
    /// Says whether any copy may already be under way.
    fn enqueue(
        &self,
        lane: Lane,
        fence: Self::Fence,
        plan: Plan,
        waker: &Waker,
    ) -> Result<Self::Running, EnqueueError<Self::Running>>;

    /// Asks whether a job has ended. Never blocks.
    fn poll(&self, running: &mut Self::Running) -> Progress;

    /// Asks whether a job that failed after its start still touches its memory. Never blocks.
    ///
    /// `Progress::Failed` means that this can no longer be found out.
    fn quiesce(&self, running: &mut Self::Running) -> Progress;

    /// How often to ask, for a backend that wakes nobody.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }
}

/// Where a job stands in the order of jobs: those of one lane complete in the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Stores.
    Store,
    /// Loads.
    Load,
    /// Loads that may overtake those of [`Lane::Load`].
    Expedited,
}

/// What a backend answers about a job.
#[derive(Debug)]
#[must_use]
pub enum Progress {
    /// It goes on.
    Pending,
    /// It ended, and all its bytes are where they belong.
    Done,
    /// It failed. Other copies of it may still run: see [`TransferBackend::quiesce`].
    Failed(BackendError),
}

/// A fault of a backend.
#[derive(Debug, Error)]
#[error("{call}: {source}")]
pub struct BackendError {
    /// What was tried.
    pub call: &'static str,
    /// What came of it.
    pub source: Box<dyn Error + Send + Sync>,
}

/// Why a job was not started, or not in full.
#[derive(Debug, Error)]
pub enum EnqueueError<R> {
    /// No copy of it was started.
    #[error(transparent)]
    NotStarted(BackendError),
    /// Some copies may be under way.
    #[error("{error}")]
    Started {
        /// The fault.
        #[source]
        error: BackendError,
        /// What is under way.
        running: R,
    },
}
