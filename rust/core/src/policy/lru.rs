//! Least recently used, exactly as vLLM's `lru` decides (vLLM 0.32).
//!
//! A chunk is placed at the recent end when it is inserted, when it is touched, and when a request
//! that saw it finishes; pins do not move it. The victim is the least recently used chunk that
//! nobody holds. Every operation is O(1).

use std::collections::TryReserveError;

use super::order::TouchOrder;
use super::{Access, ClaimVictim, Policy, PolicyKind};
use crate::hash::Fingerprint;

const ONLY: u8 = 0;

/// See the module.
#[derive(Debug)]
pub(crate) struct LruPolicy {
    order: TouchOrder,
}

impl LruPolicy {
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            order: TouchOrder::new(capacity, 1)?,
        })
    }
}

impl Policy for LruPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lru
    }

    fn uses_ghosts(&self) -> bool {
        false
    }

    fn on_store_miss(&mut self, _key: Fingerprint) {}

    fn on_insert(&mut self, slot: u32, _key: Fingerprint) {
        self.order.insert(slot, ONLY, false);
    }

    fn on_touch(&mut self, slot: u32, _ready: bool) {
        self.order.touch(slot, ONLY);
    }

    fn on_touch_missing(&mut self, _key: Fingerprint) {}

    fn on_finish(&mut self, slot: u32, _access: Access) -> bool {
        self.order.touch(slot, ONLY);
        true
    }

    fn set_evictable(&mut self, slot: u32, evictable: bool) {
        self.order.set_evictable(slot, evictable);
    }

    fn is_evictable(&self, slot: u32) -> bool {
        self.order.is_evictable(slot)
    }

    fn evictable(&self) -> u32 {
        self.order.evictable(ONLY)
    }

    fn select(&mut self, n: usize, claim: ClaimVictim<'_>, victims: &mut Vec<u32>) -> bool {
        while victims.len() < n {
            let Some(slot) = self.order.oldest_evictable(ONLY) else {
                return false;
            };
            self.order.set_evictable(slot, false);
            if claim(slot) {
                victims.push(slot);
            }
        }
        true
    }

    fn on_evict(&mut self, slot: u32, _key: Fingerprint) {
        self.order.remove(slot);
    }

    fn on_remove(&mut self, slot: u32) {
        self.order.remove(slot);
    }

    fn clear(&mut self) {
        self.order.clear();
    }

    fn on_rebuild(&mut self, slot: u32, _list: u8) {
        self.order.insert(slot, ONLY, true);
    }

    fn list(&self, _slot: u32) -> u8 {
        ONLY
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes()
    }

    #[cfg(any(test, feature = "testing"))]
    fn lists(&self) -> super::Lists {
        super::Lists {
            t1: self.order.iter(ONLY).collect(),
            ..super::Lists::default()
        }
    }

    #[cfg(any(test, feature = "testing"))]
    fn check_invariants(&self) -> Result<(), String> {
        self.order.check_invariants()
    }
}
