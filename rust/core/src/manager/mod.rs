//! The owner: the only one that stores, evicts and forgets.
//!
//! One file per verb. `&mut self` is the lock: exclusive by type. Readers work beside it on the
//! shared arrays ([`crate::Reader`]); what only the owner sees is plain memory.
//!
//! Invariants, checked by `check_invariants` under the feature `testing`:
//!
//! * I1. Every slot is on the free list, or has a phase other than `Free`.
//! * I2. A slot is in the policy's order exactly while it is `Pending` or `Ready`, and then the
//!   index leads from its key to it, and to no other slot.
//! * I3. A slot is evictable exactly while it is `Ready`, not parked, and not pinned by the owner.
//! * I4. `owner_pins` counts the owner's pins of a slot, [`WRITER`] stands for the transfer of a
//!   cancelled store. The pins in the state word are never fewer.
//! * I5. A pending slot is in the list of pending ones, a slot that the owner has pinned in that of
//!   pinned ones.
//!
//! Cost: every verb is O(keys in the call), amortised, whatever is resident or pinned. Exceptions:
//! `reset_cache` and [`Manager::rebuild`] go over the whole tier. A pin that a *reader* took is
//! found by the eviction that meets it: the chunk is passed over once, parked, and comes back by a
//! notice when its last pin goes. The order stays exact, so that one store can meet as many such
//! chunks as readers have pinned since; each is met once per pin.

mod complete;
#[cfg(any(test, feature = "testing"))]
mod inspect;
mod load;
mod lookup;
mod rebuild;
mod remove;
mod request;
mod reset;
mod settle;
mod store;

use std::fmt;

use crate::access::{EntryId, RequestAccess};
use crate::admission::Tracker;
use crate::config::Config;
use crate::dedupe::Dedupe;
use crate::error::{AccessError, ConfigError};
use crate::event::{EventKind, EventQueue, Events};
use crate::guess::Guess;
use crate::hash::Fingerprint;
use crate::index::{Found, Journal};
use crate::key::KeyList;
use crate::policy::flat::filled;
use crate::policy::{self, Policy, PolicyKind};
use crate::reader::Reader;
use crate::shared::{Shared, Storage, no_memory};
use crate::slot::{PENDING, PINNED, SlotLists};
use crate::stats::Stats;
use crate::storage::Records;
use crate::sync::Arc;

#[cfg(any(test, feature = "testing"))]
pub use inspect::DebugLists;
pub use reset::ResetMode;
pub use store::{StoreOutcome, StoreOutput, StoreRejected};

/// In `owner_pins`: the slot belongs to the transfer of a store that was cancelled.
const WRITER: u16 = u16::MAX;

/// The bookkeeping engine. See the [crate] for how its verbs fit together.
pub struct Manager {
    shared: Arc<Shared>,
    guess: Guess,
    policy: Box<dyn Policy>,
    slots: SlotLists,
    owner_pins: Box<[u16]>,
    /// One bit a slot: it leaves as soon as nobody holds it.
    dropped: Box<[u64]>,
    tracker: Option<Tracker>,
    events: Option<EventQueue>,
    counters: Stats,
    clock: u64,
    touch_number: u64,
    scratch: Scratch,
    pending_timeout_us: Option<u64>,
    group_bytes: usize,
}

/// Space that calls use again and again, so that the steady state allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    found: Vec<Found>,
    missing: Vec<Missing>,
    victims: Vec<u32>,
    protected: Vec<u32>,
    offered: Vec<Fingerprint>,
    leaving: Leaving,
    journal: Journal,
    dedupe: Dedupe,
    key: Vec<u8>,
}

/// The names of a few victims.
#[derive(Debug, Default)]
struct Leaving {
    hashes: Vec<u64>,
    fingerprints: Vec<Fingerprint>,
}

/// A key of a call that is to be stored.
#[derive(Clone, Copy, Debug)]
struct Missing {
    /// Its place in the call.
    index: usize,
    hash: u64,
    fingerprint: Fingerprint,
    /// Its entry in the access of the call, once it was recorded.
    entry: Option<EntryId>,
}

