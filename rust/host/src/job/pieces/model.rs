use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;

use super::{Orderings, Pieces, SOUND};
use crate::sync::Ordering;

const PIECES: usize = 2;

/// What loom says of a data race on the bytes of a piece.
const RACE: &str = "Causality violation";

/// A job of two pieces, and where each is copied to. loom checks cells for data races.
struct Job {
    pieces: Pieces,
    bytes: [Cell<u8>; PIECES],
}

impl Job {
    fn run(&self, orderings: Orderings) {
        while let Some(piece) = self.pieces.take() {
            assert_eq!(self.bytes[piece].get(), 0, "copied once");
            self.bytes[piece].set(1);
            if piece == 1 {
                self.pieces.fail(7);
            }
            self.pieces.settle_with(orderings);
        }
    }
}

/// Two threads copy, a third one looks: once it sees the end, it sees the bytes and the fault.
fn whoever_sees_the_end_sees_the_bytes(orderings: Orderings) {
    let job = Arc::new(Job {
        pieces: Pieces::new(PIECES, 0),
        bytes: [Cell::new(0), Cell::new(0)],
    });
    let threads = [(); 2].map(|()| {
        let job = Arc::clone(&job);
        thread::spawn(move || job.run(orderings))
    });
    if job.pieces.have_ended_with(orderings) {
        assert_eq!([1, 1], [job.bytes[0].get(), job.bytes[1].get()]);
        assert_eq!(job.pieces.fault(), 7);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(job.pieces.have_ended() && job.pieces.are_taken());
}

fn fails(orderings: Orderings) {
    let explored = catch_unwind(AssertUnwindSafe(|| {
        loom::model(move || whoever_sees_the_end_sees_the_bytes(orderings));
    }));
    let payload = explored.expect_err("a weaker ordering goes unnoticed");
    let said = payload.downcast_ref::<String>().map_or("", String::as_str);
    assert!(said.contains(RACE), "noticed by {said:?}");
}

#[test]
fn the_end_publishes_the_bytes() {
    loom::model(|| whoever_sees_the_end_sees_the_bytes(SOUND));
}

#[test]
fn a_relaxed_settling_is_noticed() {
    fails(Orderings {
        settle: Ordering::Relaxed,
        ..SOUND
    });
}

#[test]
fn a_relaxed_look_at_the_end_is_noticed() {
    fails(Orderings {
        end: Ordering::Relaxed,
        ..SOUND
    });
}
