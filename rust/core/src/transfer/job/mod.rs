//! Jobs, from their submit to their result.
//!
//! 1. A job that was taken has exactly one result, whatever fails, and gives back exactly once what
//!    it used.
//! 2. Jobs of one lane end in the order of their submits. One that failed while its copies may still
//!    run stands aside until they are over, and holds up nobody.
//! 3. The locked state is never held while a job is planned, nor while a backend may block.
//! 4. In the child of a fork nothing is locked, called or freed.
//!
//! A submit checks, plans and records the fence on the caller's thread. A backend whose `enqueue`
//! never blocks is started there as well, and no thread of the engine's exists: whoever polls or waits
//! finds out what has ended. Otherwise a thread of the engine's starts jobs and looks for their ends.

mod drive;
mod result;
mod state;

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use result::{JobError, JobId, JobResult, Owner, Place, Priority, SubmitError, Transferred};
use state::{NewJob, State};

use super::backend::{BackendError, Lane, TransferBackend};
use super::conflict::{Unit, Uses};
use super::layout::KvLayout;
use super::plan::{Direction, Transfer};
use super::waker::Waker;

/// How many jobs an engine takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobOptions {
    /// Jobs that are in flight or were not collected.
    pub capacity: usize,
    /// Jobs of one lane that the backend works on at once; the others wait, and can be cancelled.
    pub in_flight_per_lane: usize,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            capacity: 1024,
            in_flight_per_lane: usize::MAX,
        }
    }
}

/// Counters, and how things stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStats {
    /// Jobs that were taken.
    pub submitted: u64,
    /// Jobs that ended in success.
    pub succeeded: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that were withdrawn before they were started.
    pub cancelled: u64,
    /// Jobs that wait to be started.
    pub queued: u64,
    /// Jobs that were started and have not ended, those in quarantine included.
    pub in_flight: u64,
    /// Jobs that have ended and were not collected.
    pub uncollected: u64,
    /// Jobs that failed, and may still use their memory.
    pub quarantined: u64,
    /// Slots that are never used again.
    pub poisoned_slots: u64,
    /// Blocks that are never used again.
    pub poisoned_blocks: u64,
    /// Bytes that successful stores copied.
    pub bytes_stored: u64,
    /// Bytes that successful loads copied.
    pub bytes_loaded: u64,
}

/// See the module. Every call works from any thread.
///
/// Dropped, it shuts down: it waits for the jobs in flight, and drops their owners.
#[derive(Debug)]
pub struct JobEngine<B: TransferBackend> {
    /// Taken by `drop` alone.
    shared: Option<Arc<Shared<B>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<B: TransferBackend> {
    backend: B,
    layout: KvLayout,
    capacity: usize,
    state: Mutex<State<B>>,
    waker: Waker,
    /// The process of the first submit.
    process: OnceLock<u32>,
}

impl<B: TransferBackend> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        // A panic of a backend is caught; another one leaves the state as whole as it was.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_forked(&self) -> bool {
        self.process
            .get()
            .is_some_and(|&first| first != process::id())
    }

    /// Looks for jobs that have ended, and starts others where that cannot block.
    fn advance(&self, state: &mut State<B>) {
        state.reap(&self.backend);
        if !B::ENQUEUE_MAY_BLOCK {
            while let Some(starting) = state.next_to_start() {
                let (lane, job) = (starting.lane, starting.job);
                let started = drive::enqueue(&self.backend, lane, starting.start, &self.waker);
                state.started(lane, job, started);
                state.reap(&self.backend);
            }
        }
    }
}

impl<B: TransferBackend> JobEngine<B> {
    /// An engine over a backend.
    ///
    /// # Errors
    ///
    /// If the backend cannot reach all memory of the layout.
    pub fn new(backend: B, layout: KvLayout, options: JobOptions) -> Result<Self, BackendError> {
        backend.attach(&layout)?;
        let shared = Shared {
            state: Mutex::new(State::new(&layout, options.in_flight_per_lane.max(1))),
            backend,
            layout,
            capacity: options.capacity,
            waker: Waker::default(),
            process: OnceLock::new(),
        };
        Ok(Self {
            shared: Some(Arc::new(shared)),
            thread: Mutex::new(None),
        })
    }

    fn shared(&self) -> &Arc<Shared<B>> {
        self.shared.as_ref().expect("taken by drop alone")
    }

    /// The layout that jobs are planned by.
    #[must_use]
    pub fn layout(&self) -> &KvLayout {
        &self.shared().layout
    }

