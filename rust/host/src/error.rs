//! What can go wrong when threads copy.

use std::io;

use kvferry::transfer::{BackendError, LayoutId};
use thiserror::Error;

/// A fault of the host backend. Jobs carry it as the source of their [`BackendError`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// A layout names memory that the backend was not given.
    #[error("{bytes} bytes at {address:#x} of the layout's {side} memory are not the backend's")]
    OutsideMemory {
        /// "device" or "host".
        side: &'static str,
        /// Where the extent starts.
        address: u64,
        /// How long it is.
        bytes: u64,
    },
    /// A second layout: the first one's jobs may still run.
    #[error("the backend has a layout already")]
    Attached,
    /// A plan of a layout that the backend was not given.
    #[error("the plan is of {plan:?}, the backend has {attached:?}")]
    OtherLayout {
        /// The plan's layout.
        plan: LayoutId,
        /// The backend's, if it has one.
        attached: Option<LayoutId>,
    },
    /// This process may not run on the CPU.
    #[error("CPU {cpu} is not one that this process may run on")]
    Cpu {
        /// The CPU.
        cpu: usize,
    },
    /// Not one worker thread could be started.
    #[error("no worker thread could be started")]
    NoThread(#[source] io::Error),
    /// The backend's threads are another process's: this one is its fork.
    #[error("the process was forked after the backend's first job")]
    Forked,
    /// The backend was dropped before the job had ended.
    #[error("the backend was dropped")]
    Dropped,
    /// A copy panicked.
    #[error("a copy panicked")]
    Panicked,
    /// The job is one that was to fail: see [`FaultInjection`](crate::FaultInjection).
    #[error("a fault on purpose")]
    Injected,
}

impl HostError {
    pub(crate) fn of(self, call: &'static str) -> BackendError {
        BackendError {
            call,
            source: Box::new(self),
        }
    }
}
