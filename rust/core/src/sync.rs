//! Atomics and shared ownership, from `std` or, under `--cfg loom`, from loom.
//!
//! The only place, beside the models, where either is named. In the loom build every access first
//! does a relaxed read-modify-write on one shared atomic: without it loom 0.7.3 explores too few
//! executions of a model such as "load beside load and compare-exchange", and broken code passes.
//! That extra operation is relaxed, so it orders nothing else.

#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU64;
/// A number that is counted and shown, and that no decision hangs on. It is std's in the loom build
/// too: a value that orders nothing has no interleavings worth exploring.
pub(crate) use std::sync::atomic::AtomicU64 as Counter;
pub(crate) use std::sync::atomic::Ordering;

#[cfg(loom)]
pub(crate) use loom::sync::Arc;

#[cfg(loom)]
mod model {
    use super::Ordering;

    loom::lazy_static! {
        static ref TICK: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
    }

    /// Makes the access that follows a point at which loom may switch threads.
    fn tick() {
        TICK.fetch_add(1, Ordering::Relaxed);
    }

    /// loom's `AtomicU64` with a switch point before each access.
    #[derive(Debug)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> u64 {
            tick();
            self.0.load(order)
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            tick();
            self.0.store(value, order);
        }

        pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
            tick();
            self.0.fetch_or(value, order)
        }

        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            tick();
            self.0.fetch_add(value, order)
        }

        pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
            tick();
            self.0.swap(value, order)
        }

        pub(crate) fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            tick();
            self.0.compare_exchange(current, new, success, failure)
        }
    }
}

#[cfg(loom)]
pub(crate) use model::AtomicU64;
