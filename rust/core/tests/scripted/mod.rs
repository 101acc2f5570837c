//! A backend that does with each job what a test says, and an engine over it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvferry::transfer::{
    BackendError, DeviceTensor, Direction, EnqueueError, GroupTensor, HostSlots, JobEngine, JobId,
    JobOptions, KvLayout, Lane, Plan, Priority, Progress, SubmitError, Transfer, TransferBackend,
    Waker,
};

/// How long a test waits for what must come: far longer than it takes.
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(120));

/// Slots and blocks of every engine.
const PLACES: u64 = 16;

/// A direction, and whether the job is expedited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) direction: Direction,
    pub(crate) priority: Priority,
}

pub(crate) const STORE: Way = Way {
    direction: Direction::Store,
    priority: Priority::Ordinary,
};

pub(crate) const LOAD: Way = Way {
    direction: Direction::Load,
    priority: Priority::Ordinary,
};

/// What opens a job that is held.
pub(crate) type Gate = Arc<AtomicBool>;

/// What a backend does with one job. `pending` is how often its end is asked for in vain.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Succeeds,
    /// Runs until its gate is open.
    Held(Gate),
    FenceFails,
    FencePanics,
    NotStarted,
    EnqueuePanics,
    StartedAndFails {
        pending: u32,
    },
    PollFails {
        pending: u32,
    },
    PollPanics {
        pending: u32,
    },
    QuiesceFails,
    QuiescePanics,
}

/// `BLOCKS` says whether `enqueue` may block.
pub(crate) struct Scripted<const BLOCKS: bool> {
    /// Of the jobs whose fences come next. One test thread submits at a time, or all acts are set
    /// together with their submit.
    acts: Arc<Mutex<VecDeque<Act>>>,
    wakers: Arc<Mutex<Vec<Waker>>>,
}

pub(crate) struct Running {
    act: Act,
    asked: u32,
}

fn fault(call: &'static str) -> BackendError {
    BackendError {
        call,
        source: "a fault on purpose".into(),
    }
}

impl<const BLOCKS: bool> TransferBackend for Scripted<BLOCKS> {
    type Stream = ();
    type Fence = Act;
    type Running = Running;

    const ENQUEUE_MAY_BLOCK: bool = BLOCKS;

    fn attach(&self, _: &KvLayout) -> Result<(), BackendError> {
        Ok(())
    }

    fn fence(&self, (): ()) -> Result<Act, BackendError> {
        let act = self.acts.lock().expect("no test panicked").pop_front();
        match act.expect("an act for each submit") {
            Act::FenceFails => Err(fault("fence")),
            Act::FencePanics => panic!("a panic on purpose"),
            act => Ok(act),
        }
    }

    fn enqueue(
        &self,
        _: Lane,
        act: Act,
        _: Plan,
        waker: &Waker,
    ) -> Result<Running, EnqueueError<Running>> {
        self.wakers
            .lock()
            .expect("no test panicked")
            .push(waker.clone());
        let running = Running {
            act: act.clone(),
            asked: 0,
        };
        match act {
            Act::NotStarted => Err(EnqueueError::NotStarted(fault("enqueue"))),
            Act::EnqueuePanics => panic!("a panic on purpose"),
            Act::StartedAndFails { .. } => Err(EnqueueError::Started {
                error: fault("enqueue"),
                running,
            }),
            _ => Ok(running),
        }
    }

    fn poll(&self, running: &mut Running) -> Progress {
        match &running.act {
            Act::Held(gate) if !gate.load(Ordering::SeqCst) => Progress::Pending,
            Act::PollFails { .. } | Act::QuiesceFails | Act::QuiescePanics => {
                Progress::Failed(fault("poll"))
            }
            Act::PollPanics { .. } => panic!("a panic on purpose"),
            _ => Progress::Done,
        }
    }

