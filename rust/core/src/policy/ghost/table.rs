//! Which node remembers a fingerprint: a table of buckets of one cache line each.
//!
//! An entry is a node's number plus one and, in the bits that such numbers leave free, bits of the
//! fingerprint. A node is read only where these agree, so that one miss of the processor's caches
//! answers for a key that is no ghost.
//!
//! Invariants:
//!
//! 1. Each fingerprint entered has one entry, in its home bucket or at most `farthest` buckets
//!    after it; there are no others.
//! 2. `away` counts the entries that are not at home, unless it has stood at its largest value.
//!
//! A full bucket loses nothing: the entry goes to the next bucket with room. With 8 entries a
//! bucket on average and room for 15, fewer than one in a hundred does.

use std::collections::TryReserveError;

use super::super::flat::filled;

pub(super) type Bytes = [u8; 16];

/// Entries in a bucket: what fits a cache line beside the two counts.
pub(super) const WAYS: usize = 15;
/// Nodes a bucket: 8 bytes a node.
const LOAD: usize = 8;

/// One cache line of the table.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// 0 is empty.
    pub(super) entries: [u32; WAYS],
    /// Fingerprints at home here whose entries are elsewhere. At its largest value it stays.
    pub(super) away: u16,
    /// How many buckets on these are at most; at its largest value, anywhere.
    pub(super) farthest: u16,
}

pub(super) const EMPTY: Bucket = Bucket {
    entries: [0; WAYS],
    away: 0,
    farthest: 0,
};

impl Bucket {
    /// The ways whose entry is `wanted` in the bits of `mask`, as bits. Without branches.
    #[inline]
    fn ways(&self, wanted: u32, mask: u32) -> u32 {
        (0..WAYS).fold(0, |ways, way| {
            ways | u32::from((self.entries[way] ^ wanted) & mask == 0) << way
        })
    }

    /// Overwrites one of these ways; false if there is none.
    #[inline]
    fn put(&mut self, ways: u32, entry: u32) -> bool {
        let way = self.entries.get_mut(ways.trailing_zeros() as usize);
        way.map(|way| *way = entry).is_some()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) buckets: Box<[Bucket]>,
    /// The bits of an entry that are a node's number plus one.
    number: u32,
}

impl Table {
    /// A table for nodes with numbers below `nodes`.
    pub(super) fn new(nodes: usize) -> Result<Self, TryReserveError> {
        let largest = u32::try_from(nodes).unwrap_or(u32::MAX);
        Ok(Self {
            buckets: filled(nodes.div_ceil(LOAD), EMPTY)?,
            number: u32::MAX.checked_shr(largest.leading_zeros()).unwrap_or(0),
        })
    }

