//! A slot: a place for one chunk in the host tier, and the word that says who may touch it.

mod links;
pub(crate) mod state;

pub(crate) use links::{PENDING, PINNED, SlotLists};

/// "No slot" in the arrays of slot numbers.
pub(crate) const NONE: u32 = u32::MAX;

/// The largest capacity: ring positions of three times the capacity must fit `u32`.
pub(crate) const MAX_CAPACITY: u32 = 1 << 30;
