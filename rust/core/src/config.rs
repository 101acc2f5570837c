//! How an engine is set up. All validation happens in [`Config::validate`], before anything is
//! allocated.

use crate::error::ConfigError;
use crate::hash::KeyHashing;
use crate::policy::PolicyKind;
use crate::slot::MAX_CAPACITY;

/// The longest key that can be asked for.
pub(crate) const MAX_KEY_BYTES: usize = 1024;

/// The most touches by readers that may wait. Their queue takes 16 bytes a touch, and no allocator
/// can refuse it.
pub(crate) const MAX_TOUCH_LOG: usize = 1 << 20;

/// The set-up of a [`crate::Manager`].
///
/// ```
/// use kvferry::{Config, Manager, PolicyKind};
///
/// let manager = Manager::new(Config::new(4096).policy(PolicyKind::Arc).events(true))?;
/// assert_eq!(manager.stats().free, 4096);
/// # Ok::<(), kvferry::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) capacity: usize,
    pub(crate) policy: PolicyKind,
    pub(crate) key_bytes: usize,
    pub(crate) group_bytes: usize,
    pub(crate) hashing: KeyHashing,
    pub(crate) store_threshold: u32,
    pub(crate) max_tracker_size: usize,
    pub(crate) events: bool,
    pub(crate) max_event_keys: usize,
    pub(crate) touch_log_capacity: usize,
    pub(crate) pending_timeout_us: Option<u64>,
}

impl Config {
    /// LRU over `capacity` chunks, with keys of at most 36 bytes of which the last four are the
    /// group.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            policy: PolicyKind::Lru,
            key_bytes: 36,
            group_bytes: 4,
            hashing: KeyHashing::Random,
            store_threshold: 1,
            max_tracker_size: 64_000,
            events: false,
            max_event_keys: 1 << 20,
            touch_log_capacity: 1 << 14,
            pending_timeout_us: None,
        }
    }

    /// Which chunks leave when the tier is full.
    #[must_use]
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// The longest key, 1 to 1024 bytes. Up to 40 bytes, a chunk's record is one cache line.
    #[must_use]
    pub fn key_bytes(mut self, key_bytes: usize) -> Self {
        self.key_bytes = key_bytes;
        self
    }

    /// How many bytes at the end of a key are its group: 4 (vLLM's `OffloadKey`) or 0.
    #[must_use]
    pub fn group_bytes(mut self, group_bytes: usize) -> Self {
        self.group_bytes = group_bytes;
        self
    }

    /// How keys are hashed.
    #[must_use]
    pub fn hashing(mut self, hashing: KeyHashing) -> Self {
        self.hashing = hashing;
        self
    }

    /// A key is stored once it has been offered this often. 0 and 1 store at once.
    #[must_use]
    pub fn store_threshold(mut self, store_threshold: u32) -> Self {
        self.store_threshold = store_threshold;
        self
    }

    /// How many keys the admission tracker remembers, least recently offered forgotten first.
    #[must_use]
    pub fn max_tracker_size(mut self, max_tracker_size: usize) -> Self {
        self.max_tracker_size = max_tracker_size;
        self
    }

    /// Whether stored, removed and cleared events are kept for [`crate::Manager::take_events`].
    #[must_use]
    pub fn events(mut self, events: bool) -> Self {
        self.events = events;
        self
    }

    /// How many keys events may hold until they are taken. Beyond that they are dropped and
    /// counted.
    #[must_use]
    pub fn max_event_keys(mut self, max_event_keys: usize) -> Self {
        self.max_event_keys = max_event_keys;
        self
    }

    /// How many touches by readers may wait for the owner, 1 to 1,048,576. Beyond that they are
    /// dropped and counted.
    #[must_use]
    pub fn touch_log_capacity(mut self, touch_log_capacity: usize) -> Self {
        self.touch_log_capacity = touch_log_capacity;
        self
    }

    /// How long a store may be pending before [`crate::Manager::expire_pending`] gives it up; never
    /// by default.
    #[must_use]
    pub fn pending_timeout_us(mut self, pending_timeout_us: Option<u64>) -> Self {
        self.pending_timeout_us = pending_timeout_us;
        self
    }

    /// The capacity as a slot count, once everything is found to be possible.
    pub(crate) fn validate(&self) -> Result<u32, ConfigError> {
        if self.key_bytes == 0 || self.key_bytes > MAX_KEY_BYTES {
            return Err(ConfigError::KeyBytes {
                key_bytes: self.key_bytes,
                max: MAX_KEY_BYTES,
            });
        }
        if !matches!(self.group_bytes, 0 | 4) {
            return Err(ConfigError::GroupBytes {
                group_bytes: self.group_bytes,
            });
        }
        if self.store_threshold > 1 && self.max_tracker_size == 0 {
            return Err(ConfigError::Tracker {
                store_threshold: self.store_threshold,
            });
        }
        if !(1..=MAX_TOUCH_LOG).contains(&self.touch_log_capacity) {
            return Err(ConfigError::TouchLog {
                touch_log_capacity: self.touch_log_capacity,
                max: MAX_TOUCH_LOG,
            });
        }
        match u32::try_from(self.capacity) {
            Ok(capacity) if (1..=MAX_CAPACITY).contains(&capacity) => Ok(capacity),
            _ => Err(ConfigError::Capacity {
                capacity: self.capacity,
                max: MAX_CAPACITY,
            }),
        }
    }
}
