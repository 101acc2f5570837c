//! A job in pieces, which any number of threads take and copy.
//!
//! 1. Each piece is taken once, and settled once, whether it was copied, skipped or panicked.
//! 2. The job has ended when its last piece is settled: no thread touches its memory from then on.

mod cut;
mod pieces;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::panic::{self, AssertUnwindSafe};

use kvferry::transfer::{CopyRange, Direction, Plan, Waker};

use self::cut::Cuts;
use self::pieces::Pieces;
use crate::copy::{Copier, Span};
use crate::error::HostError;
use crate::fault::FaultMoment;

/// A job under way.
#[derive(Debug)]
pub(crate) struct Job {
    plan: Plan,
    cuts: Cuts,
    how: How,
    waker: Waker,
    pieces: Pieces,
}

/// How a job is copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) copier: Copier,
    /// Bytes of a piece, about.
    pub(crate) piece_bytes: u64,
    /// Whether the job goes before those that do not.
    pub(crate) expedited: bool,
    pub(crate) fault: Option<FaultMoment>,
}

/// Why a job failed, as [`Pieces`] keep it.
const SOUND: u8 = 0;
const INJECTED: u8 = 1;
const PANICKED: u8 = 2;
const DROPPED: u8 = 3;

impl Job {
    /// Cuts a plan into pieces.
    ///
    /// # Safety
    ///
    /// Until the job has ended, or nobody calls [`run_piece`](Self::run_piece) any more:
    ///
    /// * all memory of the plan can be read and written, its provenance is exposed, and sources and
    ///   destinations lie apart;
    /// * nobody else writes what the job reads, or touches what it writes.
    pub(crate) unsafe fn new(plan: Plan, how: How, waker: Waker) -> Self {
        let bytes = match how.fault {
            Some(FaultMoment::First) => 0,
            Some(FaultMoment::Midway) => plan.bytes() / 2,
            _ => plan.bytes(),
        };
        let cuts = Cuts::new(plan.ranges(), bytes, how.piece_bytes);
        let fault = match how.fault {
            None | Some(FaultMoment::Panic) => SOUND,
            Some(_) => INJECTED,
        };
        Self {
            pieces: Pieces::new(cuts.pieces(), fault),
            plan,
            cuts,
            how,
            waker,
        }
    }

    /// How many pieces it has.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.total()
    }

    pub(crate) fn is_expedited(&self) -> bool {
        self.how.expedited
    }

    /// Whether all pieces are taken.
    pub(crate) fn is_taken(&self) -> bool {
        self.pieces.are_taken()
    }

    /// Whether all pieces are settled: nobody touches the job's memory any more, and all that was
    /// written is visible to this thread.
    pub(crate) fn has_ended(&self) -> bool {
        self.pieces.have_ended()
    }

    /// Whether it says that it has failed before it has ended.
    pub(crate) fn fails_early(&self) -> bool {
        self.how.fault == Some(FaultMoment::Running)
    }

    /// Why it failed, if it has.
    pub(crate) fn fault(&self) -> Option<HostError> {
        match self.pieces.fault() {
            SOUND => None,
            INJECTED => Some(HostError::Injected),
            PANICKED => Some(HostError::Panicked),
            _ => Some(HostError::Dropped),
        }
    }

    /// Takes one piece and copies it. Returns whether there was one.
    pub(crate) fn run_piece(&self) -> bool {
        let Some(piece) = self.pieces.take() else {
            return false;
        };
        if self.may_copy() {
            // What a panic could leave in between are bytes of a job that then fails.
            let copied = panic::catch_unwind(AssertUnwindSafe(|| self.copy(piece)));
            if copied.is_err() {
                self.pieces.fail(PANICKED);
            }
        }
        self.settle();
        true
    }

    /// Gives the job up: pieces that nobody has taken are not copied.
    pub(crate) fn abandon(&self) {
        self.pieces.fail(DROPPED);
        while self.pieces.take().is_some() {
            self.settle();
        }
    }

    /// Once a job has failed, the rest of its bytes is of no use. A fault on purpose says itself how
    /// much is copied.
    fn may_copy(&self) -> bool {
        matches!(self.pieces.fault(), SOUND | INJECTED)
    }

    fn copy(&self, piece: usize) {
        if self.how.fault == Some(FaultMoment::Panic) {
            // As a panic does, without its message: this one is no surprise.
            panic::resume_unwind(Box::new("a fault on purpose"));
        }
        let direction = self.plan.direction();
        let parts = self.cuts.spans(self.plan.ranges(), piece);
        let spans = parts.map(|range| span(range, direction));
        // SAFETY: the spans are the piece's part of the plan, for which the caller of `new` vouches
        // until the job has ended, and it has not before this piece is settled. Other threads copy
        // other pieces, whose destinations lie apart from this one's: the plan has none twice.
        unsafe { self.how.copier.copy(spans) };
    }

    fn settle(&self) {
        if self.pieces.settle() {
            self.wake();
        }
    }

    /// Says that the job has ended.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}

/// From where to where a range is copied.
fn span(range: CopyRange, direction: Direction) -> Span {
    let fits = "memory of this process has addresses of its word";
    Span {
        source: usize::try_from(range.source(direction)).expect(fits),
        destination: usize::try_from(range.destination(direction)).expect(fits),
        bytes: usize::try_from(range.bytes).expect(fits),
    }
}
