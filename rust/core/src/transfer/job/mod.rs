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
mod process;
mod result;
mod state;

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use process::Process;
pub use result::{JobError, JobId, JobResult, Owner, Place, Priority, SubmitError, Transferred};
use state::{NewJob, Starting, State};

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
/// Dropped, it shuts down: it waits for the jobs in flight, and drops their owners. The backend of an
/// engine with memory that must never be used again is leaked: it may own that memory.
#[derive(Debug)]
pub struct JobEngine<B: TransferBackend> {
    /// Taken by `drop` alone.
    shared: Option<Arc<Shared<B>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared<B: TransferBackend> {
    backend: B,
    poll_interval: Option<Duration>,
    layout: KvLayout,
    capacity: usize,
    state: Mutex<State<B>>,
    waker: Waker,
    process: Process,
}

impl<B: TransferBackend> Shared<B> {
    /// Changes the state, or looks at it; and wakes whoever waits for a job that ended meanwhile,
    /// whatever ended it.
    fn with<R>(&self, change: impl FnOnce(&mut State<B>) -> R) -> R {
        // A panic of a backend is caught; another one leaves the state as whole as it was.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.ends();
        let result = change(&mut state);
        let ended = state.ends() != before;
        drop(state);
        if ended {
            self.waker.wake();
        }
        result
    }

    /// As `with`, after a look for jobs that have ended, and for others that can be started.
    fn up_to_date<R>(&self, change: impl FnOnce(&mut State<B>) -> R) -> R {
        self.with(|state| {
            self.advance(state);
            change(state)
        })
    }

    /// Looks for jobs that have ended, and starts others where that cannot block.
    fn advance(&self, state: &mut State<B>) {
        state.reap(&self.backend);
        if !B::ENQUEUE_MAY_BLOCK {
            while let Some(starting) = state.next_to_start() {
                let Starting { lane, job, start } = starting;
                let started = drive::enqueue(&self.backend, lane, start, &self.waker);
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
        Self::in_process(Process::new(), backend, layout, options)
    }

    fn in_process(
        process: Process,
        backend: B,
        layout: KvLayout,
        options: JobOptions,
    ) -> Result<Self, BackendError> {
        let poll_interval = drive::attach(&backend, &layout)?;
        let shared = Shared {
            state: Mutex::new(State::new(&layout, options.in_flight_per_lane.max(1))),
            backend,
            poll_interval,
            layout,
            capacity: options.capacity,
            waker: Waker::default(),
            process,
        };
        Ok(Self {
            shared: Some(Arc::new(shared)),
            thread: Mutex::new(None),
        })
    }

    fn shared(&self) -> &Arc<Shared<B>> {
        self.shared.as_ref().expect("taken by drop alone")
    }

    /// What the calls share, unless this is the child of a fork.
    fn unforked(&self) -> Option<&Arc<Shared<B>>> {
        Some(self.shared()).filter(|shared| !shared.process.is_forked())
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
        let shared = self.unforked().ok_or(SubmitError::Forked)?;
        let lane = match (transfer.direction, priority) {
            (Direction::Store, Priority::Ordinary) => Lane::Store,
            (Direction::Store, Priority::Expedited) => return Err(SubmitError::ExpeditedStore),
            (Direction::Load, Priority::Ordinary) => Lane::Load,
            (Direction::Load, Priority::Expedited) => Lane::Expedited,
        };
        shared.with(|state| state.check(job, shared.capacity))?;
        let submitted = Instant::now();
        let plan = shared.layout.plan(transfer)?;
        let uses = Uses::of(transfer, &shared.layout);
        let fence = drive::fence(&shared.backend, stream).map_err(SubmitError::Backend)?;
        self.start_thread().map_err(SubmitError::Backend)?;
        // What is refused is dropped here, without the lock: an owner may call the engine.
        let mut new = Some(NewJob {
            job,
            lane,
            uses,
            submitted,
            plan,
            fence,
            owner,
        });
        shared.with(|state| {
            // Another thread may have been here since.
            state.check(job, shared.capacity)?;
            shared.advance(state);
            let uses = &new.as_ref().expect("nobody took it").uses;
            state.take(uses, &shared.layout)?;
            state.push(new.take().expect("nobody took it"));
            shared.advance(state);
            Ok::<_, SubmitError>(())
        })?;
        if B::ENQUEUE_MAY_BLOCK {
            shared.waker.wake();
        }
        Ok(())
    }

    /// The jobs that have ended since the last call, each once.
    pub fn poll_finished(&self) -> Vec<JobResult> {
        self.unforked()
            .map(|shared| shared.up_to_date(State::collect))
            .unwrap_or_default()
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
        let Some(shared) = self.unforked() else {
            return true;
        };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            // Before the look, so that what happens after it is noticed.
            let seen = shared.waker.seen();
            if shared.up_to_date(|state| reached(state)) {
                return true;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let nap = [left, shared.poll_interval].into_iter().flatten().min();
            shared.waker.wait(seen, nap);
        }
    }

    /// Withdraws a job that has not been started; its result says so. Returns whether there was one.
    pub fn cancel(&self, job: JobId) -> bool {
        self.unforked()
            .is_some_and(|shared| shared.with(|state| state.cancel(job)))
    }

    /// Takes no more jobs, withdraws those that were not started, and waits for the others. Their
    /// results can still be collected. A second call does nothing.
    pub fn shutdown(&self) {
        let Some(shared) = self.unforked() else {
            return;
        };
        shared.with(State::close);
        // The engine's thread, which ends now if it has nothing to do.
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
        self.unforked()
            .map(|shared| shared.up_to_date(|state| state.stats()))
            .unwrap_or_default()
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
        self.unforked()
            .is_some_and(|shared| shared.up_to_date(|state| state.is_free(unit)))
    }

    /// How many threads sleep until a job ends, the engine's own included; without those that were
    /// woken and have not run since.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn debug_asleep(&self) -> usize {
        self.shared().waker.asleep()
    }
}

impl<B: TransferBackend> Drop for JobEngine<B> {
    fn drop(&mut self) {
        if self.unforked().is_none() {
            // The threads that would end its jobs are not here, and a lock may be held by one.
            let _leaked = ManuallyDrop::new(self.shared.take());
            let thread = self
                .thread
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let _leaked = ManuallyDrop::new(thread);
            return;
        }
        self.shutdown();
        let (results, poisoned) = self
            .shared()
            .with(|state| (state.collect(), state.is_poisoned()));
        drop(results);
        if poisoned {
            let _leaked = ManuallyDrop::new(self.shared.take());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
