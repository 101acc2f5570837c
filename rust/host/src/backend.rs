//! The backend that copies with threads.

use std::process;
use std::sync::{Arc, OnceLock};

use kvferry::transfer::{
    BackendError, EnqueueError, KvLayout, Lane, LayoutId, Plan, Progress, TransferBackend, Waker,
};

use crate::copy::Copier;
use crate::error::HostError;
use crate::fault::{FaultMoment, Faults};
use crate::job::{How, Job};
use crate::memory::HostMemory;
use crate::options::{HostOptions, default_threads};
use crate::pool::Pool;

/// A job of at most this many bytes is copied at once, by the thread that submits it: as fast as
/// another thread could be woken.
pub const INLINE_BYTES: u64 = 128 << 10;

/// Bytes of a piece: what a thread copies before it looks for something else.
const LARGEST_PIECE: u64 = 1 << 20;
const SMALLEST_PIECE: u64 = 256 << 10;

/// Pieces for each thread, in a job that is large enough: the last ones even out what the threads
/// did not do at the same speed.
const PIECES_PER_THREAD: u64 = 8;

/// "No stream": what runs on the CPU is done when a call returns, so there is nothing to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostStream;

/// Copies between two areas of this process's memory, with threads: for engines that run on the
/// CPU, and the reference for other backends.
///
/// [`JobEngine`](kvferry::transfer::JobEngine) drives it. A small job is copied by the thread that
/// submits it; a larger one is cut into pieces, which the threads take one by one. Dropped with jobs
/// in flight, it waits for the pieces under way, and lets go of its memory after that.
///
/// In the child of a fork it refuses jobs, and is leaked when dropped.
#[derive(Debug)]
pub struct HostBackend {
    // Dropped before the memory: no thread copies after that.
    pool: Pool,
    memory: Option<HostMemory>,
    options: HostOptions,
    faults: Faults,
    layout: OnceLock<LayoutId>,
    /// The process of the first job, and of the threads.
    process: OnceLock<u32>,
}

/// A job that the threads work on.
#[derive(Debug)]
pub struct HostRunning {
    job: Arc<Job>,
}

impl HostBackend {
    /// A backend over some memory. Threads start with the first job that needs them.
    ///
    /// # Errors
    ///
    /// If the process may not run on a CPU of `options`.
    pub fn new(memory: HostMemory, options: HostOptions) -> Result<Self, HostError> {
        check_cpus(&options.cpus)?;
        let threads = options.threads.unwrap_or_else(default_threads);
        Ok(Self {
            pool: Pool::new(threads, options.cpus.clone()),
            memory: Some(memory),
            faults: Faults::new(options.faults),
            options,
            layout: OnceLock::new(),
            process: OnceLock::new(),
        })
    }

    /// How many threads copy.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn check(&self, plan: &Plan) -> Result<(), HostError> {
        if self.is_forked() {
            return Err(HostError::Forked);
        }
        let attached = self.layout.get().copied();
        if attached != Some(plan.layout()) {
            let plan = plan.layout();
            return Err(HostError::OtherLayout { plan, attached });
        }
        Ok(())
    }

    fn is_forked(&self) -> bool {
        *self.process.get_or_init(process::id) != process::id()
    }

    fn how(&self, lane: Lane, bytes: u64, fault: Option<FaultMoment>) -> How {
        let inline = bytes <= INLINE_BYTES;
        let pieces = PIECES_PER_THREAD * self.threads() as u64;
        How {
            copier: Copier::new(self.options.non_temporal, inline),
            piece_bytes: (bytes / pieces).clamp(SMALLEST_PIECE, LARGEST_PIECE),
            expedited: lane == Lane::Expedited,
            fault,
        }
    }
}

impl TransferBackend for HostBackend {
    type Stream = HostStream;
    type Fence = ();
    type Running = HostRunning;

    const ENQUEUE_MAY_BLOCK: bool = false;

    fn attach(&self, layout: &KvLayout) -> Result<(), BackendError> {
        let memory = self.memory.as_ref().expect("taken by drop alone");
        let (device, host) = layout.extents();
        let sides = device.into_iter().map(|extent| ("device", extent));
        for (side, (address, bytes)) in sides.chain([("host", host)]) {
            if !memory.covers(address, bytes) {
                let outside = HostError::OutsideMemory {
                    side,
                    address,
                    bytes,
                };
                return Err(outside.of("attach"));
            }
        }
        let attached = self.layout.set(layout.id());
        attached.map_err(|_| HostError::Attached.of("attach"))
    }

    fn fence(&self, HostStream: HostStream) -> Result<(), BackendError> {
        Ok(())
    }

    fn enqueue(
        &self,
        lane: Lane,
        (): (),
        plan: Plan,
        waker: &Waker,
    ) -> Result<HostRunning, EnqueueError<HostRunning>> {
        let refused = |error: HostError| EnqueueError::NotStarted(error.of("enqueue"));
        self.check(&plan).map_err(refused)?;
        let bytes = plan.bytes();
        let fault = self.faults.next();
        if fault == Some(FaultMoment::Refused) {
            return Err(refused(HostError::Injected));
        }
        if bytes > INLINE_BYTES {
            let started = self.pool.start();
            started.map_err(|error| refused(HostError::NoThread(error)))?;
        }
        let how = self.how(lane, bytes, fault);
        // SAFETY: the layout of the plan is the one that `attach` found within the memory, which
        // lives as long as `self`, and in which a plan's sources and destinations lie apart; `Drop`
        // ends the threads before it goes. Whoever made the memory promised that nobody else
        // touches what a job does, and that jobs in flight do not conflict.
        let job = Arc::new(unsafe { Job::new(plan, how, waker.clone()) });
        if job.pieces() == 0 {
            job.wake();
        } else if bytes <= INLINE_BYTES {
            while job.run_piece() {}
        } else {
            self.pool.push(Arc::clone(&job));
        }
        let running = HostRunning { job };
        if fault == Some(FaultMoment::Started) {
            let error = HostError::Injected.of("enqueue");
            return Err(EnqueueError::Started { error, running });
        }
        Ok(running)
    }

    fn poll(&self, running: &mut HostRunning) -> Progress {
        let job = &running.job;
        if !job.has_ended() && !job.fails_early() {
            return Progress::Pending;
        }
        match job.fault() {
            None => Progress::Done,
            Some(fault) => Progress::Failed(fault.of("copy")),
        }
    }

    fn quiesce(&self, running: &mut HostRunning) -> Progress {
        if running.job.has_ended() {
            Progress::Done
        } else {
            Progress::Pending
        }
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        if self.is_forked() {
            self.pool.disown();
            // What keeps the memory may have threads or locks of its own.
            let _leaked = std::mem::ManuallyDrop::new(self.memory.take());
        }
    }
}

#[cfg(target_os = "linux")]
fn check_cpus(cpus: &[usize]) -> Result<(), HostError> {
    if cpus.is_empty() {
        return Ok(());
    }
    // A kernel that does not say is asked again by each thread.
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return Ok(());
    };
    let known = 0..rustix::thread::CpuSet::MAX_CPU;
    match cpus
        .iter()
        .find(|cpu| !known.contains(cpu) || !allowed.is_set(**cpu))
    {
        Some(&cpu) => Err(HostError::Cpu { cpu }),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn check_cpus(_cpus: &[usize]) -> Result<(), HostError> {
    Ok(())
}
