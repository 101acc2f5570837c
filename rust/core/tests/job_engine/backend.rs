//! A backend whose jobs end when the test says so, and fail where it says so.
//!
//! It keeps a shadow of the memory: which page is read or written by copies that run. Two jobs that
//! meet there, and a job that is asked for after it has ended, are violations.

use std::collections::{BTreeSet, HashMap};
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use kvferry::transfer::{
    BackendError, Direction, EnqueueError, KvLayout, Lane, Plan, Progress, TransferBackend, Waker,
};

use crate::script::{Call, Notify, Script, Start};
use crate::world::PAGE;

/// What a backend has seen of a job.
struct Seen {
    script: Script,
    waker: Option<Waker>,
    polled: usize,
    /// It failed, and is asked by `quiesce` now.
    failed: bool,
    /// Pages that its copies may touch, and whether they write them.
    touches: Vec<(u64, bool)>,
    ended: bool,
    /// Nobody can find out whether it ended.
    lost: bool,
}

#[derive(Default)]
struct State {
    next: Option<Script>,
    draw: Option<Box<dyn FnMut() -> Script + Send>>,
    jobs: HashMap<u64, Seen>,
    started: Vec<(Lane, u64)>,
    /// Jobs that `poll` or `quiesce` is to be asked about.
    asked: BTreeSet<u64>,
    /// Readers of a page, or -1 for a writer.
    pages: HashMap<u64, i64>,
    fences: usize,
    running: usize,
    /// The job in whose start the backend waits.
    held: Option<u64>,
    open: bool,
    /// No job runs any longer: see [`Release`].
    released: bool,
    dropped: bool,
    violations: Vec<String>,
}

/// The test's side of a backend.
pub(crate) struct Control {
    notify: Notify,
    attach: Call,
    state: Mutex<State>,
    changed: Condvar,
}

/// Ends all jobs when a test fails, whose engine would wait for them otherwise.
pub(crate) struct Release(pub(crate) Arc<Control>);

impl Drop for Release {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let mut state = self.0.lock();
        (state.released, state.open) = (true, true);
        let wakers: Vec<Waker> = state
            .jobs
            .values()
            .filter_map(|job| job.waker.clone())
            .collect();
        drop(state);
        self.0.changed.notify_all();
        wakers.iter().for_each(Waker::wake);
    }
}

/// Fences are counted.
pub(crate) struct Fence {
    job: u64,
    control: Arc<Control>,
}

/// What runs is counted.
pub(crate) struct Running {
    job: u64,
    control: Arc<Control>,
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.control.lock().fences -= 1;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.control.lock();
        state.running -= 1;
        if !state.seen(self.job).ended {
            let job = self.job;
            state.violations.push(format!("job {job} is forgotten"));
        }
    }
}

impl State {
    fn seen(&mut self, job: u64) -> &mut Seen {
        self.jobs.get_mut(&job).expect("it had a fence")
    }

    /// Copies begin to run.
    fn touch(&mut self, job: u64, plan: &Plan) {
        let mut touches = Vec::new();
        for range in plan.ranges() {
            assert!(range.bytes.is_multiple_of(PAGE), "whole pages");
            let written = range.destination(plan.direction());
            for (first, write) in [(range.source(plan.direction()), false), (written, true)] {
                let pages = (0..range.bytes / PAGE).map(|page| (first + page * PAGE, write));
                touches.extend(pages);
            }
        }
        for &(page, write) in &touches {
            let users = self.pages.entry(page).or_default();
            if *users < 0 || (write && *users > 0) {
                let violation = format!("job {job} meets another one at {page:#x}");
                self.violations.push(violation);
            }
            *users = if write { -1 } else { *users + 1 };
        }
        self.seen(job).touches = touches;
    }

    /// No copy of the job runs any more.
    fn end(&mut self, job: u64) {
        for (page, write) in std::mem::take(&mut self.seen(job).touches) {
            let users = self.pages.get_mut(&page).expect("it was touched");
            *users = if write { 0 } else { *users - 1 };
        }
        self.seen(job).ended = true;
        self.asked.remove(&job);
    }
}

/// Unwinds as a panic does, without its message on the screen.
fn panics() -> ! {
    resume_unwind(Box::new("a panic that the test asked for"))
}

