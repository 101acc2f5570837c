//! `Manager::rebuild`: a new engine over the storage of one that is gone.

use super::Manager;
use crate::config::Config;
use crate::error::ConfigError;
use crate::shared::Storage;
use crate::slot::state::{self, Phase};
use crate::sync::Arc;

impl Manager {
    /// Gives the storage back, if no reader holds it any more.
    #[must_use]
    pub fn into_storage(self) -> Option<Storage> {
        Arc::try_unwrap(self.shared)
            .ok()
            .map(|shared| shared.storage)
    }

    /// An engine over a storage whose engine is gone: ready chunks are found again, in the order of
    /// their last touches and in their lists; what was pending, pinned or draining has no owner any
    /// more and is free. What is learned beyond that (ghosts, ARC's target, admission counts)
    /// starts anew. Chunks that the index has no room for are left out.
    ///
    /// O(capacity × log capacity).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the configuration is impossible, is not the one that the storage was made
    /// for, or there is no memory.
    pub fn rebuild(config: &Config, storage: Storage) -> Result<Self, ConfigError> {
        let (capacity, key_bytes) = (storage.records.capacity(), storage.records.key_bytes());
        if config.validate()? != capacity || config.key_bytes != key_bytes {
            return Err(ConfigError::Storage {
                capacity,
                key_bytes,
            });
        }
        let mut manager = Self::over(config, storage)?;
        manager.shared.storage.index.clear();
        let mut kept = Vec::new();
        let mut freed = Vec::new();
        while let Some(slot) = manager.slots.pop_free() {
            let state = state::load(manager.records().state(slot));
            let (touch, list) = manager.records().read_stamp(slot);
            match state.phase() {
                Phase::Ready | Phase::Evicting => kept.push((touch, slot, list)),
                Phase::Free | Phase::Pending | Phase::Draining => freed.push(slot),
            }
        }
        kept.sort_unstable();
        for (_, slot, list) in kept {
            if !manager.take_over(slot, list) {
                freed.push(slot);
            }
        }
        for &slot in &freed {
            // Free slots too: nothing is left of a word that no transition wrote.
            state::free(manager.records().state(slot));
        }
        // The lowest slot is the next one, as in an engine that is new.
        freed.sort_unstable_by(|a, b| b.cmp(a));
        freed
            .into_iter()
            .for_each(|slot| manager.slots.push_free(slot));
        manager.publish();
        Ok(manager)
    }

    /// Enters a ready slot into index and order; false if its key is there already, is none that
    /// this engine wrote, or the index has no room.
    fn take_over(&mut self, slot: u32, list: u8) -> bool {
        let mut key = Vec::new();
        self.records().read_key(slot, &mut key);
        let storage = &self.shared.storage;
        let hash = storage.hasher.index_hash(&key);
        // Pins of before belong to nobody: the generation ends them, and the slot is ready again in
        // the next one.
        state::free(storage.records.state(slot));
        if key.is_empty() || storage.find_one(&key).slot().is_some() {
            return false;
        }
        let journal = &mut self.scratch.journal;
        journal.begin();
        if storage.index.insert(hash, slot, journal).is_err() {
            return false;
        }
        let generation = state::begin_store(storage.records.state(slot));
        state::publish(storage.records.state(slot), generation);
        if storage.find_one(&key).slot() != Some(slot) {
            storage.index.remove(hash, slot);
            return false;
        }
        self.policy.on_rebuild(slot, list);
        self.stamp(slot);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
