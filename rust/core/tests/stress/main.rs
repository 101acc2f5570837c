//! Real threads on one engine: an owner that stores, evicts, loads, drops, cancels and resets, a
//! worker that transfers, and readers that look, pin and verify what they pinned.
//!
//! The chunks live in a [`shadow::Shadow`] outside the engine, written while their slots are
//! pending. A reader checks again and again, while it holds a pin, that its slot holds the whole
//! chunk of its key. Further: an unpin is stale only after a fenced reset; a key that the owner
//! holds is never missed, however its entry is moved about; and in the end everything comes back.
//!
//! `KVFERRY_STRESS` multiplies the number of steps of every run. Each check has a control: a run
//! with one wrong party has to fail by it.

#![cfg(feature = "testing")]

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "the threads need keys and little else")]
mod common;
mod owner;
mod reader;
mod shadow;
mod worker;
mod world;

use kvferry::PolicyKind;

use crate::world::{Plan, Sabotage, run};

/// Steps of the long runs, as a multiple of the others.
const LONG: u64 = 40;

/// A tier so small that all threads are at the same slots all the time.
const TINY: Plan = Plan {
    policy: PolicyKind::Lru,
    capacity: 3,
    keys: 5,
    crowds: None,
    held: 0,
    call: 2,
    readers: 3,
    resets: true,
    steps: 250_000,
    moves: 0,
};

/// A tier where calls replace a good share of it, and a few keys are held.
const SMALL: Plan = Plan {
    policy: PolicyKind::Arc,
    capacity: 48,
    keys: 96,
    crowds: None,
    held: 6,
    call: 8,
    readers: 2,
    resets: true,
    steps: 100_000,
    moves: 0,
};

/// A tier with so many buckets that some are full at any time, and entries move.
const LARGE: Plan = Plan {
    policy: PolicyKind::Lru,
    capacity: 4096,
    keys: 12_288,
    crowds: None,
    held: 512,
    call: 64,
    readers: 2,
    resets: false,
    steps: 40_000,
    moves: 500,
};

/// A tier whose keys crowd in a few pairs of buckets, so that entries move all the time.
const CROWDED: Plan = Plan {
    policy: PolicyKind::Lru,
    capacity: 64,
    keys: 112,
    crowds: Some(7),
    held: 7,
    call: 4,
    readers: 2,
    resets: false,
    steps: 1_000_000,
    moves: 50_000,
};

fn holds(plan: Plan, times: u64) {
    let factor: u64 = std::env::var("KVFERRY_STRESS")
        .map_or(1, |factor| factor.parse().expect("a number of times"));
    let plan = Plan {
        steps: plan.steps * times * factor,
        ..plan
    };
    match run(&plan, Sabotage::None) {
        Ok(tally) => eprintln!("{plan:?}\n{tally:?}"),
        Err(violation) => panic!("{plan:?}: {violation}"),
    }
}

#[test]
fn a_tiny_tier_under_lru() {
    holds(TINY, 1);
}

#[test]
fn a_tiny_tier_under_arc() {
    let policy = PolicyKind::Arc;
    holds(Plan { policy, ..TINY }, 1);
}

#[test]
fn a_small_tier_with_keys_that_are_held() {
    holds(SMALL, 1);
}

#[test]
fn a_large_tier_whose_entries_move() {
    holds(LARGE, 1);
}

#[test]
fn a_crowded_tier_whose_entries_move_all_the_time() {
    holds(CROWDED, 1);
}

#[test]
#[ignore = "long: minutes"]
fn every_tier_under_every_policy_for_long() {
    for policy in PolicyKind::ALL {
        for plan in [TINY, SMALL, LARGE] {
            holds(Plan { policy, ..plan }, LONG);
        }
    }
    // Resets of a tier whose entries move.
    let resets = true;
    holds(Plan { resets, ..LARGE }, LONG);
}

fn fails(plan: &Plan, sabotage: Sabotage, violation: &str) {
    match run(plan, sabotage) {
        Ok(tally) => panic!("{sabotage:?} went unnoticed: {tally:?}"),
        Err(said) => assert!(said.contains(violation), "{sabotage:?}: {said}"),
    }
}

#[test]
fn a_chunk_with_the_bytes_of_another_key_is_noticed() {
    fails(&SMALL, Sabotage::OtherBytes, "does not hold its chunk");
}

#[test]
fn a_chunk_that_is_not_written_to_its_end_is_noticed() {
    fails(&SMALL, Sabotage::TornBytes, "does not hold its chunk");
}

#[test]
fn a_slot_that_is_written_while_it_is_pinned_is_noticed() {
    fails(&SMALL, Sabotage::LateTransfer, "does not hold its chunk");
}

#[test]
fn a_held_key_that_is_let_go_is_noticed() {
    fails(&SMALL, Sabotage::LetGo, "is missed");
}

#[test]
fn a_stale_pin_without_a_reset_is_noticed() {
    fails(&TINY, Sabotage::SilentReset, "stale without a reset");
}

#[test]
fn a_pin_that_is_never_given_back_is_noticed() {
    let resets = false;
    fails(
        &Plan { resets, ..SMALL },
        Sabotage::KeptPin,
        "did not come back",
    );
}
