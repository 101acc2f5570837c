//! The exact recency order of slots in one or two lists, with pins that cost nothing to pass over.
//!
//! Each touch takes the next *position* of a ring; `pos[slot]` is the position of the slot's last
//! touch, so increasing position is increasing recency. A pinned slot keeps its position and only
//! leaves the list's bitmap of *evictable* positions: the victim is the first set bit at or after
//! the tail, however many pinned slots lie before it, and an unpinned slot is back exactly where
//! its last touch put it.
//!
//! Positions are virtual (`u64`) and lie in the window `tail..head`; their place in the ring is the
//! remainder by its length. Touches leave empty positions behind. The tail passes those it meets; a
//! *compaction*, run a few positions per append, closes the others: a read cursor walks from the
//! tail to the head and moves each occupied position, in order, to a write cursor; when it meets
//! the head, the head becomes the write cursor. Both lists share ring and cursors.
//!
//! Invariants:
//!
//! 1. `ring[pos[s]]` holds `s` for each listed slot `s`, and each occupied position is its slot's.
//! 2. `tail <= write <= read <= head`, and positions are occupied only in `tail..write` and
//!    `read..head`. Without a compaction `write` and `read` are unused and `tail..head` is the
//!    window.
//! 3. A list's evictable bits are at occupied positions of that list. The counters `len` and
//!    `evictable` are what a count gives.
//! 4. The window is never longer than the ring, so a position is never written over and a search
//!    from the tail with wrap-around meets the positions in order. While no compaction runs the
//!    window is at most [`Bounds::start`]; while one runs, `window + ceil((head - read) / 7)` is at
//!    most the ring's length.
//!
//! Why 4 holds, with capacity `C`, `start = 2C + C/2 + 4`, ring length `3C + 8` and 8 positions
//! read per append. A compaction begins when an append makes the window `start + 1`. Each append
//! then lengthens the window by 1 and shortens `head - read` by at least 7 (or ends the
//! compaction), so it ends within `A = ceil((start + 1) / 7)` appends, with a window of at most
//! `start + 1 + A <= 2.858 C + 6.58 <= 3C + 8`. What it moved is at most what was listed when it
//! began and what was appended since, so the window it leaves is at most `C + A <= start`: the next
//! one begins at `start + 1` again. The inequalities hold from `C = 1` on; a test computes them.
//!
//! Cost: each call but `iter`, `clear` and `check_invariants` does a bounded number of steps,
//! whatever is listed or pinned: at most 8 positions read by the compaction, at most 8 passed by
//! the tail, and a bitmap path of at most six words for each bit that changes. Over time an append
//! pays for at most `(C + A) / (start - C)`, 0.91 moves, and for none where the oldest leave first
//! and nothing is pinned. A touch reads `pos[slot]`, the ring and the bitmap at the old position;
//! what lies at the cursors is sequential. Memory: 12 bytes of ring, 4 of `pos` and 0.38 of bitmap
//! a list, so 16.8 bytes a slot with two lists. Nothing allocates after `new`. Owner-only: no
//! atomics.
//!
//! Own design. A linked list is cheaper without pins, but must either scan past the pinned or
//! forget where they belong; a heap of stamps pays its debt of stale entries in one unlucky call.
//!
//! A call whose precondition does not hold panics in builds with debug assertions and does nothing
//! in others: an engine must not die of its bookkeeping.

use std::collections::TryReserveError;

use super::bitmap::BitTree;
use super::flat::{bounded_len, filled};

#[cfg(test)]
mod tests;

/// Which list of a policy: 0 is T1 (or the only one), 1 is T2.
pub(crate) type List = u8;

/// The most slots: positions of a ring three times as long still fit `u32`, with [`UNLISTED`] free.
const MAX_CAPACITY: u32 = 1 << 30;
/// The ring entry of a position that holds no slot.
const EMPTY: u32 = u32::MAX;
/// `pos` of a slot that is in no list.
const UNLISTED: u32 = u32::MAX;
/// Ring entries are a slot with its list in this bit.
const LIST_BIT: u32 = 31;
/// Positions that a compaction reads per append. Fewer would need a longer ring, more would make
/// single appends dearer.
const READS_PER_APPEND: u32 = 8;
/// Empty positions that the tail passes per append, more than an append can add.
const TAIL_STEPS_PER_APPEND: u32 = 8;

