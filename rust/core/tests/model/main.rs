//! Random histories of every verb, through the engine and through a model written from its
//! contracts, compared after each step.
//!
//! `KVFERRY_MODEL_CASES` sets how many histories a run tries.

#![cfg(feature = "testing")]

mod access;
mod calls;
#[expect(dead_code, reason = "another test binary uses the rest")]
#[path = "../common/mod.rs"]
mod common;
mod operations;
mod reference;
mod tracker;
mod verbs;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

use crate::world::World;

/// Histories in a run of `cargo test`.
const CASES: u32 = 1500;

/// What happens seldom and has to happen, once in a hundred histories at least.
const RARE: [&str; 9] = [
    "a store did not fit",
    "victims of T1 and of T2 in one call",
    "a target between two numbers",
    "a ghost list is full",
    "a chunk that a reader holds is passed over",
    "a slot drains",
    "a chunk leaves when its last pin goes",
    "a load fails for too many pins",
    "a request goes on after a reset",
];

fn run(cases: u32) {
    let cases = std::env::var("KVFERRY_MODEL_CASES")
        .map_or(cases, |cases| cases.parse().expect("a number of histories"));
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/model.txt",
        ))),
        ..ProptestConfig::default()
    });
    let met = RefCell::new(BTreeMap::new());
    let done = runner.run(&operations::history(), |(settings, hashing, steps)| {
        let mut world = World::new(&settings, hashing);
        for step in &steps {
            world.run(step);
            world.compare();
        }
        world.wind_down();
        for (what, times) in world.met {
            *met.borrow_mut().entry(what).or_insert(0) += times;
        }
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
    let met = met.into_inner();
    for what in RARE {
        let times = met.get(what).copied().unwrap_or(0);
        assert!(
            times > cases / 100,
            "{what}: {times} times in {cases} histories"
        );
    }
}

#[test]
fn every_verb_does_what_the_model_does() {
    run(CASES);
}

#[test]
#[ignore = "long: twenty times as many histories"]
fn every_verb_does_what_the_model_does_for_long() {
    run(20 * CASES);
}