fn error(call: &'static str) -> BackendError {
    BackendError {
        call,
        source: "a fault that the test asked for".into(),
    }
}

impl Control {
    pub(crate) fn new(notify: Notify, attach: Call) -> Arc<Self> {
        Arc::new(Self {
            notify,
            attach,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Also for drops while a test unwinds.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where the lives of jobs come from that [`next`](Self::next) does not set. Without, they
    /// are [`Script::SMOOTH`].
    pub(crate) fn draw(&self, draw: impl FnMut() -> Script + Send + 'static) {
        self.lock().draw = Some(Box::new(draw));
    }

    /// Sets the life of the next job.
    pub(crate) fn next(&self, script: Script) {
        self.lock().next = Some(script);
    }

    /// What `poll` or `quiesce` of a job waits for has come.
    pub(crate) fn finish(&self, job: u64) {
        let mut state = self.lock();
        let seen = state.seen(job);
        let pends = if seen.failed {
            &mut seen.script.quiesces
        } else {
            &mut seen.script.polls
        };
        *pends = Some(0);
        let waker = seen.waker.clone();
        drop(state);
        if let (Notify::Wakes, Some(waker)) = (self.notify, waker) {
            waker.wake();
        }
    }

    /// Ends the wait for one of the jobs that run, if there are any: `number` says which.
    pub(crate) fn finish_one(&self, number: usize) {
        let state = self.lock();
        let at = number.checked_rem(state.asked.len());
        let job = at.and_then(|at| state.asked.iter().nth(at).copied());
        drop(state);
        if let Some(job) = job {
            self.finish(job);
        }
    }

    /// Lets the job that is held, and later ones, go on.
    pub(crate) fn open(&self) {
        self.lock().open = true;
        self.changed.notify_all();
    }

    /// Waits until the backend waits in the start of a job.
    pub(crate) fn wait_until_held(&self) -> u64 {
        let mut state = self.lock();
        loop {
            match state.held {
                Some(job) => return job,
                None => state = self.changed.wait(state).expect("nothing panics"),
            }
        }
    }

    /// Whether copies of a job may run, as far as the backend has said.
    pub(crate) fn may_run(&self, job: u64) -> bool {
        let state = self.lock();
        state
            .jobs
            .get(&job)
            .is_some_and(|job| !job.touches.is_empty())
    }

    /// How often `poll` was called for a job.
    pub(crate) fn polled(&self, job: u64) -> usize {
        self.lock().seen(job).polled
    }

    pub(crate) fn violation(&self, violation: String) {
        self.lock().violations.push(violation);
    }

    /// The jobs that were enqueued and their lanes, in that order.
    pub(crate) fn started(&self) -> Vec<(Lane, u64)> {
        self.lock().started.clone()
    }

    /// Fences and running jobs that were not dropped.
    pub(crate) fn alive(&self) -> (usize, usize) {
        let state = self.lock();
        (state.fences, state.running)
    }

    pub(crate) fn backend_is_dropped(&self) -> bool {
        self.lock().dropped
    }

    /// Fails if the engine broke its promises.
    pub(crate) fn check(&self) {
        let state = self.lock();
        assert!(state.violations.is_empty(), "{:?}", state.violations);
    }
}

/// See the module.
pub(crate) struct FaultBackend<const BLOCKING: bool>(pub(crate) Arc<Control>);

impl<const BLOCKING: bool> Drop for FaultBackend<BLOCKING> {
    fn drop(&mut self) {
        self.0.lock().dropped = true;
    }
}

impl<const BLOCKING: bool> FaultBackend<BLOCKING> {
    /// Counts a question down. Returns what the answer is, once the job does not go on.
    fn ask(&self, job: u64, quiesce: bool) -> Option<Call> {
        let mut state = self.0.lock();
        let released = state.released;
        let seen = state.seen(job);
        let (pends, answer) = if quiesce {
            (&mut seen.script.quiesces, seen.script.quiesce)
        } else {
            seen.polled += 1;
            (&mut seen.script.polls, seen.script.poll)
        };
        let goes_on = *pends != Some(0) && !released;
        let counted = pends.is_some();
        *pends = pends.map(|pends| pends.saturating_sub(1));
        if seen.ended || seen.lost || seen.failed != quiesce {
            let violation = format!("job {job} is asked again, quiesce {quiesce}");
            state.violations.push(violation);
        }
        let waker = state.seen(job).waker.clone();
        drop(state);
        if goes_on {
            // The next question may have another answer.
            if let (Notify::Wakes, true, Some(waker)) = (self.0.notify, counted, waker) {
                waker.wake();
            }
            return None;
        }
        Some(answer)
    }
}

impl<const BLOCKING: bool> TransferBackend for FaultBackend<BLOCKING> {
    type Stream = u64;
    type Fence = Fence;
    type Running = Running;

    const ENQUEUE_MAY_BLOCK: bool = BLOCKING;

    fn attach(&self, _: &KvLayout) -> Result<(), BackendError> {
        match self.0.attach {
            Call::Works => Ok(()),
            Call::Fails => Err(error("attach")),
            Call::Panics => panics(),
        }
    }

    /// The stream is the id of the job, so that the test and the backend have one name for it.
    fn fence(&self, job: u64) -> Result<Fence, BackendError> {
        let mut state = self.0.lock();
        let drawn = state.draw.as_mut().map_or(Script::SMOOTH, |draw| draw());
        let script = state.next.take().unwrap_or(drawn);
        match script.fence {
            Call::Works => {}
            Call::Fails => return Err(error("fence")),
            Call::Panics => {
                drop(state);
                panics();
            }
        }
        state.fences += 1;
        let seen = Seen {
            script,
            waker: None,
            polled: 0,
            failed: false,
            touches: Vec::new(),
            ended: false,
            lost: false,
        };
        state.jobs.insert(job, seen);
        let control = Arc::clone(&self.0);
        Ok(Fence { job, control })
    }

    fn enqueue(
        &self,
        lane: Lane,
        fence: Fence,
        plan: Plan,
        waker: &Waker,
    ) -> Result<Running, EnqueueError<Running>> {
        let job = fence.job;
        let mut state = self.0.lock();
        state.started.push((lane, job));
        let of_store = lane == Lane::Store;
        if of_store != (plan.direction() == Direction::Store) {
            state.violations.push(format!("job {job} is in {lane:?}"));
        }
        if state.seen(job).script.held && !state.open {
            state.held = Some(job);
            self.0.changed.notify_all();
            let closed = |state: &mut State| !state.open;
            let opened = self.0.changed.wait_while(state, closed);
            state = opened.expect("nothing panics under the lock");
            state.held = None;
        }
        let start = state.seen(job).script.start;
        state.seen(job).waker = Some(waker.clone());
        if start == Start::NotStarted {
            state.seen(job).ended = true;
            return Err(EnqueueError::NotStarted(error("enqueue")));
        }
        state.touch(job, &plan);
        if start == Start::Panics {
            drop(state);
            panics();
        }
        state.running += 1;
        state.asked.insert(job);
        let running = Running {
            job,
            control: Arc::clone(&self.0),
        };
        if start == Start::Started {
            state.seen(job).failed = true;
            let error = error("enqueue");
            return Err(EnqueueError::Started { error, running });
        }
        Ok(running)
    }

    fn poll(&self, running: &mut Running) -> Progress {
        let Some(answer) = self.ask(running.job, false) else {
            return Progress::Pending;
        };
        let mut state = self.0.lock();
        state.seen(running.job).failed = answer != Call::Works;
        match answer {
            Call::Works => {
                state.end(running.job);
                Progress::Done
            }
            Call::Fails => Progress::Failed(error("poll")),
            Call::Panics => {
                drop(state);
                panics();
            }
        }
    }

    fn quiesce(&self, running: &mut Running) -> Progress {
        let Some(answer) = self.ask(running.job, true) else {
            return Progress::Pending;
        };
        let mut state = self.0.lock();
        if answer == Call::Works {
            state.end(running.job);
            return Progress::Done;
        }
        state.seen(running.job).lost = true;
        state.asked.remove(&running.job);
        drop(state);
        if answer == Call::Panics {
            panics();
        }
        Progress::Failed(error("quiesce"))
    }

    fn poll_interval(&self) -> Option<Duration> {
        match self.0.notify {
            Notify::IsAsked(interval) => Some(interval),
            Notify::Wakes | Notify::Never => None,
        }
    }
}
