//! Which chunks leave when the tier is full.
//!
//! One policy per file behind one trait, chosen when the engine is built. A policy is owner-only:
//! it sees slots, never keys; a key that has left is known by its fingerprint alone. Nothing here
//! is O(resident) per call.

mod arc;
mod bitmap;
pub(crate) mod flat;
mod ghost;
mod lru;
mod order;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::TryReserveError;
use std::fmt::{self, Debug};
use std::str::FromStr;

use crate::hash::Fingerprint;

/// The policies that an engine can be built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Least recently used, deciding exactly as vLLM's `lru`.
    Lru,
    /// Adaptive replacement, deciding exactly as vLLM's `arc`.
    Arc,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::Lru, Self::Arc];

    /// The name in configurations and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {name:?}: {}", known())]
pub struct UnknownPolicy {
    name: String,
}

fn known() -> String {
    let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
    format!("known are {}", names.join(", "))
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy {
            name: name.to_owned(),
        })
    }
}

/// A victim that the policy proposes; the answer is whether the owner could claim it. A victim that
/// could not be claimed is held by a reader: it leaves the evictable set until
/// [`Policy::set_evictable`] brings it back.
pub(crate) type ClaimVictim<'a> = &'a mut dyn FnMut(u32) -> bool;

/// What the manager tells a policy, and asks it.
///
/// The caller guarantees that a slot is inserted before it is named otherwise, and not after it was
/// removed. A policy MUST NOT propose a slot that is not evictable, nor one twice in a call.
pub(crate) trait Policy: Debug + Send {
    fn kind(&self) -> PolicyKind;

    /// Whether the fingerprints are used; where not, the caller passes zero and saves the hash.
    fn uses_ghosts(&self) -> bool;

    /// Calls with these keys follow: a hint to bring what they read into the processor's cache.
    fn warm(&self, _keys: &[Fingerprint]) {}

    /// A key that is offered and not resident, once per request and key, before anything is
    /// inserted. Tail first.
    fn on_store_miss(&mut self, key: Fingerprint);

    /// A chunk begins to be stored: at the most recent end, not evictable.
    fn on_insert(&mut self, slot: u32, key: Fingerprint);

    /// A touch from outside any request. Tail first.
    fn on_touch(&mut self, slot: u32, ready: bool);

    /// A touch of a key that is not resident.
    fn on_touch_missing(&mut self, key: Fingerprint);

    /// A request that saw this chunk has finished. Tail first. Returns whether the chunk has moved.
    fn on_finish(&mut self, slot: u32, access: Access) -> bool;

    /// The chunk may, or may not, be proposed as a victim.
    fn set_evictable(&mut self, slot: u32, evictable: bool);

    fn is_evictable(&self, slot: u32) -> bool;

    /// How many chunks may be proposed.
    fn evictable(&self) -> u32;

    /// Proposes chunks until `n` are claimed and appended to `victims`, in the order of their
    /// leaving; false if there are not so many. Those in `victims` are not evictable any more and
    /// are either removed or made evictable again.
    fn select(&mut self, n: usize, claim: ClaimVictim<'_>, victims: &mut Vec<u32>) -> bool;

    /// A victim leaves, and is remembered if the policy has ghosts.
    fn on_evict(&mut self, slot: u32, key: Fingerprint);

    /// A chunk leaves without being remembered: its store failed, or it was dropped.
    fn on_remove(&mut self, slot: u32);

    /// Everything leaves, what was learned too.
    fn clear(&mut self);

    /// Takes a chunk over from a storage, least recently used first.
    fn on_rebuild(&mut self, slot: u32, list: u8);

    /// The list of a resident chunk: 0 for T1, 1 for T2.
    fn list(&self, slot: u32) -> u8;

    /// How many keys are remembered without data.
    fn ghosts(&self) -> u32 {
        0
    }

    /// ARC's adaptive target.
    fn target_t1_size(&self) -> Option<f64> {
        None
    }

    fn memory_bytes(&self) -> usize;

    /// The contents, for tests and inspection.
    #[cfg(any(test, feature = "testing"))]
    fn lists(&self) -> Lists;

    #[cfg(any(test, feature = "testing"))]
    fn check_invariants(&self) -> Result<(), String>;
}

/// How a request used a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Offered or found pending, neither stored nor reused by this request.
    Seen,
    /// Stored by this request.
    Inserted,
    /// There, and ready, before this request stored it.
    Reused,
}

/// The lists of a policy, least recently used first. A policy with one list uses `t1`.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    /// Slots seen once.
    pub(crate) t1: Vec<u32>,
    /// Slots seen again.
    pub(crate) t2: Vec<u32>,
    /// Fingerprints of keys that left `t1`.
    pub(crate) b1: Vec<u128>,
    /// Fingerprints of keys that left `t2`.
    pub(crate) b2: Vec<u128>,
}

/// Builds the policy of an engine.
pub(crate) fn build(kind: PolicyKind, capacity: u32) -> Result<Box<dyn Policy>, TryReserveError> {
    Ok(match kind {
        PolicyKind::Lru => Box::new(lru::LruPolicy::new(capacity)?),
        PolicyKind::Arc => Box::new(arc::ArcPolicy::new(capacity)?),
    })
}
