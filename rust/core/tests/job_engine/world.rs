//! A layout, the transfers of the tests on it, and an engine with what it works on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use kvferry::transfer::{
    DeviceTensor, Direction, GroupTensor, HostSlots, JobEngine, JobError, JobId, JobOptions,
    JobResult, KvLayout, Priority, SubmitError, Transfer,
};

use crate::backend::{Control, FaultBackend, Release};
use crate::script::{Call, Notify, Script};

/// Bytes of a page: each block is one.
pub(crate) const PAGE: u64 = 512;

/// Blocks of each tensor, and slots.
pub(crate) const BLOCKS: u64 = 24;

/// Groups 0 and 2 share a tensor, and so the class of their blocks; group 1 has its own.
pub(crate) const GROUPS: usize = 3;

/// Longer than any of these tests takes, unless it hangs.
const HANGS: Duration = Duration::from_secs(60);

pub(crate) fn layout(blocks: u64) -> KvLayout {
    let tensor = |address| DeviceTensor {
        address,
        block_stride: PAGE,
        page_bytes: PAGE,
        blocks,
    };
    let uses = |tensor| {
        vec![GroupTensor {
            tensor,
            page_bytes: PAGE,
        }]
    };
    let groups = vec![uses(0), uses(1), uses(0)];
    let host = HostSlots::slot_major(&groups, 1, 1 << 30, blocks, PAGE);
    let host = host.expect("small numbers");
    let tensors = vec![tensor(1 << 40), tensor(1 << 41)];
    KvLayout::new(tensors, groups, 1, host).expect("lies apart")
}

/// What a job copies: blocks of each group, and as many slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) blocks: [Vec<i64>; GROUPS],
    pub(crate) slots: Vec<i64>,
}

impl Copies {
    /// Blocks of group 0.
    pub(crate) fn of(blocks: &[i64], slots: &[i64]) -> Self {
        Self {
            blocks: [blocks.to_vec(), Vec::new(), Vec::new()],
            slots: slots.to_vec(),
        }
    }

    /// One block and one slot of the same number.
    pub(crate) fn at(place: i64) -> Self {
        Self::of(&[place], &[place])
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.slots.len() as u64 * PAGE
    }

    pub(crate) fn with<R>(&self, direction: Direction, call: impl FnOnce(&Transfer<'_>) -> R) -> R {
        call(&Transfer {
            direction,
            block_ids: &self.blocks.concat(),
            group_sizes: &self.blocks.each_ref().map(Vec::len),
            block_indices: &[0; GROUPS],
            slots: &self.slots,
        })
    }
}

/// A direction and whether it is expedited.
pub(crate) type Way = (Direction, Priority);

pub(crate) const STORE: Way = (Direction::Store, Priority::Ordinary);
pub(crate) const LOAD: Way = (Direction::Load, Priority::Ordinary);
pub(crate) const EXPEDITED: Way = (Direction::Load, Priority::Expedited);

/// Keeps the memory of a job alive: counted, and not to be dropped while its copies may run.
pub(crate) struct Owner {
    job: u64,
    /// It is not of a job whose id another one has.
    first: bool,
    alive: Arc<AtomicUsize>,
    control: Arc<Control>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
        if self.first && self.control.may_run(self.job) {
            let violation = format!("the owner of job {} is dropped early", self.job);
            self.control.violation(violation);
        }
    }
}

/// An engine, its backend and its owners.
pub(crate) struct World<const BLOCKING: bool> {
    // Dropped first.
    _release: Release,
    pub(crate) engine: JobEngine<FaultBackend<BLOCKING>>,
    pub(crate) control: Arc<Control>,
    pub(crate) owners: Arc<AtomicUsize>,
}

pub(crate) fn options(capacity: usize, in_flight_per_lane: usize) -> JobOptions {
    let mut options = JobOptions::default();
    options.capacity = capacity;
    options.in_flight_per_lane = in_flight_per_lane;
    options
}

