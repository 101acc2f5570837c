//! Adaptive replacement, exactly as vLLM's `arc` decides (vLLM 0.32).
//!
//! Source: N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST
//! 2003, in vLLM's variant. T1 holds chunks seen once, T2 those seen again; B1 and B2 remember,
//! without data, what left each; `target_t1_size` moves towards the list whose ghosts come back.
//! Deviations from the paper, rule by rule:
//!
//! * D1. A key that comes back from a ghost list enters T1, not T2. The ghost hit only moves the
//!   target, and the ghost leaves its list when the key is inserted.
//! * D2. A ghost hit is seen when the key is offered or touched, not when it is inserted, and once
//!   per request and key; until the insertion the ghost stays, at the recent end of its list.
//! * D3. Each ghost list is trimmed to the capacity by itself; the paper bounds |T1| + |B1| by it.
//! * D4. The victim comes from T1 while T1 holds at least `floor(target_t1_size)` chunks, pinned
//!   and pending ones included, and from T2 otherwise; where the preferred list has no chunk that
//!   nobody holds, from the other one. The paper has a tie rule for a hit in B2 instead.
//! * D5. The victims of one call are chosen one by one against the size that T1 will have, and
//!   leave together.
//! * D6. A touch of a pending chunk keeps it in T1: being stored is not being used.
//!
//! Every operation is O(1). Memory: 18 bytes a chunk for the order, 32 bytes a ghost, two times the
//! capacity of ghosts.

use std::collections::TryReserveError;

use super::ghost::GhostLists;
use super::order::TouchOrder;
use super::{Access, ClaimVictim, Policy, PolicyKind};
use crate::hash::Fingerprint;

const T1: u8 = 0;
const T2: u8 = 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct ArcPolicy {
    order: TouchOrder,
    ghosts: GhostLists,
    target_t1_size: f64,
    capacity: u32,
}

impl ArcPolicy {
    pub(crate) fn new(capacity: u32) -> Result<Self, TryReserveError> {
        Ok(Self {
            order: TouchOrder::new(capacity, 2)?,
            ghosts: GhostLists::new(capacity)?,
            target_t1_size: 0.0,
            capacity,
        })
    }

    /// A key in B1 asks for a larger T1, one in B2 for a smaller one, by the ratio of the lists and
    /// by one at least.
    fn adapt(&mut self, key: Fingerprint) {
        let Some(list) = self.ghosts.find(key) else {
            return;
        };
        let (b1, b2) = (
            f64::from(self.ghosts.len(T1)),
            f64::from(self.ghosts.len(T2)),
        );
        self.target_t1_size = if list == T1 {
            (self.target_t1_size + (b2 / b1).max(1.0)).min(f64::from(self.capacity))
        } else {
            (self.target_t1_size - (b1 / b2).max(1.0)).max(0.0)
        };
        self.ghosts.promote(key);
    }

    fn take_oldest(&mut self, list: u8, claim: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        while let Some(slot) = self.order.oldest_evictable(list) {
            self.order.set_evictable(slot, false);
            if claim(slot) {
                return Some(slot);
            }
        }
        None
    }
}

impl Policy for ArcPolicy {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Arc
    }

    fn uses_ghosts(&self) -> bool {
        true
    }

    fn warm(&self, keys: &[Fingerprint]) {
        self.ghosts.warm(keys);
    }

    fn on_store_miss(&mut self, key: Fingerprint) {
        self.adapt(key);
    }

    fn on_insert(&mut self, slot: u32, key: Fingerprint) {
        self.order.insert(slot, T1, false);
        self.ghosts.remove(key);
    }

    fn on_touch(&mut self, slot: u32, ready: bool) {
        let list = if ready { T2 } else { self.list(slot) };
        self.order.touch(slot, list);
    }

    fn on_touch_missing(&mut self, key: Fingerprint) {
        self.adapt(key);
    }

    fn on_finish(&mut self, slot: u32, access: Access) -> bool {
        let list = match access {
            Access::Seen => return false,
            Access::Inserted => self.list(slot),
            Access::Reused => T2,
        };
        self.order.touch(slot, list);
        true
    }

    fn set_evictable(&mut self, slot: u32, evictable: bool) {
        self.order.set_evictable(slot, evictable);
    }

    fn is_evictable(&self, slot: u32) -> bool {
        self.order.is_evictable(slot)
    }

    fn evictable(&self) -> u32 {
        self.order.evictable(T1) + self.order.evictable(T2)
    }

    fn select(&mut self, n: usize, claim: ClaimVictim<'_>, victims: &mut Vec<u32>) -> bool {
        let mut t1_size = f64::from(self.order.len(T1));
        while victims.len() < n {
            let preferred = if t1_size >= self.target_t1_size.floor() {
                T1
            } else {
                T2
            };
            let taken = self
                .take_oldest(preferred, claim)
                .map(|slot| (slot, preferred))
                .or_else(|| {
                    self.take_oldest(1 - preferred, claim)
                        .map(|slot| (slot, 1 - preferred))
                });
            let Some((slot, list)) = taken else {
                return false;
            };
            if list == T1 {
                t1_size -= 1.0;
            }
            victims.push(slot);
        }
        true
    }

    fn on_evict(&mut self, slot: u32, key: Fingerprint) {
        let list = self.list(slot);
        self.order.remove(slot);
        self.ghosts.push(list, key);
    }

    fn on_remove(&mut self, slot: u32) {
        self.order.remove(slot);
    }

    fn clear(&mut self) {
        self.order.clear();
        self.ghosts.clear();
        self.target_t1_size = 0.0;
    }

    fn on_rebuild(&mut self, slot: u32, list: u8) {
        self.order.insert(slot, list & 1, true);
    }

    fn list(&self, slot: u32) -> u8 {
        self.order.list_of(slot).unwrap_or(T1)
    }

    fn ghosts(&self) -> u32 {
        self.ghosts.len(T1) + self.ghosts.len(T2)
    }

    fn target_t1_size(&self) -> Option<f64> {
        Some(self.target_t1_size)
    }

    fn memory_bytes(&self) -> usize {
        self.order.memory_bytes() + self.ghosts.memory_bytes()
    }

    #[cfg(any(test, feature = "testing"))]
    fn lists(&self) -> super::Lists {
        super::Lists {
            t1: self.order.iter(T1).collect(),
            t2: self.order.iter(T2).collect(),
            b1: self.ghosts.iter(T1).collect(),
            b2: self.ghosts.iter(T2).collect(),
        }
    }

    #[cfg(any(test, feature = "testing"))]
    fn check_invariants(&self) -> Result<(), String> {
        self.order.check_invariants()?;
        self.ghosts.check_invariants()?;
        let bound = f64::from(self.capacity);
        if !(0.0..=bound).contains(&self.target_t1_size) {
            return Err(format!(
                "target_t1_size {} outside 0..={bound}",
                self.target_t1_size
            ));
        }
        Ok(())
    }
}
