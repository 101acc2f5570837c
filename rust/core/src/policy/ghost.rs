//! ARC's ghost lists B1 and B2: fingerprints of evicted keys in exact LRU order.
//!
//! One flat array of nodes, the first half for B1 and the second for B2, so that a node's index
//! says its list and a list can never take the other's room. Each node is in the doubly linked list
//! of its LRU order, whose links are indices; a table leads from fingerprints to nodes.
//!
//! Invariants:
//!
//! 1. Each list holds at most `capacity` ghosts, all in its own half, linked both ways from its
//!    oldest to its newest.
//! 2. The table leads from the fingerprint of each ghost to its node, and to nothing else.
//! 3. No fingerprint is present twice, in one list or in both.
//! 4. A node of a half is either a ghost, or in that half's free list, or was not used since the
//!    last `clear`.
//!
//! Cost: expected O(1) per call, O(list) for `iter`, O(capacity) for `clear`. Memory: 32 bytes a
//! ghost, 24 of node and 8 of table. Nothing allocates after `new`, and with capacity 0 nothing
//! ever does. Owner-only: no atomics.
//!
//! A ghost is never lost to a full bucket of the table, since ARC's decisions depend on each. A
//! fingerprint is taken for the key: with 128 seeded bits two of 2^30 keys collide with a
//! probability near 2^-69, and a collision costs one misjudged adaptation, never a wrong hit. Own
//! design.

mod table;
#[cfg(test)]
mod tests;

use std::collections::TryReserveError;

use super::flat::{bounded_len, filled};
use super::order::List;
use table::{Bytes, Table};

/// No node.
const NIL: u32 = u32::MAX;
/// The largest capacity a list: all indices of two lists lie below [`NIL`].
const MAX_CAPACITY: u32 = NIL / 2;

/// One ghost. The fingerprint is kept as bytes: the alignment of a `u128` would cost 8 bytes more.
#[derive(Clone, Copy, Debug)]
struct Node {
    fingerprint: Bytes,
    older: u32,
    /// The next more recent ghost; in a free node, the next free one.
    newer: u32,
}

const VACANT: Node = Node {
    fingerprint: [0; 16],
    older: NIL,
    newer: NIL,
};

/// The ends of one LRU list and the unused nodes of its half.
#[derive(Clone, Copy, Debug)]
struct Lru {
    oldest: u32,
    newest: u32,
    len: u32,
    /// The first node of the free list.
    free: u32,
    /// Nodes of the half that were used since the last `clear`; the rest needs no free list.
    used: u32,
}

const NO_GHOSTS: Lru = Lru {
    oldest: NIL,
    newest: NIL,
    len: 0,
    free: NIL,
    used: 0,
};

/// Two bounded LRU lists of 128-bit fingerprints.
#[derive(Debug)]
pub(crate) struct GhostLists {
    nodes: Box<[Node]>,
    table: Table,
    lists: [Lru; 2],
    capacity: u32,
}

impl GhostLists {
    /// Builds two empty lists of at most `capacity_per_list` ghosts each.
    ///
    /// # Errors
    ///
    /// The allocator's refusal; a capacity of 2^31 or more is always refused.
    pub(crate) fn new(capacity_per_list: u32) -> Result<Self, TryReserveError> {
        let len = bounded_len(capacity_per_list, MAX_CAPACITY).saturating_mul(2);
        Ok(Self {
            nodes: filled(len, VACANT)?,
            table: Table::new(len)?,
            lists: [NO_GHOSTS; 2],
            capacity: capacity_per_list,
        })
    }

    /// Ghosts in `list`: 0 is B1, 1 is B2.
    pub(crate) fn len(&self, list: List) -> u32 {
        self.lists.get(usize::from(list)).map_or(0, |lru| lru.len)
    }

    /// The list that remembers `fingerprint`.
    pub(crate) fn find(&self, fingerprint: u128) -> Option<List> {
        self.locate(fingerprint).map(|at| self.list_of(at))
    }

    /// Adds `fingerprint`, which is in neither list, at the MRU end of `list`, which forgets its
    /// oldest ghost if it is full.
    pub(crate) fn push(&mut self, list: List, fingerprint: u128) {
        debug_assert!(list < 2, "list {list} is B1 or B2");
        if self.capacity == 0 || list > 1 {
            return;
        }
        debug_assert!(
            self.find(fingerprint).is_none(),
            "fingerprint {fingerprint:032x} is in neither list"
        );
        if self.len(list) == self.capacity {
            self.release(self.lists[usize::from(list)].oldest);
        }
        let at = self.take_node(list);
        let fingerprint = fingerprint.to_le_bytes();
        self.nodes[at as usize] = Node {
            fingerprint,
            ..VACANT
        };
        self.table.enter(fingerprint, at);
        self.link_newest(at);
    }

    /// Moves `fingerprint` to the MRU end of the list that it is in, and tells whether it is in
    /// one.
    pub(crate) fn promote(&mut self, fingerprint: u128) -> bool {
        let Some(at) = self.locate(fingerprint) else {
            return false;
        };
        self.unlink(at);
        self.link_newest(at);
        true
    }

    /// Forgets `fingerprint`, and tells whether it was present.
    pub(crate) fn remove(&mut self, fingerprint: u128) -> bool {
        let Some(at) = self.locate(fingerprint) else {
            return false;
        };
        self.release(at);
        true
    }

