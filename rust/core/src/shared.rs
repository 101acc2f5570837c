//! What the owner and the readers of one engine share.

use std::collections::TryReserveError;
use std::ops::ControlFlow;

use crossbeam_queue::ArrayQueue;

use crate::config::Config;
use crate::error::ConfigError;
use crate::hash::{KeyHasher, random_u64};
use crate::index::{Found, Index};
use crate::key::Keys;
use crate::notice::Notices;
use crate::slot::state::{self, Phase, Unpin};
use crate::stats::{Published, Stats};
use crate::storage::Records;
use crate::sync::{Counter, Ordering};

/// The arrays that readers see, apart from the engine that works on them.
///
/// An engine takes a storage over with [`crate::Manager::rebuild`].
#[derive(Debug)]
pub struct Storage {
    pub(crate) records: Records,
    pub(crate) index: Index,
    pub(crate) hasher: KeyHasher,
}

impl Storage {
    /// Zeroed arrays on the heap for the capacity and key length of `config`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the configuration is impossible or there is no memory.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let capacity = config.validate()?;
        let build = || {
            Ok(Self {
                records: Records::new(capacity, config.key_bytes)?,
                index: Index::new(capacity)?,
                hasher: KeyHasher::new(config.hashing),
            })
        };
        build().map_err(|source| no_memory(config, source))
    }

    pub(crate) fn find_each<B>(
        &self,
        keys: Keys<'_>,
        visit: impl FnMut(usize, Found) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.index
            .find_each(&self.records, self.hasher, keys, visit)
    }

    pub(crate) fn find_one(&self, key: &[u8]) -> Found {
        self.index.find_one(&self.records, self.hasher, key)
    }

    /// The longest leading run of ready keys, and of ready or pending ones.
    pub(crate) fn prefix(&self, keys: Keys<'_>) -> PrefixHits {
        let mut hits = PrefixHits::default();
        let _: ControlFlow<()> = self.find_each(keys, |i, found| {
            if found.slot().is_none() {
                return ControlFlow::Break(());
            }
            hits.known = i + 1;
            if hits.ready == i && found.is_ready() {
                hits.ready = i + 1;
            }
            ControlFlow::Continue(())
        });
        hits
    }

    /// One answer a key.
    pub(crate) fn each(&self, keys: Keys<'_>, out: &mut Vec<LookupResult>) {
        out.clear();
        out.reserve(keys.len());
        let _: ControlFlow<()> = self.find_each(keys, |_, found| {
            out.push(LookupResult::from(found));
            ControlFlow::Continue(())
        });
    }
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LookupResult {
    /// Not in the tier.
    Miss = 0,
    /// Stored, and may be loaded.
    Hit = 1,
    /// Being stored: ask again later, or compute.
    HitPending = 2,
}

impl From<Found> for LookupResult {
    fn from(found: Found) -> Self {
        match found {
            Found::Miss(_) => Self::Miss,
            Found::Slot(_, state) if state.phase() == Phase::Pending => Self::HitPending,
            Found::Slot(..) => Self::Hit,
        }
    }
}

/// Leading runs of a call's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixHits {
    /// How many leading keys may be loaded.
    pub ready: usize,
    /// How many leading keys are stored or being stored.
    pub known: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) storage: Storage,
    pub(crate) notices: Notices,
    /// Touches by readers that the owner has not applied: slot in the upper half, generation in the
    /// lower.
    pub(crate) touches: ArrayQueue<u64>,
    pub(crate) touches_dropped: Counter,
    pub(crate) unpins_stale: Counter,
    pub(crate) published: Published,
    pub(crate) incarnation: u64,
    pub(crate) key_bytes: usize,
}

impl Shared {
    pub(crate) fn new(config: &Config, storage: Storage) -> Result<Self, ConfigError> {
        let notices = Notices::new(storage.records.capacity());
        Ok(Self {
            notices: notices.map_err(|source| no_memory(config, source))?,
            touches: ArrayQueue::new(config.touch_log_capacity),
            touches_dropped: Counter::new(0),
            unpins_stale: Counter::new(0),
            published: Published::new(),
            incarnation: random_u64(),
            key_bytes: config.key_bytes,
            storage,
        })
    }

    /// Releases a pin, whoever holds it, and leaves a notice where the owner waits for one.
    pub(crate) fn unpin(&self, slot: u32, generation: u32) -> Unpin {
        unpin_and_notify(&self.storage.records, &self.notices, slot, generation)
    }

    pub(crate) fn stats(&self) -> Stats {
        // Relaxed: counters.
        Stats {
            touches_dropped: self.touches_dropped.load(Ordering::Relaxed),
            unpins_stale: self.unpins_stale.load(Ordering::Relaxed),
            ..self.published.read()
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.storage.records.memory_bytes()
            + self.storage.index.memory_bytes()
            + self.notices.memory_bytes()
            + self.touches.capacity() * 2 * size_of::<u64>()
    }
}

/// The last unpin of a parked slot is followed by a notice; the slot stays parked until the owner
/// has seen it.
pub(crate) fn unpin_and_notify(
    records: &Records,
    notices: &Notices,
    slot: u32,
    generation: u32,
) -> Unpin {
    let unpinned = state::unpin(records.state(slot), generation);
    if unpinned == Unpin::LastOfParked && !crate::mutant::is(crate::mutant::Mutant::NoNotice) {
        notices.notify(slot);
    }
    unpinned
}

pub(crate) fn no_memory(config: &Config, source: TryReserveError) -> ConfigError {
    ConfigError::Memory {
        capacity: config.capacity,
        source,
    }
}
