//! Forks, as far as they can be tried without one: the id of the process is what the test says.

use std::cell::Cell;
use std::sync::mpsc;

use super::*;
use crate::transfer::backend::{EnqueueError, Progress};
use crate::transfer::layout::{DeviceTensor, GroupTensor, HostSlots};
use crate::transfer::plan::Plan;

thread_local!(static PROCESS: Cell<u32> = const { Cell::new(PARENT) });

const PARENT: u32 = 7;
const CHILD: u32 = 8;

/// Longer than any of these tests takes, unless it hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A backend whose jobs never end.
#[derive(Debug)]
struct Endless<const BLOCKING: bool>;

impl<const BLOCKING: bool> TransferBackend for Endless<BLOCKING> {
    type Stream = ();
    type Fence = ();
    type Running = ();

    const ENQUEUE_MAY_BLOCK: bool = BLOCKING;

    fn attach(&self, _: &KvLayout) -> Result<(), BackendError> {
        Ok(())
    }

    fn fence(&self, (): ()) -> Result<(), BackendError> {
        assert_eq!(PROCESS.get(), PARENT, "asked in the child");
        Ok(())
    }

    fn enqueue(&self, _: Lane, (): (), _: Plan, _: &Waker) -> Result<(), EnqueueError<()>> {
        Ok(())
    }

    fn poll(&self, (): &mut ()) -> Progress {
        assert_eq!(PROCESS.get(), PARENT, "asked in the child");
        Progress::Pending
    }

    fn quiesce(&self, (): &mut ()) -> Progress {
        Progress::Pending
    }
}

fn engine<const BLOCKING: bool>() -> JobEngine<Endless<BLOCKING>> {
    let tensor = DeviceTensor {
        address: 1 << 40,
        block_stride: 64,
        page_bytes: 64,
        blocks: 4,
    };
    let groups = vec![vec![GroupTensor {
        tensor: 0,
        page_bytes: 64,
    }]];
    let host = HostSlots::slot_major(&groups, 1, 1 << 30, 4, 64).expect("small");
    let layout = KvLayout::new(vec![tensor], groups, 1, host).expect("lies apart");
    let process = Process::with(|| PROCESS.get());
    JobEngine::in_process(process, Endless, layout, JobOptions::default()).expect("attaches")
}

fn submit<const BLOCKING: bool>(
    engine: &JobEngine<Endless<BLOCKING>>,
    job: u64,
) -> Result<(), SubmitError> {
    let place = [job.cast_signed()];
    let transfer = Transfer {
        direction: Direction::Load,
        block_ids: &place,
        group_sizes: &[1],
        block_indices: &[0],
        slots: &place,
    };
    engine.submit(JobId(job), &transfer, (), Priority::Ordinary, None)
}

/// Runs a test that must not hang, on a thread with a process id of its own.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let runs = std::thread::spawn(move || {
        test();
        done.send(()).ok();
    });
    match ended.recv_timeout(HANGS) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        _ => runs.join().expect("the test holds"),
    }
}

#[test]
fn in_the_child_of_a_fork_every_call_answers_at_once() {
    fn check<const BLOCKING: bool>() {
        let engine = engine::<BLOCKING>();
        submit(&engine, 0).unwrap();
        let shared = Arc::clone(engine.shared());
        // As where another thread of the parent was in a call: nobody gives the lock back.
        let _state = shared.state.lock().unwrap();
        PROCESS.set(CHILD);
        assert!(matches!(submit(&engine, 1), Err(SubmitError::Forked)));
        assert!(engine.poll_finished().is_empty());
        assert!(engine.wait(&[JobId(0)], None));
        assert!(engine.drain(None));
        assert!(!engine.cancel(JobId(0)));
        assert_eq!(engine.stats(), JobStats::default());
        assert!(!engine.is_idle_slot(1));
        assert!(!engine.is_idle_block(0, 1));
        engine.shutdown();
        let owners = Arc::strong_count(&shared);
        drop(engine);
        assert_eq!(Arc::strong_count(&shared), owners, "it is leaked");
    }
    in_time(check::<false>);
    in_time(check::<true>);
}

#[test]
fn an_engine_belongs_to_the_process_that_uses_it_first() {
    in_time(|| {
        let engine = engine::<false>();
        PROCESS.set(CHILD);
        assert_eq!(engine.stats().submitted, 0);
        PROCESS.set(PARENT);
        assert!(matches!(submit(&engine, 0), Err(SubmitError::Forked)));
    });
}

#[test]
fn an_engine_that_nobody_used_is_shut_down_by_whoever_drops_it() {
    in_time(|| {
        let engine = engine::<true>();
        let shared = Arc::downgrade(engine.shared());
        PROCESS.set(CHILD);
        drop(engine);
        assert_eq!(shared.strong_count(), 0);
    });
}