impl Manager {
    /// An empty engine.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the configuration is impossible or there is no memory.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let storage = Storage::new(&config)?;
        Self::over(&config, storage)
    }

    /// An engine over a storage whose index is empty and whose slots are all free.
    fn over(config: &Config, storage: Storage) -> Result<Self, ConfigError> {
        let capacity = config.validate()?;
        let shared = Arc::new(Shared::new(config, storage)?);
        let build = || {
            Ok(Self {
                shared,
                guess: Guess::new(),
                policy: policy::build(config.policy, capacity)?,
                slots: SlotLists::new(capacity)?,
                owner_pins: filled(capacity as usize, 0)?,
                dropped: filled((capacity as usize).div_ceil(64), 0)?,
                tracker: (config.store_threshold > 1)
                    .then(|| Tracker::new(config.store_threshold, config.max_tracker_size)),
                events: config
                    .events
                    .then(|| EventQueue::new(config.max_event_keys)),
                counters: Stats {
                    capacity: u64::from(capacity),
                    ..Stats::default()
                },
                clock: 0,
                touch_number: 0,
                scratch: Scratch::default(),
                pending_timeout_us: config.pending_timeout_us,
                group_bytes: config.group_bytes,
            })
        };
        let mut manager = build().map_err(|source| no_memory(config, source))?;
        manager.publish();
        Ok(manager)
    }

    /// A handle for other threads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.shared))
    }

    /// How many chunks the tier holds at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.records().capacity() as usize
    }

    /// The policy that the engine was built with.
    #[must_use]
    pub fn policy(&self) -> PolicyKind {
        self.policy.kind()
    }

    /// The longest key that the engine holds.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.shared.key_bytes
    }

    /// ARC's adaptive target, in chunks; `None` for other policies.
    #[must_use]
    pub fn target_t1_size(&self) -> Option<f64> {
        self.policy.target_t1_size()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The bytes that the engine occupies: records, index, order, ghosts and lists. Nothing of it
    /// grows while it runs but the admission tracker, up to its bound, and the scratch space, up to
    /// the largest call.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shared.memory_bytes()
            + self.policy.memory_bytes()
            + self.slots.memory_bytes()
            + size_of_val(&*self.owner_pins)
            + size_of_val(&*self.dropped)
            + self.tracker.as_ref().map_or(0, Tracker::memory_bytes)
    }

    /// Tells the engine the time. It never reads a clock itself; a time before the last one is
    /// taken as the last one. What readers gave back and touched meanwhile is taken up, so that an
    /// owner that waits for it needs no other verb.
    pub fn advance_to(&mut self, now_us: u64) {
        self.clock = self.clock.max(now_us);
        self.settle_readers();
        self.publish();
    }

    /// The events since the last call, in causal order; none unless the configuration asked for
    /// them.
    pub fn take_events(&mut self) -> Events {
        self.events
            .as_mut()
            .map(EventQueue::take)
            .unwrap_or_default()
    }

    fn records(&self) -> &Records {
        &self.shared.storage.records
    }

    fn emit(&mut self, kind: EventKind, keys: KeyList) {
        if keys.is_empty() {
            return;
        }
        if let Some(events) = &mut self.events
            && !events.push(kind, keys)
        {
            self.counters.events_lost += 1;
        }
    }

    fn is_dropped(&self, slot: u32) -> bool {
        self.dropped[slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    fn set_dropped(&mut self, slot: u32, dropped: bool) {
        let (word, bit) = (&mut self.dropped[slot as usize / 64], 1 << (slot % 64));
        *word = if dropped { *word | bit } else { *word & !bit };
    }

    /// Notes that a slot was moved to the recent end, for whoever takes the storage over.
    fn stamp(&mut self, slot: u32) {
        self.touch_number += 1;
        self.records()
            .write_stamp(slot, self.touch_number, self.policy.list(slot));
    }

    /// An access of this engine, emptied if a reset came since it was used last.
    fn enter(&self, access: &mut RequestAccess) -> Result<(), AccessError> {
        if access.incarnation != self.shared.incarnation {
            return Err(AccessError);
        }
        access.enter_epoch(self.counters.epoch);
        Ok(())
    }

    /// Makes the numbers visible to other threads: at the end of every verb that changes one.
    fn publish(&mut self) {
        let age = |list| {
            self.slots
                .oldest(list, self.clock)
                .map_or(0, |(_, age)| age)
        };
        self.counters.longest_pin_us = age(PINNED);
        self.counters.longest_pending_us = age(PENDING);
        self.counters.free = u64::from(self.slots.free());
        self.counters.pending = u64::from(self.slots.len(PENDING));
        self.counters.pinned = u64::from(self.slots.len(PINNED));
        self.counters.evictable = u64::from(self.policy.evictable());
        self.counters.ghosts = u64::from(self.policy.ghosts());
        self.counters.target_t1_size = self.policy.target_t1_size();
        let used = self.counters.free + self.counters.pending + self.counters.draining;
        self.counters.ready = self.counters.capacity - used;
        self.shared.published.publish(&self.counters);
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager({} {})", self.policy.kind(), self.stats())
    }
}
