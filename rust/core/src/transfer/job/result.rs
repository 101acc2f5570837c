//! What becomes of a job, and why one is refused.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::transfer::backend::BackendError;
use crate::transfer::plan::{Direction, PlanError};

/// Identity of a job, chosen by whoever submits it and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "job {}", self.0)
    }
}

/// What keeps the memory of a job alive. It is dropped by whoever takes the job's result.
pub type Owner = Box<dyn Any + Send>;

/// Whether a job may overtake others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// After the jobs of its direction that came before.
    #[default]
    Ordinary,
    /// Before ordinary loads. For loads alone.
    Expedited,
}

/// Proof that a job has copied all its bytes: made by the engine alone, from a backend's success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferred {
    bytes: u64,
    time: Duration,
}

impl Transferred {
    pub(super) fn new(bytes: u64, time: Duration) -> Self {
        Self { bytes, time }
    }

    /// Bytes copied.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Seconds from the submit until the end was noticed.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }
}

/// How a job ended.
#[must_use = "a job that failed has not copied its bytes"]
pub struct JobResult {
    /// The job.
    pub job: JobId,
    /// Its direction.
    pub direction: Direction,
    /// What became of it.
    pub outcome: Result<Transferred, JobError>,
    /// What was kept alive for it. None if there was none, or if it must never be dropped.
    pub owner: Option<Owner>,
}

impl fmt::Debug for JobResult {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JobResult")
            .field("job", &self.job)
            .field("direction", &self.direction)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

/// Why a job failed. What it was to write holds anything.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JobError {
    /// The backend failed; nothing uses the job's memory any more.
    #[error(transparent)]
    Backend(BackendError),
    /// The backend failed, and whether it still uses the job's memory cannot be found out. Its
    /// slots and blocks are never used again.
    #[error("{0}, and its memory may still be in use")]
    Quarantined(BackendError),
    /// The job was withdrawn before it was started.
    #[error("cancelled")]
    Cancelled,
}

/// What a conflict is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A slot of the host tier.
    Slot(u64),
    /// A block, of a class of groups that share blocks.
    Block {
        /// The class: see [`KvLayout::block_class`](crate::transfer::KvLayout::block_class).
        class: usize,
        /// The block.
        block: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(formatter, "slots: slot {slot}"),
            Self::Block { block, .. } => write!(formatter, "block_ids: block {block}"),
        }
    }
}

/// Why a job was not taken. Nothing has changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// It cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// As many jobs as fit have not been collected.
    #[error("{capacity} jobs are in flight or were not collected")]
    Full {
        /// How many fit.
        capacity: usize,
    },
    /// A job in flight uses what this one needs.
    #[error("{place} is in use by {with}")]
    Conflict {
        /// One such job.
        with: JobId,
        /// What they share.
        place: Place,
    },
    /// A job that failed left memory that must not be used any more.
    #[error("{0} was left in use by a job that failed")]
    Poisoned(Place),
    /// A job of this id is in flight or was not collected.
    #[error("{0} is in flight or was not collected")]
    Duplicate(JobId),
    /// A store cannot be expedited.
    #[error("a store cannot be expedited")]
    ExpeditedStore,
    /// The backend failed before the job was taken.
    #[error(transparent)]
    Backend(BackendError),
    /// The engine was shut down.
    #[error("the job engine was shut down")]
    Closed,
    /// This process was forked from the one that the engine works in.
    #[error("this process was forked from the one of the job engine")]
    Forked,
}
