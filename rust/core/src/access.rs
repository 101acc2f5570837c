//! What one request did with the cache: recorded while it runs, applied once when it finishes.

use hashbrown::HashTable;

use crate::error::KeyError;
use crate::hash::KeyHasher;
use crate::key::{Keys, group};
use crate::policy::Access;

const NO_POSITION: u32 = u32::MAX;

const SEEN: u8 = 1;
const INSERTED: u8 = 1 << 1;
const REUSED: u8 = 1 << 2;
const STORE_MISS: u8 = 1 << 3;

/// The record of one request, owned by the caller.
///
/// One request is one access, however many chunks, calls and steps it takes:
/// [`crate::Manager::prepare_load`] and [`crate::Manager::prepare_store`] record into it,
/// [`crate::Manager::finish_request`] applies it. Dropping it applies nothing. It remembers keys,
/// not slots, since a key may be evicted and stored again by another request meanwhile.
///
/// Memory: at most 64 bytes a key of 36 bytes.
#[derive(Debug)]
pub struct RequestAccess {
    pub(crate) incarnation: u64,
    pub(crate) epoch: u64,
    hasher: KeyHasher,
    key_bytes: usize,
    group_bytes: usize,
    gpu_hit: usize,
    keys: Vec<u8>,
    entries: Vec<Entry>,
    table: HashTable<u32>,
    /// The entries that were seen, in the order of their first time.
    seen: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    position: u32,
    len: u16,
    flags: u8,
}

/// The number of an entry.
pub(crate) type EntryId = u32;

impl RequestAccess {
    pub(crate) fn new(
        incarnation: u64,
        epoch: u64,
        hasher: KeyHasher,
        (key_bytes, group_bytes): (usize, usize),
        gpu_hit: usize,
    ) -> Self {
        Self {
            incarnation,
            epoch,
            hasher,
            key_bytes,
            group_bytes,
            gpu_hit,
            keys: Vec::new(),
            entries: Vec::new(),
            table: HashTable::new(),
            seen: Vec::new(),
        }
    }

    /// Tells where keys stand in the request's prefix, for instance by the token at which the chunk
    /// ends. Keys that the request gains while it decodes are told the same way.
    ///
    /// At the end of the request chunks are applied in the order of their positions: per group if
    /// every key of the group has one, across groups if every key has one.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held or the two lengths differ; nothing is recorded then.
    /// The largest `u32` stands for "no position".
    pub fn set_positions(&mut self, keys: Keys<'_>, positions: &[u32]) -> Result<(), KeyError> {
        if positions.len() != keys.len() {
            return Err(KeyError::Positions {
                positions: positions.len(),
                keys: keys.len(),
            });
        }
        keys.check(self.key_bytes)?;
        self.reserve(keys.len());
        let mut last = None;
        for (key, &position) in keys.iter().zip(positions) {
            let id = self.entry_after(last, key);
            self.entries[id as usize].position = position;
            last = Some(id);
        }
        Ok(())
    }