/// The sizes that keep the window within the ring (invariant 4).
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Positions in the ring.
    ring: u32,
    /// The longest window that does not start a compaction.
    start: u64,
}

impl Bounds {
    /// Valid for capacities up to [`MAX_CAPACITY`].
    const fn of(capacity: u32) -> Self {
        Self {
            ring: 3 * capacity + 8,
            start: 2 * capacity as u64 + capacity as u64 / 2 + 4,
        }
    }
}

/// A virtual position together with its place in the ring, so that no step divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    at: u64,
    index: u32,
}

impl Cursor {
    const START: Self = Self { at: 0, index: 0 };

    fn step(&mut self, ring: u32) {
        self.at += 1;
        self.index += 1;
        if self.index == ring {
            self.index = 0;
        }
    }
}

/// Exact recency order over the slots `0..capacity`, in one or two lists.
#[derive(Debug)]
pub(crate) struct TouchOrder {
    /// Slot and list at each ring position, or [`EMPTY`].
    ring: Box<[u32]>,
    /// Ring position of each slot's last touch, or [`UNLISTED`].
    pos: Box<[u32]>,
    /// Positions whose slot may be evicted, per list.
    bits: [BitTree; 2],
    len: [u32; 2],
    evictable: [u32; 2],
    lists: u8,
    bounds: Bounds,
    tail: Cursor,
    head: Cursor,
    /// `read` and `write` mean something only while this holds.
    compacting: bool,
    write: Cursor,
    read: Cursor,
}

fn pack(slot: u32, list: List) -> u32 {
    slot | u32::from(list) << LIST_BIT
}

fn unpack(entry: u32) -> (u32, List) {
    (entry & !(1 << LIST_BIT), List::from(entry >> LIST_BIT == 1))
}

impl TouchOrder {
    /// Builds the order over `0..capacity` slots, none of them listed, with 1 or 2 `lists`.
    ///
    /// # Errors
    ///
    /// The allocator's refusal; a capacity above 2^30 is always refused.
    pub(crate) fn new(capacity: u32, lists: u8) -> Result<Self, TryReserveError> {
        debug_assert!(
            lists == 1 || lists == 2,
            "an order has one list or two, not {lists}"
        );
        let pos = filled(bounded_len(capacity, MAX_CAPACITY), UNLISTED)?;
        let bounds = Bounds::of(capacity);
        let second = if lists > 1 { bounds.ring } else { 0 };
        Ok(Self {
            ring: filled(bounds.ring as usize, EMPTY)?,
            pos,
            bits: [BitTree::new(bounds.ring)?, BitTree::new(second)?],
            len: [0; 2],
            evictable: [0; 2],
            lists: lists.clamp(1, 2),
            bounds,
            tail: Cursor::START,
            head: Cursor::START,
            compacting: false,
            write: Cursor::START,
            read: Cursor::START,
        })
    }

    /// Lists `slot`, which is in no list, at the MRU end of `list`.
    pub(crate) fn insert(&mut self, slot: u32, list: List, evictable: bool) {
        let valid = list < self.lists && self.pos.get(slot as usize) == Some(&UNLISTED);
        debug_assert!(valid, "slot {slot} is unlisted and list {list} exists");
        if valid {
            self.append(slot, list, evictable);
        }
    }

    /// Moves `slot`, which is listed, to the MRU end of `list`. It stays evictable or not.
    pub(crate) fn touch(&mut self, slot: u32, list: List) {
        let at = self.position(slot).filter(|_| list < self.lists);
        debug_assert!(at.is_some(), "slot {slot} is listed and list {list} exists");
        if let Some(at) = at {
            let evictable = self.vacate(at);
            self.append(slot, list, evictable);
        }
    }

    /// Takes `slot`, which is listed, out of its list.
    pub(crate) fn remove(&mut self, slot: u32) {
        let at = self.position(slot);
        debug_assert!(at.is_some(), "slot {slot} is listed");
        if let Some(at) = at {
            self.vacate(at);
            self.pos[slot as usize] = UNLISTED;
        }
    }