    /// Submits a job, which waits for what was enqueued on `stream` so far. Never waits for a copy.
    ///
    /// Until the job has ended, its source must not be written and its destination not be touched;
    /// a job that would is refused.
    ///
    /// # Errors
    ///
    /// If the job is not taken; then nothing has changed. `owner` is dropped.
    pub fn submit(
        &self,
        job: JobId,
        transfer: &Transfer<'_>,
        stream: B::Stream,
        priority: Priority,
        owner: Option<Owner>,
    ) -> Result<(), SubmitError> {
        let shared = self.shared();
        if *shared.process.get_or_init(process::id) != process::id() {
            return Err(SubmitError::Forked);
        }
        let lane = match (transfer.direction, priority) {
            (Direction::Store, Priority::Ordinary) => Lane::Store,
            (Direction::Store, Priority::Expedited) => return Err(SubmitError::ExpeditedStore),
            (Direction::Load, Priority::Ordinary) => Lane::Load,
            (Direction::Load, Priority::Expedited) => Lane::Expedited,
        };
        shared.lock().check(job, shared.capacity)?;
        let submitted = Instant::now();
        let plan = shared.layout.plan(transfer)?;
        let uses = Uses::of(transfer, &shared.layout);
        let fence = drive::fence(&shared.backend, stream).map_err(SubmitError::Backend)?;
        self.start_thread().map_err(SubmitError::Backend)?;
        let mut state = shared.lock();
        // Another thread may have been here since.
        state.check(job, shared.capacity)?;
        state.reap(&shared.backend);
        state.take(&uses, &shared.layout)?;
        state.push(NewJob {
            job,
            lane,
            uses,
            submitted,
            plan,
            fence,
            owner,
        });
        shared.advance(&mut state);
        drop(state);
        if B::ENQUEUE_MAY_BLOCK {
            shared.waker.wake();
        }
        Ok(())
    }

    /// The jobs that have ended since the last call, each once.
    pub fn poll_finished(&self) -> Vec<JobResult> {
        let shared = self.shared();
        if shared.is_forked() {
            return Vec::new();
        }
        let mut state = shared.lock();
        shared.advance(&mut state);
        let ended = state.collect();
        drop(state);
        if !ended.is_empty() {
            shared.waker.wake();
        }
        ended
    }

    /// Waits until the jobs have ended; they need not be collected. Ids of no job are ignored.
    /// Returns false if time ran out first.
    pub fn wait(&self, jobs: &[JobId], timeout: Option<Duration>) -> bool {
        let mut first = 0;
        self.wait_until(timeout, |state| {
            // Those before it have ended, and a job ends once.
            while jobs.get(first).is_some_and(|&job| !state.is_under_way(job)) {
                first += 1;
            }
            first == jobs.len()
        })
    }

    /// Waits until every job has ended. Returns false if time ran out first.
    pub fn drain(&self, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |state| state.is_idle())
    }

    fn wait_until(
        &self,
        timeout: Option<Duration>,
        mut reached: impl FnMut(&State<B>) -> bool,
    ) -> bool {
        let shared = self.shared();
        if shared.is_forked() {
            return true;
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            // Before the look, so that what happens after it is noticed.
            let seen = shared.waker.seen();
            let mut state = shared.lock();
            shared.advance(&mut state);
            if reached(&state) {
                return true;
            }
            drop(state);
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let poll = shared.backend.poll_interval();
            let nap = [left, poll].into_iter().flatten().min();
            shared.waker.wait(seen, nap);
        }
    }

    /// Withdraws a job that has not been started; its result says so. Returns whether there was one.
    pub fn cancel(&self, job: JobId) -> bool {
        let shared = self.shared();
        if shared.is_forked() {
            return false;
        }
        let cancelled = shared.lock().cancel(job);
        if cancelled {
            shared.waker.wake();
        }
        cancelled
    }

    /// Takes no more jobs, withdraws those that were not started, and waits for the others. Their
    /// results can still be collected. A second call does nothing.
    pub fn shutdown(&self) {
        let shared = self.shared();
        if shared.is_forked() {
            return;
        }
        shared.lock().close();
        shared.waker.wake();
        self.drain(None);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // It has no panic of its own to tell: a backend's is caught.
            thread.join().ok();
        }
    }

    /// Counters, and how things stand.
    #[must_use]
    pub fn stats(&self) -> JobStats {
        let shared = self.shared();
        if shared.is_forked() {
            return JobStats::default();
        }
        let mut state = shared.lock();
        shared.advance(&mut state);
        state.stats()
    }

    /// Whether no job in flight uses the slot, and it may be used. False for a slot that is not there.
    #[must_use]
    pub fn is_idle_slot(&self, slot: u64) -> bool {
        self.is_free(Unit::Slot(slot))
    }

    /// Whether no job in flight uses the block, and it may be used. False for a block that is not
    /// there.
    #[must_use]
    pub fn is_idle_block(&self, class: usize, block: u64) -> bool {
        let layout = self.layout();
        match layout.block_classes().get(class) {
            Some(&blocks) if block < blocks => {
                self.is_free(Unit::Block(layout.first_unit_of_class(class) + block))
            }
            _ => false,
        }
    }

    fn is_free(&self, unit: Unit) -> bool {
        let shared = self.shared();
        if shared.is_forked() {
            return false;
        }
        let mut state = shared.lock();
        shared.advance(&mut state);
        state.is_free(unit)
    }
}

impl<B: TransferBackend> Drop for JobEngine<B> {
    fn drop(&mut self) {
        if self.shared().is_forked() {
            // The threads that would end its jobs are not here, and a lock may be held by one.
            let _leaked = std::mem::ManuallyDrop::new(self.shared.take());
            let thread = self
                .thread
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let _leaked = std::mem::ManuallyDrop::new(thread);
            return;
        }
        self.shutdown();
    }
}