    fn quiesce(&self, running: &mut Running) -> Progress {
        running.asked += 1;
        match running.act {
            Act::QuiesceFails => Progress::Failed(fault("quiesce")),
            Act::QuiescePanics => panic!("a panic on purpose"),
            Act::StartedAndFails { pending }
            | Act::PollFails { pending }
            | Act::PollPanics { pending }
                if running.asked <= pending =>
            {
                Progress::Pending
            }
            _ => Progress::Done,
        }
    }

    /// The backend tells nobody what it is asked for in vain.
    fn poll_interval(&self) -> Option<Duration> {
        Some(Duration::from_micros(100))
    }
}

/// Counts how many are alive.
struct Owner(Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn options(capacity: usize, in_flight_per_lane: usize) -> JobOptions {
    let mut options = JobOptions::default();
    options.capacity = capacity;
    options.in_flight_per_lane = in_flight_per_lane;
    options
}

/// An engine, what its backend is to do, and how many owners live.
pub(crate) struct Bench<const BLOCKS: bool> {
    pub(crate) engine: JobEngine<Scripted<BLOCKS>>,
    acts: Arc<Mutex<VecDeque<Act>>>,
    wakers: Arc<Mutex<Vec<Waker>>>,
    submitting: Mutex<()>,
    alive: Arc<AtomicUsize>,
}

impl<const BLOCKS: bool> Bench<BLOCKS> {
    pub(crate) fn new(options: JobOptions) -> Self {
        let groups = vec![vec![GroupTensor {
            tensor: 0,
            page_bytes: 8,
        }]];
        let tensor = DeviceTensor {
            address: 0x1000,
            block_stride: 8,
            page_bytes: 8,
            blocks: PLACES,
        };
        let host = HostSlots::slot_major(&groups, 1, 0x2000, PLACES, 8).expect("small numbers");
        let layout = KvLayout::new(vec![tensor], groups, 1, host).expect("lies apart");
        let (acts, wakers) = (Arc::default(), Arc::default());
        let backend = Scripted {
            acts: Arc::clone(&acts),
            wakers: Arc::clone(&wakers),
        };
        Self {
            engine: JobEngine::new(backend, layout, options).expect("attaches"),
            acts,
            wakers,
            submitting: Mutex::new(()),
            alive: Arc::default(),
        }
    }

    /// Submits a job over the slot and the block of one number.
    pub(crate) fn submit(
        &self,
        id: u64,
        way: Way,
        place: u64,
        act: Act,
    ) -> Result<(), SubmitError> {
        self.submit_at(id, way, place, place, act)
    }

    pub(crate) fn submit_at(
        &self,
        id: u64,
        way: Way,
        slot: u64,
        block: u64,
        act: Act,
    ) -> Result<(), SubmitError> {
        let transfer = Transfer {
            direction: way.direction,
            block_ids: &[block.cast_signed()],
            group_sizes: &[1],
            block_indices: &[0],
            slots: &[slot.cast_signed()],
        };
        self.alive.fetch_add(1, Ordering::SeqCst);
        let owner = Box::new(Owner(Arc::clone(&self.alive)));
        // An act and its submit belong together, whichever thread comes first.
        let submitting = self.submitting.lock().expect("no test panicked");
        self.acts.lock().expect("no test panicked").push_back(act);
        let outcome = self
            .engine
            .submit(JobId(id), &transfer, (), way.priority, Some(owner));
        // A job that was refused before its fence leaves its act.
        self.acts.lock().expect("no test panicked").clear();
        drop(submitting);
        outcome
    }

    pub(crate) fn gate(&self) -> Gate {
        Arc::default()
    }

    pub(crate) fn open(&self, gate: &Gate) {
        gate.store(true, Ordering::SeqCst);
        for waker in self.wakers.lock().expect("no test panicked").iter() {
            waker.wake();
        }
    }

    pub(crate) fn owners(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    /// Drops the engine, after which so many owners have to be alive.
    pub(crate) fn ends_with_owners(self, left: usize) {
        drop(self.engine);
        assert_eq!(self.alive.load(Ordering::SeqCst), left);
    }
}