    pub(super) fn clear(&mut self) {
        self.buckets.fill(EMPTY);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Reads from the home of `fingerprint`, to bring it into the processor's cache.
    #[inline]
    pub(super) fn touch(&self, fingerprint: Bytes) -> u32 {
        let home = self.home(fingerprint);
        self.buckets.get(home).map_or(0, |b| b.entries[0])
    }

    /// The node of `fingerprint`, among those that `is_it` knows for its own.
    #[inline]
    pub(super) fn find(&self, fingerprint: Bytes, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = self.entry(fingerprint, 0);
        self.reach(self.home(fingerprint)).find_map(|at| {
            let bucket = &self.buckets[at];
            let mut ways = bucket.ways(tag, !self.number) & !bucket.ways(0, u32::MAX);
            while ways != 0 {
                let entry = bucket.entries[ways.trailing_zeros() as usize % WAYS];
                let node = (entry & self.number) - 1;
                if is_it(node) {
                    return Some(node);
                }
                ways &= ways - 1;
            }
            None
        })
    }

    /// Enters the node of `fingerprint`, at home or in the next bucket with room. There is one: the
    /// table has almost twice as many ways as there are nodes.
    pub(super) fn enter(&mut self, fingerprint: Bytes, node: u32) {
        let entry = self.entry(fingerprint, node);
        let home = self.home(fingerprint);
        for distance in 0..self.buckets.len() {
            let at = self.after(home, distance);
            let bucket = &mut self.buckets[at];
            if bucket.put(bucket.ways(0, u32::MAX), entry) {
                if distance > 0 {
                    let distance = u16::try_from(distance).unwrap_or(u16::MAX);
                    let home = &mut self.buckets[home];
                    home.away = home.away.saturating_add(1);
                    home.farthest = home.farthest.max(distance);
                }
                return;
            }
        }
    }

    /// Clears the entry that leads from `fingerprint` to `node`.
    pub(super) fn leave(&mut self, fingerprint: Bytes, node: u32) {
        let entry = self.entry(fingerprint, node);
        let home = self.home(fingerprint);
        let holds = |&at: &usize| self.buckets[at].ways(entry, u32::MAX) != 0;
        let Some(at) = self.reach(home).find(holds) else {
            return;
        };
        let bucket = &mut self.buckets[at];
        bucket.put(bucket.ways(entry, u32::MAX), 0);
        if at != home {
            let home = &mut self.buckets[home];
            home.away -= u16::from(home.away != u16::MAX);
            if home.away == 0 {
                home.farthest = 0;
            }
        }
    }

    /// A node's number plus one, and bits of the fingerprint on which its home does not depend.
    fn entry(&self, fingerprint: Bytes, node: u32) -> u32 {
        let [.., a, b, c, d] = fingerprint;
        u32::from_le_bytes([a, b, c, d]) & !self.number | (node + 1)
    }

    /// The low half of the fingerprint, which is uniform, scaled down to the number of buckets. In
    /// a table without buckets it is 0, which does not exist.
    pub(super) fn home(&self, fingerprint: Bytes) -> usize {
        let [a, b, c, d, e, f, g, h, ..] = fingerprint;
        let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let scaled = (u128::from(low) * self.buckets.len() as u128) >> u64::BITS;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// The bucket that is `distance` after `home`.
    fn after(&self, home: usize, distance: usize) -> usize {
        let at = home + distance;
        at.checked_sub(self.buckets.len()).unwrap_or(at)
    }

    /// The buckets in which a fingerprint at home in `home` may be, its home first.
    fn reach(&self, home: usize) -> impl Iterator<Item = usize> + use<'_> {
        let count = match self.buckets.get(home).map(|bucket| bucket.farthest) {
            None => 0,
            Some(u16::MAX) => self.buckets.len(),
            Some(farthest) => usize::from(farthest) + 1,
        };
        (0..count).map(move |distance| self.after(home, distance))
    }

    /// Checks the invariants, given the fingerprint of each node that has one.
    ///
    /// # Errors
    ///
    /// Says what is broken, and where.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self, fingerprints: &[Option<Bytes>]) -> Result<(), String> {
        let mut missing = fingerprints.to_vec();
        let mut away = vec![0; self.buckets.len()];
        for (here, bucket) in self.buckets.iter().enumerate() {
            for &entry in bucket.entries.iter().filter(|&&entry| entry != 0) {
                let node = (entry & self.number).wrapping_sub(1);
                let Some(fingerprint) = missing.get_mut(node as usize).and_then(Option::take)
                else {
                    return Err(format!(
                        "bucket {here} has an entry of node {node} too many"
                    ));
                };
                let home = self.home(fingerprint);
                let near = self.reach(home).any(|at| at == here);
                if !near || entry != self.entry(fingerprint, node) {
                    return Err(format!("node {node} is not at home near bucket {here}"));
                }
                away[home] += u32::from(here != home);
            }
        }
        for (bucket, away) in self.buckets.iter().zip(away) {
            if u32::from(bucket.away) != away && bucket.away != u16::MAX {
                return Err(format!("{away} entries are away from {bucket:?}"));
            }
        }
        match missing.iter().position(Option::is_some) {
            Some(node) => Err(format!("node {node} has no entry")),
            None => Ok(()),
        }
    }
}
