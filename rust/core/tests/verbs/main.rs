//! Every verb's contract through the public interface, one file a verb.

#[path = "../common/mod.rs"]
mod common;

mod capacity;
