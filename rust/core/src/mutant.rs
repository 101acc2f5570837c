//! Deliberate faults for negative controls of the concurrency models.
//!
//! A model proves something only if it fails on broken code. Each [`Mutant`] weakens one ordering
//! or drops one re-check of a protocol, and a test requires that every one of them makes a model
//! fail. Outside the loom build the functions here are constants and the faults do not exist.
//!
//! What is not here, and why:
//!
//! * The summary words of the notices. Weakened, they lose notices by the letter of the memory
//!   model; in loom the order of modifications of a word is the order of execution, so that a swap
//!   always takes the newest bits, and no model can fail.
//! * The Release of [`crate::index::Index::clear`]. No reader may rely on a key that a reset
//!   removes.
//! * Rules of one thread (which phase a transition starts from, the most pins, which chunk is
//!   spared): the mutation check of the sources covers them.

use crate::sync::Ordering;

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One deliberate fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mutant {
            $($(#[$doc])* $name,)*
        }

        #[cfg(all(loom, test))]
        impl Mutant {
            /// Every fault.
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

mutants! {
    /// A transition writes the new state without comparing the old one.
    TransitionNotAtomic,
    /// The state word is loaded with a relaxed load.
    StateLoadRelaxed,
    /// A pin does not compare the generation it was asked for.
    PinIgnoresGeneration,
    /// A pin is taken on a slot that is being evicted.
    PinIgnoresPhase,
    /// A pin is acquired with a relaxed compare-exchange.
    PinRelaxed,
    /// A pin of an earlier generation is taken off the present one.
    UnpinIgnoresGeneration,
    /// A pin is released with a relaxed compare-exchange.
    UnpinRelaxed,
    /// The owner claims a victim without looking at its pins.
    ClaimIgnoresPins,
    /// A slot is freed with a relaxed compare-exchange.
    FreeRelaxed,
    /// A freed slot keeps its generation.
    FreeKeepsGeneration,
    /// A slot becomes pending with a relaxed compare-exchange.
    BeginStoreRelaxed,
    /// A stored chunk is published with a relaxed compare-exchange.
    PublishRelaxed,
    /// The words of a key are written with relaxed stores.
    KeyStoreRelaxed,
    /// The words of a key are read with relaxed loads.
    KeyLoadRelaxed,
    /// A reader does not read the state word again after it compared the key.
    NoStateRecheck,
    /// Entries of the index are written with relaxed stores.
    EntryStoreRelaxed,
    /// Entries of the index are read with relaxed loads.
    EntryLoadRelaxed,
    /// A reader that misses does not look at the move counter again.
    NoMoveRecheck,
    /// A batch of lookups that misses does not look at the move counter again.
    BatchNoMoveRecheck,
    /// The move counter is read with relaxed loads.
    MovesLoadRelaxed,
    /// A move clears the source before it writes the destination.
    MoveClearsFirst,
    /// A move does not advance the move counter.
    MoveUncounted,
    /// A move advances the move counter with a relaxed read-modify-write.
    CountMoveRelaxed,
    /// The last unpin of a parked slot tells nobody.
    NoNotice,
    /// The owner parks a slot without looking whether it is still pinned.
    ParkUnconditionally,
    /// The owner takes a slot that it could not park for a pinned one, and does not claim it again.
    ParkNotRetried,
    /// A reset drains a ready slot without looking whether it is still pinned.
    DrainUnconditionally,
    /// A reset frees a ready slot that it could not drain, without claiming it.
    DrainNotClaimed,
    /// The owner parks a draining slot without looking whether it is still pinned.
    ParkDrainingUnconditionally,
    /// Draining clears the summary of the notices after reading the words below it.
    NoticeSummaryLate,
    /// A notice sets the summary before the word below it.
    NoticeSummaryFirst,
    /// The bit of a slot is set with a relaxed read-modify-write.
    NotifyRelaxed,
    /// The bits of slots are taken with a relaxed swap.
    TakeRelaxed,
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
