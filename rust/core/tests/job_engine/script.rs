//! What is to become of a job, and how the engine hears of it.

use std::time::Duration;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Works,
    Fails,
    Panics,
}

/// What becomes of the start of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Works,
    /// Nothing runs.
    NotStarted,
    /// Copies run.
    Started,
    /// Copies run, and nobody can ask for them.
    Panics,
}

/// The life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) fence: Call,
    /// Whether `enqueue` waits for the test.
    pub(crate) held: bool,
    pub(crate) start: Start,
    /// How often `poll` says that the job goes on. Without a number, until the test says so.
    pub(crate) polls: Option<usize>,
    pub(crate) poll: Call,
    /// As `polls`, for `quiesce`.
    pub(crate) quiesces: Option<usize>,
    pub(crate) quiesce: Call,
}

impl Script {
    /// Copies that end at once.
    pub(crate) const SMOOTH: Self = Self {
        fence: Call::Works,
        held: false,
        start: Start::Works,
        polls: Some(0),
        poll: Call::Works,
        quiesces: Some(0),
        quiesce: Call::Works,
    };
    /// Copies that end when the test says so.
    pub(crate) const MANUAL: Self = Self {
        polls: None,
        quiesces: None,
        ..Self::SMOOTH
    };
}

/// How a backend lets the engine know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    Wakes,
    IsAsked(Duration),
    /// A broken one, which has the engine depend on others.
    Never,
}
