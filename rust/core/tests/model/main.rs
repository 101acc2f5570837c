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

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

use crate::world::World;

/// Histories in a run of `cargo test`.
const CASES: u32 = 2500;
const STEPS: usize = 120;

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
    let history = prop::collection::vec(operations::step(), 1..STEPS);
    let done = runner.run(&(operations::settings(), history), |(set_up, history)| {
        let mut world = World::new(&set_up.0, set_up.1);
        for step in &history {
            world.run(step);
            world.compare();
        }
        world.wind_down();
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
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
