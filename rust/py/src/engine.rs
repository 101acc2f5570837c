//! One engine behind a Python object: who may enter, and for how long the interpreter's lock is
//! held.
//!
//! The owner's verbs take the engine's mutex by `try_lock`: a second thread is told, it never
//! waits. The mutex is released before any Python object is made, since that may run other Python
//! code. Lookups and numbers go through a reader handle and are never refused.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use kvferry::{Config, Keys, Manager, PolicyKind, Reader, StoreRejected};
use pyo3::prelude::*;

use crate::errors::{ConcurrentUseError, KvferryError, config_error};
use crate::keys::PackedKeys;

/// From this many keys, or slots, on a call releases the interpreter's lock while it works.
///
/// A store of so many keys takes 2 to 4 ms, about the interpreter's switch interval (5 ms), which
/// threads wait for the lock anyhow. Shorter calls keep it: whoever gives it away while another
/// thread computes waits for that interval to get it back. Measured beside a spinning Python thread
/// on two loaded cores, a store of 8,192 keys came back after 1.8 ms in the median and 37 ms at the
/// 90th percentile.
const LONG_CALL_KEYS: usize = 16_384;

const HELD: &str = "another thread is inside this manager: its verbs are for one thread at a time, \
                    a reader is for all";

/// Engines are told apart by a number, so that a ticket, pin or access of another one is refused by
/// name.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// See the module.
#[derive(Debug)]
pub(crate) struct Engine {
    owner: Mutex<Manager>,
    pub(crate) reader: Reader,
    pub(crate) id: u64,
    pub(crate) policy: PolicyKind,
    pub(crate) capacity: usize,
    pub(crate) key_bytes: usize,
    /// Why the last store did not fit: a [`StoreRejected`], plus one.
    last_rejection: AtomicU64,
}

impl Engine {
    /// May take long for a large tier: the interpreter's lock is released meanwhile.
    pub(crate) fn new(py: Python<'_>, config: Config) -> PyResult<Self> {
        let manager = py.detach(|| Manager::new(config)).map_err(config_error)?;
        Ok(Self {
            reader: manager.reader(),
            // Relaxed: a number and nothing else.
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            policy: manager.policy(),
            capacity: manager.capacity(),
            key_bytes: manager.key_bytes(),
            owner: Mutex::new(manager),
            last_rejection: AtomicU64::new(0),
        })
    }

    /// The engine, for a verb of the owner.
    pub(crate) fn enter(&self) -> PyResult<MutexGuard<'_, Manager>> {
        enter(&self.owner, HELD)
    }

    /// Runs a verb of the owner that works on so many keys or slots.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        size: usize,
        verb: impl FnOnce(&mut Manager) -> T + Send,
    ) -> PyResult<T> {
        let mut owner = self.enter()?;
        let manager: &mut Manager = &mut owner;
        Ok(detach_if_long(py, size, move || verb(manager)))
    }

    /// Runs a verb of the owner that takes the keys of one call.
    pub(crate) fn with_keys<T: Send>(
        &self,
        py: Python<'_>,
        keys: &PackedKeys,
        verb: impl FnOnce(&mut Manager, Keys<'_>) -> T + Send,
    ) -> PyResult<T> {
        self.run(py, keys.len(), move |manager| {
            verb(manager, keys.view().keys())
        })
    }

    /// Runs a lookup over the keys of one call.
    pub(crate) fn read_keys<T: Send>(
        &self,
        py: Python<'_>,
        keys: &PackedKeys,
        verb: impl FnOnce(&Reader, Keys<'_>) -> T + Send,
    ) -> T {
        let run = move || verb(&self.reader, keys.view().keys());
        detach_if_long(py, keys.len(), run)
    }

    pub(crate) fn note_rejection(&self, rejected: Option<StoreRejected>) {
        let why = match rejected {
            None => 0,
            Some(StoreRejected::IndexFull) => 2,
            Some(_) => 1,
        };
        // Relaxed: a number and nothing else.
        self.last_rejection.store(why, Ordering::Relaxed);
    }

    pub(crate) fn last_rejection(&self) -> Option<StoreRejected> {
        // Relaxed: as above.
        match self.last_rejection.load(Ordering::Relaxed) {
            0 => None,
            2 => Some(StoreRejected::IndexFull),
            _ => Some(StoreRejected::Full),
        }
    }

    /// `<ClassName arc 812/4096 chunks, 3 pinned>`.
    pub(crate) fn describe(&self, class_name: impl Display) -> String {
        format!("<{class_name} {} {}>", self.policy, self.reader.stats())
    }
}

/// Takes a lock that nobody may wait for.
pub(crate) fn enter<'a, T>(lock: &'a Mutex<T>, held: &'static str) -> PyResult<MutexGuard<'a, T>> {
    match lock.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::WouldBlock) => Err(ConcurrentUseError::new_err(held)),
        Err(TryLockError::Poisoned(_)) => Err(KvferryError::new_err(
            "an earlier call ended in a panic: this object cannot be used any more",
        )),
    }
}

pub(crate) fn detach_if_long<T: Send>(
    py: Python<'_>,
    keys: usize,
    run: impl FnOnce() -> T + Send,
) -> T {
    if keys >= LONG_CALL_KEYS {
        py.detach(run)
    } else {
        run()
    }
}
