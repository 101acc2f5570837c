//! Lookups of many keys in one call.
//!
//! A prefix was stored together, so that its chunks lie in neighbouring slots, upwards or
//! downwards: the slot that goes on from the last two is tried first, with a full comparison of the
//! key, and the index is not asked at all while that succeeds. Where it fails, a group of keys goes
//! through the index in five tight passes (hash; touch both buckets; pick a candidate without a
//! branch; touch the record; compare), so that the processor overlaps the cache misses of the whole
//! group. The group starts at [`FIRST_GROUP`] keys and doubles while neighbours keep failing: a
//! short run does not pay for a long group, random keys get the whole overlap.

use std::ops::ControlFlow;

use super::{Index, Place, WAYS, unpack};
use crate::hash::KeyHasher;
use crate::key::Keys;
use crate::mutant::{Mutant, is};
use crate::slot::NONE;
use crate::slot::state::{self, Phase, State};
use crate::storage::Records;

/// Keys in the first group after a run of neighbours ended.
const FIRST_GROUP: usize = 8;
/// Keys in the largest group: as many misses as a core can have under way, several times over.
const GROUP: usize = 64;

/// What a lookup found for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The slot that holds the key, and its state.
    Slot(u32, State),
    /// Nothing; the hash is given, since a store needs it.
    Miss(u64),
}

impl Found {
    /// The slot, if there is one.
    #[inline]
    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            Self::Slot(slot, _) => Some(slot),
            Self::Miss(_) => None,
        }
    }

    /// Whether the key is there and may be read.
    #[inline]
    pub(crate) fn is_ready(self) -> bool {
        matches!(self, Self::Slot(_, state) if matches!(state.phase(), Phase::Ready | Phase::Evicting))
    }
}

impl Index {
    /// Looks `keys` up in order and hands each answer to `visit` until it breaks.
    pub(crate) fn find_each<B>(
        &self,
        records: &Records,
        hasher: KeyHasher,
        keys: Keys<'_>,
        mut visit: impl FnMut(usize, Found) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let n = keys.len();
        let mut group = FIRST_GROUP;
        let mut last = NONE;
        let mut step = 1u32;
        let mut i = 0;
        while i < n {
            let run = i;
            while i < n && last != NONE {
                let next = last.wrapping_add(step);
                let Some(state) = records.find(next, keys.get(i)) else {
                    break;
                };
                last = next;
                visit(i, Found::Slot(last, state))?;
                i += 1;
            }
            if i > run {
                group = FIRST_GROUP;
            }
            let end = n.min(i + group);
            if end - i == 1 {
                visit(i, self.find_one(records, hasher, keys.get(i)))?;
            } else if end > i {
                let found = self.find_group(records, hasher, keys, i..end);
                for (k, &found) in found[..end - i].iter().enumerate() {
                    if let Some(slot) = found.slot() {
                        step = slot.wrapping_sub(last);
                        last = slot;
                    }
                    visit(i + k, found)?;
                }
            }
            i = end;
            group = GROUP.min(group * 2);
        }
        ControlFlow::Continue(())
    }

    /// Looks one key up.
    #[inline]
    pub(crate) fn find_one(&self, records: &Records, hasher: KeyHasher, key: &[u8]) -> Found {
        let hash = hasher.index_hash(key);
        self.find(records, hash, key)
            .map_or(Found::Miss(hash), |(slot, state)| Found::Slot(slot, state))
    }

    /// The five passes over at most [`GROUP`] keys.
    fn find_group(
        &self,
        records: &Records,
        hasher: KeyHasher,
        keys: Keys<'_>,
        range: std::ops::Range<usize>,
    ) -> [Found; GROUP] {
        const NOWHERE: Place = Place {
            first: 0,
            second: 0,
            tag: 0,
        };
        let n = range.len();
        let mut hashes = [0u64; GROUP];
        let mut places = [NOWHERE; GROUP];
        let mut picked = [NONE; GROUP];
        let mut states = [State::from_raw(0); GROUP];
        let mut found = [Found::Miss(0); GROUP];

        for k in 0..n {
            hashes[k] = hasher.index_hash(keys.get(range.start + k));
            places[k] = self.place(hashes[k]);
        }
        let moves = self.moves();
        self.warm(hashes[..n].iter().copied());
        for k in 0..n {
            picked[k] = self.pick(places[k]);
        }
        for k in 0..n {
            if picked[k] < records.capacity() {
                states[k] = state::load(records.state(picked[k]));
            }
        }
        let moved = self.moves() != moves && !is(Mutant::BatchNoMoveRecheck);
        for k in 0..n {
            let key = keys.get(range.start + k);
            let hit = (picked[k] < records.capacity())
                .then(|| records.find_seen(picked[k], key, states[k]))
                .flatten();
            found[k] = match hit {
                Some(state) => Found::Slot(picked[k], state),
                // No tag was right and nothing moved: a miss. Else look again, one entry after the
                // other.
                None if picked[k] == NONE && !moved => Found::Miss(hashes[k]),
                None => self
                    .find(records, hashes[k], key)
                    .map_or(Found::Miss(hashes[k]), |(slot, state)| {
                        Found::Slot(slot, state)
                    }),
            };
        }
        found
    }

    /// The slot of the first entry with the right tag. Without branches: `&&` here compiles to
    /// jumps that the processor mispredicts.
    #[inline]
    fn pick(&self, place: Place) -> u32 {
        let mut entries = [0u64; 2 * WAYS];
        let mut mask = 0u32;
        for way in 0..WAYS {
            let first = self.load(place.first, way);
            let second = self.load(place.second, way);
            entries[way] = first;
            entries[WAYS + way] = second;
            mask |= u32::from(unpack(first).0 == place.tag) << way;
            mask |= u32::from(unpack(second).0 == place.tag) << (WAYS + way);
        }
        if mask == 0 {
            return NONE;
        }
        let at = mask.trailing_zeros() as usize % (2 * WAYS);
        unpack(entries[at]).1
    }
}