    /// How many keys this request has seen.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.seen.len()
    }

    /// How many leading keys the accelerator's own prefix cache served.
    #[must_use]
    pub fn gpu_hit(&self) -> usize {
        self.gpu_hit
    }

    /// The bytes that this record occupies.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.keys.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.seen.capacity() * size_of::<EntryId>()
            + self.table.allocation_size()
    }

    /// Forgets what was seen before a reset; positions stay, they belong to the request.
    pub(crate) fn enter_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.seen.clear();
            for entry in &mut self.entries {
                entry.flags = 0;
            }
        }
    }

    /// Makes room for the keys of a first call. Later calls mostly name the same keys again.
    pub(crate) fn reserve(&mut self, keys: usize) {
        if self.entries.is_empty() {
            self.grow(keys);
            self.seen.reserve_exact(keys);
            // Without entries there is nothing to hash again.
            self.table.reserve(keys, |_| 0);
        }
    }

    fn grow(&mut self, keys: usize) {
        // Sixteenths rather than doublings: the bound of 64 bytes a key holds for long requests
        // too.
        fn grow<T>(items: &mut Vec<T>, more: usize) {
            if items.capacity() - items.len() < more {
                items.reserve_exact(more.max(items.len() / 16));
            }
        }
        grow(&mut self.keys, keys * self.key_bytes);
        grow(&mut self.entries, keys);
    }

    fn key_of<'a>(keys: &'a [u8], stride: usize, entries: &[Entry], id: EntryId) -> &'a [u8] {
        let start = id as usize * stride;
        keys.get(start..start + usize::from(entries[id as usize].len))
            .unwrap_or_default()
    }

    fn key(&self, id: EntryId) -> &[u8] {
        Self::key_of(&self.keys, self.key_bytes, &self.entries, id)
    }

    /// The entry of a key, made if there is none. Keys come in the same order call after call, so
    /// that the entry after the last one is tried before the table.
    pub(crate) fn entry_after(&mut self, last: Option<EntryId>, key: &[u8]) -> EntryId {
        self.entry_hashed(last, key, None)
    }

    /// Like [`RequestAccess::entry_after`], where the index hash of the key may be known.
    pub(crate) fn entry_hashed(
        &mut self,
        last: Option<EntryId>,
        key: &[u8],
        hash: Option<u64>,
    ) -> EntryId {
        let next = last.map_or(0, |last| last + 1);
        if (next as usize) < self.entries.len() && self.key(next) == key {
            return next;
        }
        let hash = hash.unwrap_or_else(|| self.hasher.index_hash(key));
        let (keys, entries, stride) = (&self.keys, &self.entries, self.key_bytes);
        if let Some(&id) = self
            .table
            .find(hash, |&id| Self::key_of(keys, stride, entries, id) == key)
        {
            return id;
        }
        let id = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let hasher = self.hasher;
        self.table.insert_unique(hash, id, |&id| {
            hasher.index_hash(Self::key_of(keys, stride, entries, id))
        });
        self.grow(1);
        self.keys.extend_from_slice(key);
        self.keys.resize((id as usize + 1) * self.key_bytes, 0);
        let len = u16::try_from(key.len()).unwrap_or(u16::MAX);
        self.entries.push(Entry {
            position: NO_POSITION,
            len,
            flags: 0,
        });
        id
    }

    /// The position of an entry, if it was told.
    pub(crate) fn position(&self, id: EntryId) -> Option<u32> {
        Some(self.entries[id as usize].position).filter(|&p| p != NO_POSITION)
    }

    fn flag(&mut self, id: EntryId, flag: u8) -> bool {
        let flags = &mut self.entries[id as usize].flags;
        let new = *flags & flag == 0;
        *flags |= flag;
        new
    }

    pub(crate) fn mark_seen(&mut self, id: EntryId) {
        if self.flag(id, SEEN) {
            if self.seen.len() == self.seen.capacity() {
                self.seen.reserve_exact((self.seen.len() / 16).max(16));
            }
            self.seen.push(id);
        }
    }

    /// The request found the chunk there. Whether that is a hit: not if it stored the chunk itself,
    /// nor a second time.
    pub(crate) fn mark_reused(&mut self, id: EntryId) -> bool {
        self.entries[id as usize].flags & INSERTED == 0 && self.flag(id, REUSED)
    }

    pub(crate) fn mark_inserted(&mut self, id: EntryId) {
        self.flag(id, INSERTED);
    }

    /// Whether the policy has not seen this miss of the request yet.
    pub(crate) fn mark_store_miss(&mut self, id: EntryId) -> bool {
        self.flag(id, STORE_MISS)
    }

    /// The `i`-th key that was seen; an empty slice beyond the end.
    #[inline]
    pub(crate) fn seen_key(&self, i: usize) -> &[u8] {
        self.seen.get(i).map_or(&[], |&id| self.key(id))
    }

    /// How the `i`-th key that was seen was used.
    pub(crate) fn use_of(&self, i: usize) -> Access {
        let flags = self.entries[self.seen[i] as usize].flags;
        match (flags & REUSED != 0, flags & INSERTED != 0) {
            (true, _) => Access::Reused,
            (false, true) => Access::Inserted,
            (false, false) => Access::Seen,
        }
    }

    /// Brings the keys that were seen into prefix order, head first: each group by its positions if
    /// every key of it has one, all groups together if every key has one.
    pub(crate) fn sort(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let group_of = |id: &EntryId| group(self.key(*id), self.group_bytes);
        let position = |id: &EntryId| self.entries[*id as usize].position;
        sort_unless_sorted(&mut seen, group_of);
        let mut all_known = true;
        for group in seen.chunk_by_mut(|a, b| group_of(a) == group_of(b)) {
            if group.iter().any(|id| position(id) == NO_POSITION) {
                all_known = false;
            } else {
                sort_unless_sorted(group, position);
            }
        }
        if all_known {
            sort_unless_sorted(&mut seen, position);
        }
        self.seen = seen;
    }
}

/// A stable sort that allocates only where there is something to sort: requests mostly see their keys
/// in prefix order.
fn sort_unless_sorted(ids: &mut [EntryId], key: impl Fn(&EntryId) -> u32) {
    if !ids.is_sorted_by_key(&key) {
        ids.sort_by_key(key);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
