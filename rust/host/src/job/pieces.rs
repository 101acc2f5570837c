//! Who copies which piece of a job, and when the last one is copied.
//!
//! 1. Each piece is taken once. Whoever took it settles it once.
//! 2. A thread that sees the end sees all that was written before each piece was settled, and the
//!    first fault.
//!
//! | step | operation | ordering | pairs with |
//! |---|---|---|---|
//! | take a piece | add to `next` | relaxed | nothing: the job itself comes through a lock |
//! | fail | compare-exchange on `fault` | relaxed | settled later by the same thread |
//! | settle a piece | take from `left` | acquire, release | each other, and the next line |
//! | ask for the end | read `left` | acquire | the release of every settling, through its chain |
//!
//! Wait-free, each step.

#[cfg(test)]
#[cfg(loom)]
mod model;

use crate::sync::{AtomicU8, AtomicUsize, Ordering};

/// The pieces of one job.
#[derive(Debug)]
pub(super) struct Pieces {
    total: usize,
    next: AtomicUsize,
    left: AtomicUsize,
    fault: AtomicU8,
}

/// The orderings that carry the protocol, so that its model can weaken them.
#[derive(Debug, Clone, Copy)]
struct Orderings {
    settle: Ordering,
    end: Ordering,
}

const SOUND: Orderings = Orderings {
    // Release: pairs with the acquire of `has_ended`. Acquire: the last one wakes on behalf of all.
    settle: Ordering::AcqRel,
    // Acquire: pairs with the releases of `settle`; each continues the sequence of the one before.
    end: Ordering::Acquire,
};

impl Pieces {
    /// As many pieces; a `fault` of zero is none.
    pub(super) fn new(total: usize, fault: u8) -> Self {
        Self {
            total,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(total),
            fault: AtomicU8::new(fault),
        }
    }

    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Whether all are taken.
    pub(super) fn are_taken(&self) -> bool {
        // Relaxed: a piece that is seen too late costs a look.
        self.next.load(Ordering::Relaxed) >= self.total
    }

    /// Takes one that nobody has taken.
    pub(super) fn take(&self) -> Option<usize> {
        // Looked at first, so that the counter stays near the number of pieces.
        if self.are_taken() {
            return None;
        }
        // Relaxed: the number alone decides who copies the piece.
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        (piece < self.total).then_some(piece)
    }

    /// Settles one that was taken. Returns whether it was the last.
    pub(super) fn settle(&self) -> bool {
        self.settle_with(SOUND)
    }

    fn settle_with(&self, orderings: Orderings) -> bool {
        self.left.fetch_sub(1, orderings.settle) == 1
    }

    /// Whether all are settled.
    pub(super) fn have_ended(&self) -> bool {
        self.have_ended_with(SOUND)
    }

    fn have_ended_with(&self, orderings: Orderings) -> bool {
        self.left.load(orderings.end) == 0
    }

    /// Notes a fault, before the piece at hand is settled. The first one stays.
    pub(super) fn fail(&self, fault: u8) {
        // Relaxed: the settling publishes it.
        let order = Ordering::Relaxed;
        let _ = self.fault.compare_exchange(0, fault, order, order);
    }

    /// The first fault, or zero. Certain only once they have ended.
    pub(super) fn fault(&self) -> u8 {
        // Relaxed: `have_ended` comes first where it matters.
        self.fault.load(Ordering::Relaxed)
    }
}