    /// Makes `slot`, which is listed, evictable or not, at the position of its last touch.
    pub(crate) fn set_evictable(&mut self, slot: u32, evictable: bool) {
        let at = self.position(slot);
        debug_assert!(at.is_some(), "slot {slot} is listed");
        let Some(at) = at else { return };
        let list = usize::from(unpack(self.ring[at as usize]).1);
        if evictable {
            self.evictable[list] += u32::from(self.bits[list].set(at));
        } else {
            self.evictable[list] -= u32::from(self.bits[list].clear(at));
        }
    }

    /// Whether `slot` is listed and evictable.
    pub(crate) fn is_evictable(&self, slot: u32) -> bool {
        self.position(slot).is_some_and(|at| {
            let (_, list) = unpack(self.ring[at as usize]);
            self.bits[usize::from(list)].get(at)
        })
    }

    /// The list that `slot` is in.
    pub(crate) fn list_of(&self, slot: u32) -> Option<List> {
        self.position(slot)
            .map(|at| unpack(self.ring[at as usize]).1)
    }

    /// Slots in `list`.
    pub(crate) fn len(&self, list: List) -> u32 {
        self.len.get(usize::from(list)).copied().unwrap_or(0)
    }

    /// Evictable slots in `list`.
    pub(crate) fn evictable(&self, list: List) -> u32 {
        self.evictable.get(usize::from(list)).copied().unwrap_or(0)
    }

    /// The least recently touched evictable slot of `list`.
    pub(crate) fn oldest_evictable(&self, list: List) -> Option<u32> {
        let bits = self.bits.get(usize::from(list))?;
        // Bits before the tail's place in the ring belong to the window's wrapped, newer end.
        let at = bits
            .first_from(self.tail.index)
            .or_else(|| bits.first_from(0))?;
        Some(unpack(self.ring[at as usize]).0)
    }

