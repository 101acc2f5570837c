//! Worker threads, and the jobs that wait for them.
//!
//! Threads start with the first job that needs them. One that finds nothing to do looks on for a
//! moment, then sleeps; a job wakes one, which wakes the next while there are pieces for more.
//! Expedited jobs go first: a thread leaves another job for them after the piece at hand.
//!
//! All that two threads share beside the jobs is behind one lock. The two counters outside of it are
//! hints: whoever acts on them looks again under the lock.

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use crate::sync::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::hint;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::job::Job;

/// How long an idle thread looks for a job before it sleeps: about as long as it takes to wake up.
/// Only one of them does, lest they take the CPUs of those who submit.
const SPIN: Duration = Duration::from_micros(30);

/// How many threads a thread wakes before it starts on a job: with two, all of them are awake after a
/// few steps, and no single one has paid for that.
const WAKES: usize = 2;

/// Threads that copy. Dropped, they end: the pieces under way are copied, the others are not.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: NonZeroUsize,
    cpus: Vec<usize>,
    started: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Jobs in the queue.
    waiting: AtomicUsize,
    /// Those of them that are expedited.
    expedited: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    expedited: VecDeque<Arc<Job>>,
    ordinary: VecDeque<Arc<Job>>,
    asleep: usize,
    /// Whether a thread looks for jobs without the lock.
    spinning: bool,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(threads: NonZeroUsize, cpus: Vec<usize>) -> Self {
        Self {
            shared: Arc::default(),
            threads,
            cpus,
            started: Mutex::default(),
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.get()
    }

    /// Starts the threads, unless they run.
    ///
    /// # Errors
    ///
    /// If not one of them could be started. Some are enough.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !started.is_empty() {
            return Ok(());
        }
        for number in 0..self.threads() {
            let shared = Arc::clone(&self.shared);
            let cpus = self.cpus.clone();
            let thread = thread::Builder::new().name(format!("kvferry-copy-{number}"));
            match thread.spawn(move || work(&shared, &cpus)) {
                Ok(handle) => started.push(handle),
                Err(error) if number == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Hands a job to the threads.
    pub(crate) fn push(&self, job: Arc<Job>) {
        self.shared.push(job);
    }

    /// Leaves the threads alone, in a process that has none of them: the child of a fork.
    pub(crate) fn disown(&mut self) {
        // Their handles would be given back to a system that does not know them here; and the lock
        // may be held by a thread that is not here.
        let abandoned = std::mem::take(
            self.started
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let _leaked = std::mem::ManuallyDrop::new(abandoned);
        let _leaked = std::mem::ManuallyDrop::new(Arc::clone(&self.shared));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let started = std::mem::take(
            self.started
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        if started.is_empty() {
            return;
        }
        let abandoned = self.shared.close();
        for job in abandoned {
            job.abandon();
        }
        for thread in started {
            // A thread that panicked has said so itself.
            thread.join().ok();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says outside of the lock what there is to do.
    fn hint(&self, queue: &Queue) {
        // Relaxed: hints. The lock publishes the jobs.
        let expedited = queue.expedited.len();
        self.expedited.store(expedited, Ordering::Relaxed);
        self.waiting
            .store(expedited + queue.ordinary.len(), Ordering::Relaxed);
    }

    fn push(&self, job: Arc<Job>) {
        let mut queue = self.lock();
        queue.push(job);
        self.hint(&queue);
        let nobody_looks = queue.asleep > 0 && !queue.spinning;
        drop(queue);
        if nobody_looks {
            self.work.notify_one();
        }
    }

    /// Waits for a job that has pieces left. `None`: there will be none.
    fn next(&self) -> Option<Arc<Job>> {
        let mut queue = self.lock();
        let mut has_spun = false;
        loop {
            let job = queue.first();
            self.hint(&queue);
            if let Some(job) = job {
                let wakes = queue.asleep.min(WAKES).min(job.pieces().saturating_sub(1));
                drop(queue);
                (0..wakes).for_each(|_| self.work.notify_one());
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            if has_spun || queue.spinning {
                queue.asleep += 1;
                queue = self
                    .work
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
                queue.asleep -= 1;
            } else {
                queue.spinning = true;
                drop(queue);
                self.spin();
                queue = self.lock();
                queue.spinning = false;
            }
            has_spun = !has_spun;
        }
    }

    /// Copies pieces of a job until none is left, or another job goes first.
    fn run(&self, job: &Job) {
        while job.run_piece() {
            // Relaxed: a hint, looked at again under the lock.
            if !job.is_expedited() && self.expedited.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
    }

    /// Looks for a job without the lock, for a while.
    fn spin(&self) {
        let start = Instant::now();
        // Relaxed: a hint, looked at again under the lock.
        while self.waiting.load(Ordering::Relaxed) == 0 && start.elapsed() < SPIN {
            (0..16).for_each(|_| hint::spin_loop());
        }
    }

    /// Ends the threads. Returns the jobs that they leave.
    fn close(&self) -> Vec<Arc<Job>> {
        let mut queue = self.lock();
        queue.closed = true;
        let left = std::mem::take(&mut *queue);
        *queue = Queue {
            asleep: left.asleep,
            closed: true,
            ..Queue::default()
        };
        self.hint(&queue);
        drop(queue);
        self.work.notify_all();
        left.expedited.into_iter().chain(left.ordinary).collect()
    }
}

impl Queue {
    fn push(&mut self, job: Arc<Job>) {
        if job.is_expedited() {
            self.expedited.push_back(job);
        } else {
            self.ordinary.push_back(job);
        }
    }

    /// The job to work on; those of which every piece is taken leave.
    fn first(&mut self) -> Option<Arc<Job>> {
        for jobs in [&mut self.expedited, &mut self.ordinary] {
            while let Some(job) = jobs.front() {
                if !job.is_taken() {
                    return Some(Arc::clone(job));
                }
                jobs.pop_front();
            }
        }
        None
    }
}

/// What a thread does.
fn work(shared: &Shared, cpus: &[usize]) {
    bind(cpus);
    while let Some(job) = shared.next() {
        shared.run(&job);
    }
}

/// Keeps this thread on some CPUs.
#[cfg(target_os = "linux")]
fn bind(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    // The backend has seen that the process may use them; if that changed, the copies matter more.
    rustix::thread::sched_setaffinity(None, &set).ok();
}

#[cfg(not(target_os = "linux"))]
fn bind(_cpus: &[usize]) {}
