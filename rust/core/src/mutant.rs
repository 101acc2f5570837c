//! Deliberate faults for negative controls of the concurrency models.
//!
//! A model proves something only if it fails on broken code. Each [`Mutant`] weakens one ordering
//! or drops one re-check of a protocol. Outside the loom build the functions here are constants and
//! the faults do not exist.

use crate::sync::Ordering;

/// One deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A pin does not compare the generation it was asked for.
    PinIgnoresGeneration,
    /// A pin is taken on a slot that is being evicted.
    PinIgnoresPhase,
    /// A pin is acquired with a relaxed compare-exchange.
    PinRelaxed,
    /// A pin is released with a relaxed compare-exchange.
    UnpinRelaxed,
    /// The owner claims a victim without looking at its pins.
    ClaimIgnoresPins,
    /// A victim is claimed with a relaxed compare-exchange.
    ClaimRelaxed,
    /// A stored chunk is published with a relaxed compare-exchange.
    PublishRelaxed,
    /// A freed slot keeps its generation.
    FreeKeepsGeneration,
    /// The words of a key are written with relaxed stores.
    KeyStoreRelaxed,
    /// The words of a key are read with relaxed loads.
    KeyLoadRelaxed,
    /// A reader does not read the state word again after it compared the key.
    NoStateRecheck,
    /// A reader that misses does not look at the move counter again.
    NoMoveRecheck,
    /// A move clears the source before it writes the destination.
    MoveClearsFirst,
    /// A move does not advance the move counter.
    MoveUncounted,
    /// The last unpin of a parked slot tells nobody.
    NoNotice,
    /// The owner parks a slot without looking whether it is still pinned.
    ParkUnconditionally,
    /// Draining clears the summary of the notices after reading the words below it.
    NoticeSummaryLate,
    /// A notice sets the summary before the word below it.
    NoticeSummaryFirst,
}

#[cfg(loom)]
mod active {
    use super::Mutant;
    use std::cell::Cell;

    // loom runs all threads of a model on one thread of the system, so that a thread-local value
    // reaches them all and no other model.
    thread_local!(static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) });

    pub(crate) fn is(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }

    /// Runs `model` with one fault switched on.
    #[cfg(test)]
    pub(crate) fn with<R>(mutant: Mutant, model: impl FnOnce() -> R) -> R {
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                ACTIVE.set(None);
            }
        }
        ACTIVE.set(Some(mutant));
        let _off = Off;
        model()
    }
}

#[cfg(all(loom, test))]
pub(crate) use active::with;

/// Whether a fault is switched on: never, outside the loom build.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn is(_mutant: Mutant) -> bool {
    false
}

#[cfg(loom)]
pub(crate) use active::is;

/// `order`, or `Relaxed` where the fault is switched on.
#[inline(always)]
pub(crate) fn weaken(mutant: Mutant, order: Ordering) -> Ordering {
    if is(mutant) { Ordering::Relaxed } else { order }
}