    /// Brings what the next calls with these fingerprints read into the processor's cache: their
    /// buckets, and those of as many oldest ghosts as pushes of them make room by. The misses of
    /// all of them overlap here, where the calls themselves would wait for one after the other.
    pub(crate) fn warm(&self, fingerprints: &[u128]) {
        let mut touched = 0;
        for fingerprint in fingerprints {
            touched ^= self.table.touch(fingerprint.to_le_bytes());
        }
        for lru in self.lists.iter().filter(|lru| lru.len == self.capacity) {
            let ghost = |at: u32| self.nodes.get(at as usize);
            let oldest = std::iter::successors(ghost(lru.oldest), |node| ghost(node.newer));
            for node in oldest.take(fingerprints.len()) {
                touched ^= self.table.touch(node.fingerprint);
            }
        }
        std::hint::black_box(touched);
    }

    /// Forgets all. O(capacity).
    pub(crate) fn clear(&mut self) {
        self.table.clear();
        self.lists = [NO_GHOSTS; 2];
    }

    #[cfg(any(test, feature = "testing"))]
    /// The fingerprints of `list`, oldest first.
    pub(crate) fn iter(&self, list: List) -> impl Iterator<Item = u128> + '_ {
        let first = self
            .lists
            .get(usize::from(list))
            .map_or(NIL, |lru| lru.oldest);
        std::iter::successors(self.nodes.get(first as usize), |node| {
            self.nodes.get(node.newer as usize)
        })
        .map(|node| u128::from_le_bytes(node.fingerprint))
    }

    /// Heap memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.nodes) + self.table.memory_bytes()
    }

    /// The list whose half holds node `at`.
    fn list_of(&self, at: u32) -> List {
        List::from(at >= self.capacity)
    }

    /// The node of `fingerprint`.
    fn locate(&self, fingerprint: u128) -> Option<u32> {
        let bytes = fingerprint.to_le_bytes();
        self.table
            .find(bytes, |at| self.nodes[at as usize].fingerprint == bytes)
    }

    /// A node of `list`'s half that is no ghost. One exists because the list is not full.
    fn take_node(&mut self, list: List) -> u32 {
        let lru = &mut self.lists[usize::from(list)];
        if lru.free == NIL {
            lru.used += 1;
            return u32::from(list) * self.capacity + lru.used - 1;
        }
        let at = lru.free;
        lru.free = self.nodes[at as usize].newer;
        at
    }

    /// Takes the ghost `at` out of the table and its list and frees its node.
    fn release(&mut self, at: u32) {
        self.table.leave(self.nodes[at as usize].fingerprint, at);
        self.unlink(at);
        let lru = &mut self.lists[usize::from(self.list_of(at))];
        self.nodes[at as usize] = Node {
            newer: lru.free,
            ..VACANT
        };
        lru.free = at;
    }

    /// Takes the ghost `at` out of its list's order.
    fn unlink(&mut self, at: u32) {
        let Node { older, newer, .. } = self.nodes[at as usize];
        let list = usize::from(self.list_of(at));
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.lists[list].oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.lists[list].newest = older,
        }
        self.lists[list].len -= 1;
    }

    /// Puts node `at`, which is in no order, at the MRU end of its list.
    fn link_newest(&mut self, at: u32) {
        let list = usize::from(self.list_of(at));
        let newest = self.lists[list].newest;
        match self.nodes.get_mut(newest as usize) {
            Some(node) => node.newer = at,
            None => self.lists[list].oldest = at,
        }
        let node = &mut self.nodes[at as usize];
        node.older = newest;
        node.newer = NIL;
        self.lists[list].newest = at;
        self.lists[list].len += 1;
    }

    /// Checks the numbered invariants of the module. O(capacity).
    ///
    /// # Errors
    ///
    /// Says which invariant is broken, and where.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let mut listed = vec![false; self.nodes.len()];
        for list in 0..2 {
            self.check_list(list, &mut listed)?;
        }
        let fingerprints: Vec<Option<Bytes>> = (self.nodes.iter().zip(&listed))
            .map(|(node, &is_listed)| is_listed.then_some(node.fingerprint))
            .collect();
        self.table
            .check(&fingerprints)
            .map_err(|broken| format!("ghosts 2: {broken}"))?;
        let mut met = std::collections::HashSet::new();
        if let Some(twice) = fingerprints.iter().flatten().find(|it| !met.insert(**it)) {
            return Err(format!("ghosts 3: {twice:02x?} is there twice"));
        }
        Ok(())
    }

    /// Checks one list and its free nodes, and marks its ghosts.
    #[cfg(any(test, feature = "testing"))]
    fn check_list(&self, list: List, listed: &mut [bool]) -> Result<(), String> {
        let lru = self.lists[usize::from(list)];
        if lru.len > self.capacity || lru.used > self.capacity {
            return Err(format!(
                "ghosts 1: list {list} is over its capacity: {lru:?}"
            ));
        }
        let (mut before, mut at, mut len) = (NIL, lru.oldest, 0);
        while let Some(node) = self.nodes.get(at as usize) {
            let again = std::mem::replace(&mut listed[at as usize], true);
            if again || node.older != before || self.list_of(at) != list {
                return Err(format!(
                    "ghosts 1: node {at} does not belong after {before}"
                ));
            }
            (before, at, len) = (at, node.newer, len + 1);
        }
        if len != lru.len || before != lru.newest {
            return Err(format!(
                "ghosts 1: list {list} ends at {before} after {len}: {lru:?}"
            ));
        }
        let (mut at, mut free) = (lru.free, 0);
        while let Some(node) = self.nodes.get(at as usize) {
            free += 1;
            if listed[at as usize] || self.list_of(at) != list || free > self.capacity {
                return Err(format!("ghosts 4: node {at} is not free in list {list}"));
            }
            at = node.newer;
        }
        if len + free != lru.used {
            return Err(format!(
                "ghosts 4: list {list} has {free} free nodes: {lru:?}"
            ));
        }
        Ok(())
    }
}