    #[cfg(any(test, feature = "testing"))]
    /// The slots of `list`, oldest first. O(capacity): for inspection and rebuilding.
    pub(crate) fn iter(&self, list: List) -> impl Iterator<Item = u32> + '_ {
        let (newer, older) = self.ring.split_at(self.tail.index as usize);
        older
            .iter()
            .chain(newer)
            .filter(|&&entry| entry != EMPTY)
            .map(|&entry| unpack(entry))
            .filter_map(move |(slot, its_list)| (its_list == list).then_some(slot))
    }

    /// Empties all lists. O(capacity).
    pub(crate) fn clear(&mut self) {
        self.ring.fill(EMPTY);
        self.pos.fill(UNLISTED);
        self.bits.iter_mut().for_each(BitTree::clear_all);
        self.len = [0; 2];
        self.evictable = [0; 2];
        self.tail = Cursor::START;
        self.head = Cursor::START;
        self.compacting = false;
    }

    /// Heap memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let bits: usize = self.bits.iter().map(BitTree::memory_bytes).sum();
        size_of_val(&*self.ring) + size_of_val(&*self.pos) + bits
    }

    /// The ring position of `slot` if it is listed.
    fn position(&self, slot: u32) -> Option<u32> {
        self.pos
            .get(slot as usize)
            .copied()
            .filter(|&at| at != UNLISTED)
    }

    /// Empties the occupied position `at`, and tells whether its slot was evictable. It may lie on
    /// either side of the compaction's cursors: nothing is occupied between them.
    fn vacate(&mut self, at: u32) -> bool {
        let (_, list) = unpack(self.ring[at as usize]);
        let list = usize::from(list);
        self.ring[at as usize] = EMPTY;
        let evictable = self.bits[list].clear(at);
        self.len[list] -= 1;
        self.evictable[list] -= u32::from(evictable);
        evictable
    }

    /// Puts `slot` at the head, then pays this append's share of keeping the window short.
    fn append(&mut self, slot: u32, list: List, evictable: bool) {
        let at = self.head.index;
        debug_assert_eq!(
            self.ring[at as usize], EMPTY,
            "the window is shorter than the ring"
        );
        self.ring[at as usize] = pack(slot, list);
        self.pos[slot as usize] = at;
        let list = usize::from(list);
        self.len[list] += 1;
        if evictable {
            self.bits[list].set(at);
            self.evictable[list] += 1;
        }
        self.head.step(self.bounds.ring);
        if self.compacting {
            self.compact();
        }
        self.advance_tail();
        if !self.compacting && self.head.at - self.tail.at > self.bounds.start {
            self.compacting = true;
            self.read = self.tail;
            self.write = self.tail;
        }
    }

    /// Passes empty positions at the tail, a bounded number of them, up to where a compaction
    /// writes.
    fn advance_tail(&mut self) {
        let end = if self.compacting {
            self.write.at
        } else {
            self.head.at
        };
        for _ in 0..TAIL_STEPS_PER_APPEND {
            if self.tail.at == end || self.ring[self.tail.index as usize] != EMPTY {
                return;
            }
            self.tail.step(self.bounds.ring);
        }
    }

    /// Moves the compaction on by a bounded number of positions.
    fn compact(&mut self) {
        let ring = self.bounds.ring;
        for _ in 0..READS_PER_APPEND {
            let entry = self.ring[self.read.index as usize];
            if entry != EMPTY {
                if self.write.at != self.read.at {
                    self.relocate(entry);
                }
                self.write.step(ring);
            }
            self.read.step(ring);
            if self.read.at == self.head.at {
                self.head = self.write;
                self.compacting = false;
                return;
            }
        }
    }

    /// Moves `entry` from the read cursor to the write cursor, with its evictable bit.
    fn relocate(&mut self, entry: u32) {
        let (slot, list) = unpack(entry);
        let (from, to) = (self.read.index, self.write.index);
        self.ring[from as usize] = EMPTY;
        self.ring[to as usize] = entry;
        self.pos[slot as usize] = to;
        let bits = &mut self.bits[usize::from(list)];
        if bits.clear(from) {
            bits.set(to);
        }
    }

    /// Checks the numbered invariants of the module. O(capacity).
    ///
    /// # Errors
    ///
    /// Says which invariant is broken, and where.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        self.check_cursors()?;
        let ring = u64::from(self.bounds.ring);
        let (mut len, mut evictable) = ([0; 2], [0; 2]);
        for offset in 0..ring {
            let at = self.tail.at + offset;
            let index = u32::try_from(at % ring).map_err(|error| error.to_string())?;
            let entry = self.ring[index as usize];
            if entry == EMPTY {
                if self.bits.iter().any(|bits| bits.get(index)) {
                    return Err(format!("order 3: evictable bit at the empty position {at}"));
                }
                continue;
            }
            let gap = self.compacting && (self.write.at..self.read.at).contains(&at);
            if at >= self.head.at || gap {
                return Err(format!(
                    "order 2: position {at} is occupied outside the window"
                ));
            }
            let (slot, list) = unpack(entry);
            if self.pos.get(slot as usize) != Some(&index) {
                return Err(format!(
                    "order 1: position {at} holds slot {slot}, which is not there"
                ));
            }
            let list = usize::from(list);
            if self.bits[1 - list].get(index) {
                return Err(format!(
                    "order 3: position {at} is evictable in another list"
                ));
            }
            len[list] += 1;
            evictable[list] += u32::from(self.bits[list].get(index));
        }
        let listed = self.pos.iter().filter(|&&at| at != UNLISTED).count();
        if listed != (len[0] + len[1]) as usize {
            return Err(format!(
                "order 1: {listed} slots have a position, {len:?} are there"
            ));
        }
        if len != self.len || evictable != self.evictable {
            return Err(format!(
                "order 3: counted {len:?} {evictable:?}, kept {self:?}"
            ));
        }
        self.bits.iter().try_for_each(BitTree::check_invariants)
    }

    #[cfg(any(test, feature = "testing"))]
    fn check_cursors(&self) -> Result<(), String> {
        let ring = u64::from(self.bounds.ring);
        let (write, read) = if self.compacting {
            (self.write, self.read)
        } else {
            (self.head, self.head)
        };
        let cursors = [self.tail, write, read, self.head];
        if !cursors.is_sorted_by_key(|cursor| cursor.at) {
            return Err(format!("order 2: cursors out of order: {cursors:?}"));
        }
        if cursors
            .iter()
            .any(|cursor| cursor.at % ring != u64::from(cursor.index))
        {
            return Err(format!(
                "order 2: a cursor is not at its place in the ring: {cursors:?}"
            ));
        }
        let window = self.head.at - self.tail.at;
        let most = if self.compacting {
            let unread = self.head.at - self.read.at;
            ring - unread.div_ceil(u64::from(READS_PER_APPEND) - 1)
        } else {
            self.bounds.start
        };
        if window > most {
            return Err(format!(
                "order 4: the window is {window}, the most is {most}"
            ));
        }
        Ok(())
    }
}
