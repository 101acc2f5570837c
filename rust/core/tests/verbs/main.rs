//! Every verb's contract through the public interface, one file a verb.

#![cfg(feature = "testing")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod capacity;
mod complete_store;
mod config;
mod drop_keys;
mod events;
mod keys;
mod load;
mod lookup;
mod overdue;
mod readers;
mod rebuild;
mod reset;
mod stats;
mod store;
mod touch;
