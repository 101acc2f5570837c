//! How whoever waits for a job learns that one may have ended.
//!
//! A counter behind a lock, and a condition variable. There is nothing to model: whoever waits reads
//! the counter before he looks for what he waits for, and sleeps only while it has not moved.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Wakes the threads that wait for jobs of one engine. Clones wake the same ones.
#[derive(Debug, Clone, Default)]
pub struct Waker {
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wakes: u64,
    asleep: usize,
}

/// What had happened at some moment: a later wake is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Waker {
    /// Says that a job may have ended. Callable from any thread; takes a lock for a moment.
    pub fn wake(&self) {
        let mut state = self.lock();
        state.wakes = state.wakes.wrapping_add(1);
        let asleep = state.asleep > 0;
        drop(state);
        // Without anyone asleep, this would be a system call for nothing.
        if asleep {
            self.signal.moved.notify_all();
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen(self.lock().wakes)
    }

    /// Sleeps until a wake that came after `seen`, or for so long.
    pub(super) fn wait(&self, seen: Seen, timeout: Option<Duration>) {
        let mut state = self.lock();
        state.asleep += 1;
        let moved = &self.signal.moved;
        let unmoved = |state: &mut State| state.wakes == seen.0;
        let mut state = match timeout {
            None => moved
                .wait_while(state, unmoved)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = moved.wait_timeout_while(state, timeout, unmoved);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.asleep -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.signal
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
