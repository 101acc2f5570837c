//! What one request saw.

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::Key;

#[derive(Clone, Debug, Default)]
pub(crate) struct AccessModel {
    epoch: u64,
    pub(crate) positions: BTreeMap<Key, u32>,
    /// In the order of their first time.
    pub(crate) seen: Vec<Key>,
    pub(crate) inserted: BTreeSet<Key>,
    pub(crate) reused: BTreeSet<Key>,
    pub(crate) store_missed: BTreeSet<Key>,
}

impl AccessModel {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            ..Self::default()
        }
    }

    /// Whether a reset came since it was used last.
    pub(crate) fn is_stale(&self, epoch: u64) -> bool {
        self.epoch != epoch
    }

    /// What was seen before a reset is forgotten; positions belong to the request and stay.
    pub(crate) fn enter(&mut self, epoch: u64) {
        if self.is_stale(epoch) {
            let positions = std::mem::take(&mut self.positions);
            *self = Self {
                positions,
                ..Self::new(epoch)
            };
        }
    }

    pub(crate) fn set_positions(&mut self, keys: &[Key], positions: &[u32]) {
        for (key, &position) in keys.iter().zip(positions) {
            if position == u32::MAX {
                self.positions.remove(key);
            } else {
                self.positions.insert(key.clone(), position);
            }
        }
    }

    pub(crate) fn see(&mut self, key: &Key) {
        if !self.seen.contains(key) {
            self.seen.push(key.clone());
        }
    }

    /// Whether that is a hit: not what the request stored itself, and once only.
    pub(crate) fn reuse(&mut self, key: &Key) -> bool {
        !self.inserted.contains(key) && self.reused.insert(key.clone())
    }

    /// Per group by position if all of its keys have one, and all groups merged if all keys have
    /// one; equal positions keep their order.
    pub(crate) fn in_prefix_order(&self, group_bytes: usize) -> Vec<Key> {
        let mut groups: BTreeMap<u32, Vec<Key>> = BTreeMap::new();
        for key in &self.seen {
            groups
                .entry(group(key, group_bytes))
                .or_default()
                .push(key.clone());
        }
        let all = groups.into_values().flat_map(|keys| self.sorted(keys));
        self.sorted(all.collect())
    }

    fn sorted(&self, mut keys: Vec<Key>) -> Vec<Key> {
        if keys.iter().all(|key| self.positions.contains_key(key)) {
            keys.sort_by_key(|key| self.positions[key]);
        }
        keys
    }
}

/// The last bytes of a key, big-endian; all of a key that is shorter.
fn group(key: &[u8], group_bytes: usize) -> u32 {
    let tail = &key[key.len().saturating_sub(group_bytes)..];
    tail.iter()
        .fold(0, |group, &byte| group * 256 + u32::from(byte))
}
