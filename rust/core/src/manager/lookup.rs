//! `lookup` and its batch forms, and `touch`.

use std::ops::ControlFlow;

use super::Manager;
use crate::error::KeyError;
use crate::index::Found;
use crate::key::{Keys, check_key};
use crate::shared::{LookupResult, PrefixHits};

impl Manager {
    /// Whether one chunk is in the tier. Never pins, never changes an order.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if no engine can hold the key.
    pub fn lookup(&self, key: &[u8]) -> Result<LookupResult, KeyError> {
        check_key(0, key.len(), self.shared.key_bytes)?;
        Ok(self.guess.find(&self.shared.storage, key).into())
    }

    /// The longest leading run of ready chunks, and of ready or pending ones.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held.
    pub fn lookup_prefix(&self, keys: Keys<'_>) -> Result<PrefixHits, KeyError> {
        keys.check(self.shared.key_bytes)?;
        Ok(self.shared.storage.prefix(keys))
    }

    /// One answer a key, into `out`: for sliding windows and prefetching.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held.
    pub fn lookup_each(&self, keys: Keys<'_>, out: &mut Vec<LookupResult>) -> Result<(), KeyError> {
        keys.check(self.shared.key_bytes)?;
        self.shared.storage.each(keys, out);
        Ok(())
    }

    /// "These chunks were used", for callers that have no requests: one access, applied tail first
    /// so that a head is always more recent than its tail. A pending chunk stays in T1. A key that
    /// ARC remembers as a ghost moves its target.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held; nothing is touched then.
    pub fn touch(&mut self, keys: Keys<'_>) -> Result<(), KeyError> {
        keys.check(self.shared.key_bytes)?;
        self.settle_readers();
        let mut found = std::mem::take(&mut self.scratch.found);
        self.find_all(keys, &mut found);
        for (i, found) in found.iter().enumerate().rev() {
            match *found {
                Found::Slot(slot, _) => {
                    self.policy.on_touch(slot, found.is_ready());
                    self.stamp(slot);
                }
                Found::Miss(_) if self.policy.uses_ghosts() => {
                    let key = self.shared.storage.hasher.fingerprint(keys.get(i));
                    self.policy.on_touch_missing(key);
                }
                Found::Miss(_) => {}
            }
        }
        self.scratch.found = found;
        self.publish();
        Ok(())
    }

    /// Looks all keys up, into `found`.
    pub(super) fn find_all(&self, keys: Keys<'_>, found: &mut Vec<Found>) {
        found.clear();
        found.reserve(keys.len());
        let _: ControlFlow<()> = self.shared.storage.find_each(keys, |_, f| {
            found.push(f);
            ControlFlow::Continue(())
        });
    }
}
