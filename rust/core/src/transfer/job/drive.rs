//! The calls to a backend, whose panics are faults of a job; and the thread that makes them for a
//! backend that may block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;

use thiserror::Error;

use super::state::Start;
use super::{JobEngine, Shared};
use crate::transfer::backend::{BackendError, EnqueueError, Lane, Progress, TransferBackend};
use crate::transfer::waker::Waker;

/// A backend panicked.
#[derive(Debug, Error)]
#[error("the backend panicked")]
struct Panicked;

fn panicked(call: &'static str) -> BackendError {
    BackendError {
        call,
        source: Box::new(Panicked),
    }
}

/// What came of starting a job.
#[derive(Debug)]
pub(super) enum Started<R> {
    Running(R),
    /// Nothing was started.
    Not(BackendError),
    /// Some of it may run.
    Failed(BackendError, R),
    /// Some of it may run, and nobody can tell.
    Lost(BackendError),
}

pub(super) fn fence<B: TransferBackend>(
    backend: &B,
    stream: B::Stream,
) -> Result<B::Fence, BackendError> {
    let fence = catch_unwind(AssertUnwindSafe(|| backend.fence(stream)));
    fence.unwrap_or_else(|_| Err(panicked("fence")))
}

pub(super) fn enqueue<B: TransferBackend>(
    backend: &B,
    lane: Lane,
    start: Start<B>,
    waker: &Waker,
) -> Started<B::Running> {
    let Start { fence, plan } = start;
    let started = catch_unwind(AssertUnwindSafe(|| {
        backend.enqueue(lane, fence, plan, waker)
    }));
    match started {
        Ok(Ok(running)) => Started::Running(running),
        Ok(Err(EnqueueError::NotStarted(error))) => Started::Not(error),
        Ok(Err(EnqueueError::Started { error, running })) => Started::Failed(error, running),
        Err(_) => Started::Lost(panicked("enqueue")),
    }
}

pub(super) fn poll<B: TransferBackend>(backend: &B, running: &mut B::Running) -> Progress {
    let progress = catch_unwind(AssertUnwindSafe(|| backend.poll(running)));
    progress.unwrap_or_else(|_| Progress::Failed(panicked("poll")))
}

pub(super) fn quiesce<B: TransferBackend>(backend: &B, running: &mut B::Running) -> Progress {
    let progress = catch_unwind(AssertUnwindSafe(|| backend.quiesce(running)));
    progress.unwrap_or_else(|_| Progress::Failed(panicked("quiesce")))
}

impl<B: TransferBackend> JobEngine<B> {
    /// Starts the thread that a backend which may block needs, unless it runs.
    pub(super) fn start_thread(&self) -> Result<(), BackendError> {
        if !B::ENQUEUE_MAY_BLOCK {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(self.shared());
            let builder = thread::Builder::new().name("kvferry-jobs".to_owned());
            let started = builder.spawn(move || drive(&shared));
            *thread = Some(started.map_err(|error| BackendError {
                call: "thread",
                source: Box::new(error),
            })?);
        }
        Ok(())
    }
}

/// Starts jobs and looks for those that have ended, until the engine is closed and idle.
fn drive<B: TransferBackend>(shared: &Shared<B>) {
    loop {
        let seen = shared.waker.seen();
        let mut state = shared.lock();
        let ended = state.reap(&shared.backend);
        let starting = state.next_to_start();
        let (closed, idle) = (state.is_closed(), state.is_idle());
        drop(state);
        if ended {
            shared.waker.wake();
        }
        if let Some(starting) = starting {
            let (lane, job) = (starting.lane, starting.job);
            let started = enqueue(&shared.backend, lane, starting.start, &shared.waker);
            shared.lock().started(lane, job, started);
        } else if closed && idle {
            return;
        } else if !ended {
            let poll = shared.backend.poll_interval().filter(|_| !idle);
            shared.waker.wait(seen, poll);
        }
    }
}