impl<const BLOCKING: bool> World<BLOCKING> {
    pub(crate) fn new(notify: Notify) -> Self {
        Self::with(notify, BLOCKS, JobOptions::default())
    }

    pub(crate) fn with(notify: Notify, blocks: u64, options: JobOptions) -> Self {
        let control = Control::new(notify, Call::Works);
        let backend = FaultBackend(Arc::clone(&control));
        Self {
            _release: Release(Arc::clone(&control)),
            engine: JobEngine::new(backend, layout(blocks), options).expect("attaches"),
            control,
            owners: Arc::default(),
        }
    }

    /// Submits a job whose life is `script`.
    pub(crate) fn submit(
        &self,
        job: u64,
        way: Way,
        copies: &Copies,
        script: Script,
    ) -> Result<(), SubmitError> {
        self.control.next(script);
        self.submit_drawn(job, way, copies)
    }

    /// As `submit`, of a job that must be taken.
    pub(crate) fn take(&self, job: u64, way: Way, copies: &Copies, script: Script) {
        let taken = self.submit(job, way, copies, script);
        taken.expect("nothing is in its way");
    }

    /// Submits a job whose life the backend draws.
    pub(crate) fn submit_drawn(
        &self,
        job: u64,
        (direction, priority): Way,
        copies: &Copies,
    ) -> Result<(), SubmitError> {
        self.owners.fetch_add(1, Ordering::SeqCst);
        let owner = Owner {
            job,
            first: !self.control.may_run(job),
            alive: Arc::clone(&self.owners),
            control: Arc::clone(&self.control),
        };
        copies.with(direction, |transfer| {
            let owner = Some(Box::new(owner) as _);
            let job_id = JobId(job);
            self.engine.submit(job_id, transfer, job, priority, owner)
        })
    }

    /// Collects until there are as many results.
    pub(crate) fn collect(&self, count: usize) -> Vec<JobResult> {
        let mut results = Vec::new();
        while results.len() < count {
            results.extend(self.engine.poll_finished());
            thread::yield_now();
        }
        results
    }

    /// Waits until so many threads sleep in the engine.
    pub(crate) fn wait_until_asleep(&self, threads: usize) {
        while self.engine.debug_asleep() != threads {
            thread::yield_now();
        }
    }

    pub(crate) fn owners(&self) -> usize {
        self.owners.load(Ordering::SeqCst)
    }
}

/// How a job ended, without the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failed,
    Quarantined,
    Cancelled,
}

pub(crate) fn end(result: &JobResult) -> End {
    match &result.outcome {
        Ok(_) => End::Success,
        Err(JobError::Backend(_)) => End::Failed,
        Err(JobError::Quarantined(_)) => End::Quarantined,
        Err(JobError::Cancelled) => End::Cancelled,
        Err(other) => panic!("{other}"),
    }
}

pub(crate) fn ids(results: &[JobResult]) -> Vec<u64> {
    results.iter().map(|result| result.job.0).collect()
}

/// Runs a test that must not hang, and fails where it does. `at` says how far it got.
pub(crate) fn within_time(at: &Arc<Mutex<String>>, test: impl FnOnce() + Send + 'static) {
    let (done, waits) = mpsc::channel();
    let runs = thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(test));
        done.send(()).ok();
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    });
    if waits.recv_timeout(HANGS).is_err() {
        panic!("hangs: {}", at.lock().expect("nothing panics"));
    }
    if let Err(panic) = runs.join() {
        panic!(
            "{}: {}",
            at.lock().expect("nothing panics"),
            panic
                .downcast_ref::<String>()
                .map_or("see above", String::as_str)
        );
    }
}

/// As [`within_time`], for a test of one step.
pub(crate) fn in_time(test: impl FnOnce() + Send + 'static) {
    within_time(&Arc::default(), test);
}
