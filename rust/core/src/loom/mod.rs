//! Models of every protocol that has more than one thread, explored by loom.
//!
//! One file per protocol, and `engine` for whole verbs beside readers. [`models`] makes of each
//! model one test that it holds and one test per fault of [`Mutant`] that it fails under, with the
//! message that it must fail with; `every_fault_is_caught` requires that no fault is left over. Run
//! with `make loom`; with `--nocapture` each model tells how many executions it had.
//!
//! A model that hardly runs proves nothing: each states a least number of executions, about half of
//! what it has.
//!
//! The bytes of a chunk are a [`Cell`] per slot, which loom checks for data races as it does not
//! check atomics: a reader reads it while pinned, whoever stores writes it while pending. So a
//! missing happens-before fails even where every value comes out right.
//!
//! What the models leave out, beside the list in [`crate::mutant`]:
//!
//! * The log of touches is `crossbeam_queue::ArrayQueue`, on std's atomics: its protocol is that
//!   crate's to check. Here it is never under contention.
//! * Counters for statistics order nothing and are std's, too.
//! * loom bounds the number of forced switches between threads, and remembers seven values of a
//!   word. What needs more of either, or long histories, is the part of the stress tests.

mod engine;
mod index;
mod notice;
mod record;
mod slot;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use loom::cell::Cell;

use crate::mutant::{self, Mutant};

loom::lazy_static! {
    static ref CHUNKS: [Cell<u64>; 2] = [Cell::new(0), Cell::new(0)];
}

/// Makes the chunks, before a model starts its threads: whoever made them would otherwise be ordered
/// before whoever uses them.
fn make_chunks() {
    for chunk in CHUNKS.iter() {
        chunk.set(0);
    }
}

/// Stores the bytes of a chunk, as a transfer does. A data race if anyone else may look.
fn write_chunk(slot: u32, bytes: u64) {
    CHUNKS[slot as usize].set(bytes);
}

/// Loads the bytes of a chunk. A data race if anyone may be writing them.
fn read_chunk(slot: u32) -> u64 {
    CHUNKS[slot as usize].get()
}

/// What loom says of a data race on a chunk.
const RACE: &str = "Causality violation";

/// Declares the models of a file: `name: preemptions, executions, [fault => message, …];`.
macro_rules! models {
    ($($name:ident: $preemptions:literal, $executions:literal, [
        $($fault:ident => $message:expr),* $(,)?
    ];)*) => {
        pub(super) const CAUGHT: &[crate::mutant::Mutant] =
            &[$($(crate::mutant::Mutant::$fault),*),*];
        $(mod $name {
            #[test]
            fn holds() {
                $crate::loom::holds(stringify!($name), $preemptions, $executions, super::$name);
            }

            mod fails_with {
                $(#[test]
                #[expect(non_snake_case, reason = "named after the fault")]
                fn $fault() {
                    use super::super::*;
                    let fault = crate::mutant::Mutant::$fault;
                    $crate::loom::fails_with(fault, $preemptions, $message, super::super::$name);
                })*
            }
        })*
    };
}
use models;

/// Explores a model, and returns how many executions it took.
fn explore(preemptions: usize, model: fn()) -> usize {
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` goes deeper, for once.
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 10_000;
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&executions);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    executions.load(Ordering::Relaxed)
}

fn holds(name: &str, preemptions: usize, at_least: usize, model: fn()) {
    let started = Instant::now();
    let executions = explore(preemptions, model);
    println!("{name}: {executions} executions, {:.1?}", started.elapsed());
    assert!(
        executions >= at_least,
        "{name} had {executions} executions, and {at_least} at least are known"
    );
}

fn fails_with(fault: Mutant, preemptions: usize, message: &str, model: fn()) {
    let explored = catch_unwind(AssertUnwindSafe(|| {
        mutant::with(fault, || explore(preemptions, model))
    }));
    let payload = match explored {
        Ok(executions) => panic!("{fault:?} went unnoticed in {executions} executions"),
        Err(payload) => payload,
    };
    let said = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(
        said.contains(message),
        "{fault:?} was noticed by {said:?}, not by {message:?}"
    );
}

#[test]
fn every_fault_is_caught() {
    let caught = [
        engine::CAUGHT,
        index::CAUGHT,
        notice::CAUGHT,
        record::CAUGHT,
        slot::CAUGHT,
    ]
    .concat();
    let missed: Vec<_> = Mutant::ALL
        .iter()
        .filter(|fault| !caught.contains(fault))
        .collect();
    assert!(missed.is_empty(), "no model fails under {missed:?}");
}
