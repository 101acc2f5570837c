//! The host backend from outside: what it copies, what it refuses, and what a fault leaves.
#![cfg(not(loom))]
#![expect(
    clippy::unwrap_used,
    reason = "what a test sets up is there, or the test fails"
)]

mod areas;
mod backend;
mod faults;
#[cfg(unix)]
mod fork;
