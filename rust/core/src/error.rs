//! What can be wrong with a call. "It did not fit" is a result, not an error: see
//! [`crate::StoreOutcome`].

use std::collections::TryReserveError;

/// A key, or an array of keys, that no engine can hold. The call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A key of no bytes.
    #[error("key {index} is empty")]
    Empty {
        /// Its place in the call.
        index: usize,
    },
    /// A key longer than the engine's `key_bytes`.
    #[error("key {index} has {len} bytes, the engine holds at most {key_bytes}")]
    TooLong {
        /// Its place in the call.
        index: usize,
        /// Its length.
        len: usize,
        /// The engine's limit.
        key_bytes: usize,
    },
    /// An array whose length is no multiple of the width of its rows.
    #[error("{bytes} bytes are no whole number of keys of width {width}")]
    Rows {
        /// The length of the array.
        bytes: usize,
        /// The width of a row.
        width: usize,
    },
    /// As many positions as keys are needed.
    #[error("{positions} positions for {keys} keys")]
    Positions {
        /// How many positions were given.
        positions: usize,
        /// How many keys were given.
        keys: usize,
    },
}

/// Why an engine cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A capacity of no chunks, or of more than slot numbers can name.
    #[error("capacity {capacity} is not between 1 and {max} chunks")]
    Capacity {
        /// What was asked for.
        capacity: usize,
        /// The most chunks that one engine holds.
        max: u32,
    },
    /// A maximum key length of no bytes or of too many.
    #[error("key_bytes {key_bytes} is not between 1 and {max}")]
    KeyBytes {
        /// What was asked for.
        key_bytes: usize,
        /// The longest key that a record can hold.
        max: usize,
    },
    /// A group is four bytes of the key, or none.
    #[error("group_bytes {group_bytes} is neither 0 nor 4")]
    GroupBytes {
        /// What was asked for.
        group_bytes: usize,
    },
    /// An admission tracker that can hold nothing.
    #[error("max_tracker_size 0 with a store_threshold of {store_threshold} would store nothing")]
    Tracker {
        /// The threshold that was asked for.
        store_threshold: u32,
    },
    /// A touch log that can hold nothing, or more than is sensible.
    #[error("touch_log_capacity {touch_log_capacity} is not between 1 and {max}")]
    TouchLog {
        /// What was asked for.
        touch_log_capacity: usize,
        /// The most touches that may wait.
        max: usize,
    },
    /// The system has no memory for the arrays.
    #[error("no memory for {capacity} chunks")]
    Memory {
        /// What was asked for.
        capacity: usize,
        /// What the allocator said.
        source: TryReserveError,
    },
    /// A storage that another configuration made.
    #[error("the storage was made for capacity {capacity} and key_bytes {key_bytes}")]
    Storage {
        /// The capacity of the storage.
        capacity: u32,
        /// The key length of the storage.
        key_bytes: usize,
    },
}

/// Why a load cannot begin or end. The call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A key that no engine can hold.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The chunk is not in the tier.
    #[error("key {index} is not resident")]
    NotResident {
        /// Its place in the call.
        index: usize,
    },
    /// The chunk is still being stored.
    #[error("key {index} is pending: its store has not completed")]
    NotReady {
        /// Its place in the call.
        index: usize,
    },
    /// The chunk is not pinned by the owner, or not as often as the call names it.
    #[error("key {index} is not pinned")]
    NotPinned {
        /// Its place in the call.
        index: usize,
    },
    /// One slot holds at most 4095 pins.
    #[error("key {index} holds the most pins that a slot can have")]
    TooManyPins {
        /// Its place in the call.
        index: usize,
    },
    /// The access was made by another engine.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Why a store cannot be offered. The call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A key that no engine can hold.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The access was made by another engine.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// A request's access that does not belong to the engine it was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request access belongs to another engine")]
pub struct AccessError;
