//! Touches memory for the first time, with several threads, so that all its pages exist.
//!
//! 1. After success each page of the range exists and can be written: no later access ends in
//!    SIGBUS for want of memory.
//! 2. What is in the memory stays as it is.
//! 3. The caller's thread alone calls the progress callback.
//!
//! `MADV_POPULATE_WRITE` makes pages and says by its result when there are none to be had. A kernel
//! before 5.14 does not know it: there the room in the file is reserved with `fallocate`, which says
//! so too, and each page is written once. To reserve everything so from the start would put work
//! that one thread does (0.26 s a GiB of a tmpfs) before work that all do together, and would choose
//! the node and the size of pages without the advice that a mapping gives.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapRaw};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::numa::Node;

/// What a thread touches between two looks at the rest of the world. Shared memory of this size
/// takes some 10 ms.
const STEP_BYTES: usize = 32 << 20;

/// How often the callback is called at least.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// What to touch, and how.
#[derive(Debug)]
pub(super) struct Touch<'a> {
    pub(super) map: &'a MmapRaw,
    /// The part of the mapping: whole pages.
    pub(super) range: Range<usize>,
    /// The file behind it, and where the mapping begins in it; none for memory without a file.
    pub(super) file: Option<(&'a File, u64)>,
    /// The size of its pages, or what they may become.
    pub(super) alignment: usize,
    pub(super) threads: NonZeroUsize,
    /// Where its pages should lie.
    pub(super) node: Option<&'a Node>,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Touched {
    pub(super) elapsed: Duration,
    pub(super) threads: usize,
    /// Whether the kernel knew `MADV_POPULATE_WRITE`.
    pub(super) populated: bool,
    /// Whether all threads ran on the node.
    pub(super) on_node: bool,
}

/// Why it ended early.
#[derive(Debug)]
pub(super) enum TouchError {
    /// The callback said so.
    Stopped,
    /// The system has none for this step.
    Failed {
        address: u64,
        bytes: u64,
        touched: u64,
        source: io::Error,
    },
}

impl Touch<'_> {
    /// Touches all of it. `progress` hears how many bytes are done.
    pub(super) fn run(
        &self,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Touched, TouchError> {
        self.run_with(true, progress)
    }

    /// The same, without `MADV_POPULATE_WRITE` if `populate` is false.
    fn run_with(
        &self,
        populate: bool,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Touched, TouchError> {
        let start = Instant::now();
        let shared = Shared {
            next: AtomicUsize::new(self.range.start),
            stop: AtomicBool::new(false),
            populate: AtomicBool::new(populate),
            off_node: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        let mut done = 0;
        let mut threads = 0;
        let stopped = thread::scope(|scope| {
            let (tell, steps) = mpsc::channel();
            let shared = &shared;

            for _ in 0..self
                .threads
                .get()
                .min(self.range.len().div_ceil(self.step()))
            {
                let tell = tell.clone();
                let worker = thread::Builder::new().name("kvferry-touch".to_owned());
                let spawned = worker.spawn_scoped(scope, move || self.work(shared, &tell));
                threads += usize::from(spawned.is_ok());
            }
            if threads == 0 {
                // A system that gives no threads loses only the speed.
                self.work(shared, &tell);
            }
            drop(tell);
            let mut told = Instant::now();
            loop {
                match steps.recv_timeout(TICK) {
                    Ok(bytes) => done += bytes,
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return progress(done).is_break(),
                }
                if told.elapsed() >= TICK {
                    told = Instant::now();
                    if progress(done).is_break() {
                        // Relaxed: the threads need nothing but the word.
                        shared.stop.store(true, Relaxed);
                        return true;
                    }
                }
            }
        });
        let failure = shared
            .failure
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match failure {
            _ if stopped => Err(TouchError::Stopped),
            Some((at, bytes, source)) => Err(TouchError::Failed {
                address: self.map.as_mut_ptr().addr() as u64 + at as u64,
                bytes: bytes as u64,
                touched: done,
                source,
            }),
            None => Ok(Touched {
                elapsed: start.elapsed(),
                threads: threads.max(1),
                populated: shared.populate.into_inner(),
                on_node: !shared.off_node.into_inner(),
            }),
        }
    }

    /// A step is a whole number of pages, of whatever size.
    fn step(&self) -> usize {
        STEP_BYTES.max(self.alignment)
    }

    fn work(&self, shared: &Shared, tell: &mpsc::Sender<u64>) {
        if self.node.is_some_and(|node| node.run_here().is_err()) {
            // Relaxed: read after the thread was joined.
            shared.off_node.store(true, Relaxed);
        }
        // Relaxed, here and below: the numbers are handed out once each, and the threads are joined
        // before anyone relies on what they did.
        while !shared.stop.load(Relaxed) {
            let at = shared.next.fetch_add(self.step(), Relaxed);
            if at >= self.range.end {
                return;
            }
            let bytes = self.step().min(self.range.end - at);
            match self.touch(at, bytes, shared) {
                // Nobody listens any more once the callback has said stop.
                Ok(()) => drop(tell.send(bytes as u64)),
                Err(source) => {
                    let mut failure = shared
                        .failure
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert((at, bytes, source));
                    shared.stop.store(true, Relaxed);
                    return;
                }
            }
        }
    }

    fn touch(&self, at: usize, bytes: usize, shared: &Shared) -> io::Result<()> {
        while shared.populate.load(Relaxed) {
            let Err(error) = self.map.advise_range(Advice::PopulateWrite, at, bytes) else {
                return Ok(());
            };
            match Errno::from_io_error(&error) {
                // A signal for another thread's handler; pages that exist already cost little.
                Some(Errno::INTR | Errno::AGAIN) if !shared.stop.load(Relaxed) => {}
                Some(Errno::INVAL) => shared.populate.store(false, Relaxed),
                _ => return Err(error),
            }
        }
        self.write(at, bytes)
    }

    fn write(&self, at: usize, bytes: usize) -> io::Result<()> {
        if let Some((file, offset)) = self.file {
            rustix::io::retry_on_intr(|| {
                let offset = offset + at as u64;
                rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes as u64)
            })?;
        }
        for page in (at..at + bytes).step_by(rustix::param::page_size()) {
            // SAFETY: `range` lies in the mapping, and `work` hands out parts of it alone.
            let byte = unsafe { self.map.as_mut_ptr().add(page) };
            // SAFETY: mapped for reading and writing as long as `map` is borrowed, aligned for a
            // byte; whoever else uses the memory by now does so with atomics or in another process.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            // Adding 0 would do, but compilers make a read of it, which makes no page. If the
            // exchange fails, someone else has written. Relaxed: nothing is published.
            let value = byte.load(Relaxed);
            byte.compare_exchange(value, value, Relaxed, Relaxed).ok();
        }
        Ok(())
    }
}

/// What the threads share.
struct Shared {
    next: AtomicUsize,
    stop: AtomicBool,
    populate: AtomicBool,
    off_node: AtomicBool,
    /// The first: where, how much, and why.
    failure: Mutex<Option<(usize, usize, io::Error)>>,
}

#[cfg(test)]
mod tests;
