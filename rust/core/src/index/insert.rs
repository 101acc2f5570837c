//! Putting a key into the index, moving others out of its way where both its buckets are full.

use super::{Index, Place, WAYS, entry, move_entry, unpack};
use crate::hash::KeyHasher;
use crate::storage::Records;

/// No room within two kicks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexFull;

impl Index {
    /// Adds an entry from `hash` to `slot`. At most two other entries move. Owner only.
    ///
    /// The record of `slot` may be written later: until it holds the key, whoever follows the entry
    /// finds another key.
    pub(crate) fn insert(
        &self,
        records: &Records,
        hasher: KeyHasher,
        hash: u64,
        slot: u32,
    ) -> Result<(), IndexFull> {
        let place = self.place(hash);
        let (bucket, way) = self
            .emptier(place.first, place.second)
            .or_else(|| self.make_room(records, hasher, place))
            .ok_or(IndexFull)?;
        self.store(bucket, way, entry(place.tag, slot));
        Ok(())
    }

    /// An empty way in the emptier one of two buckets: filling the first one first would end at a
    /// third of the load.
    fn emptier(&self, first: u32, second: u32) -> Option<(u32, usize)> {
        let (a, in_first) = self.empties(first);
        let (b, in_second) = self.empties(second);
        if a >= b {
            in_first.map(|way| (first, way))
        } else {
            in_second.map(|way| (second, way))
        }
    }

    /// How many ways of a bucket are empty, and one of them. Without branches, like the lookup.
    #[inline]
    fn empties(&self, bucket: u32) -> (u32, Option<usize>) {
        let mask = (0..WAYS).fold(0u32, |mask, way| {
            mask | u32::from(self.load(bucket, way) == 0) << way
        });
        (
            mask.count_ones(),
            (mask != 0).then(|| mask.trailing_zeros() as usize),
        )
    }

    /// Empties one way of the two full buckets of `place`: by one kick if that is possible, else by
    /// two.
    fn make_room(
        &self,
        records: &Records,
        hasher: KeyHasher,
        place: Place,
    ) -> Option<(u32, usize)> {
        let buckets = [place.first, place.second];
        buckets
            .into_iter()
            .find_map(|bucket| self.kick(records, hasher, bucket))
            .or_else(|| {
                buckets.into_iter().find_map(|bucket| {
                    (0..WAYS).find_map(|way| {
                        let other = self.alternative(records, hasher, bucket, way)?;
                        let room = self.kick(records, hasher, other)?;
                        move_entry(self, (bucket, way), room);
                        Some((bucket, way))
                    })
                })
            })
    }

    /// Moves one entry of a full bucket to its other bucket, if one of them has room; returns the
    /// way that is empty now.
    fn kick(&self, records: &Records, hasher: KeyHasher, bucket: u32) -> Option<(u32, usize)> {
        (0..WAYS).find_map(|way| {
            let other = self.alternative(records, hasher, bucket, way)?;
            let room = self.empties(other).1?;
            move_entry(self, (bucket, way), (other, room));
            Some((bucket, way))
        })
    }

    /// The other bucket of an entry, by the key in its record; `None` if the record does not
    /// describe the entry, as while a store of the same call has not written it yet.
    fn alternative(
        &self,
        records: &Records,
        hasher: KeyHasher,
        bucket: u32,
        way: usize,
    ) -> Option<u32> {
        let (tag, slot) = unpack(self.load(bucket, way));
        if slot >= records.capacity() {
            return None;
        }
        // Kicks are rare enough at the load of the table that an allocation here does not show.
        let mut key = Vec::with_capacity(records.key_bytes() + 8);
        records.read_key(slot, &mut key);
        let place = self.place(hasher.index_hash(&key));
        match bucket {
            _ if place.tag != tag => None,
            _ if bucket == place.first => Some(place.second),
            _ if bucket == place.second => Some(place.first),
            _ => None,
        }
    }
}
