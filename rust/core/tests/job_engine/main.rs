//! The job engine over a backend that fails where a test says so.
//!
//! `KVFERRY_STRESS` multiplies the number of steps of the random histories and of the threads.

#![cfg(feature = "testing")]

mod backend;
mod blocking;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "only the numbers are needed")]
mod common;
mod faults;
mod history;
mod model;
mod order;
mod refusals;
mod script;
mod shutdown;
mod threads;
mod waiting;
mod world;
