//! Where the next key of a prefix probably is.
//!
//! Callers that walk along a prompt ask for one key a call, and a prompt was stored together: the
//! slot that goes on from the last answer is looked at before the index, and the last answer itself
//! for a key that is asked for again. The whole key is compared there as everywhere, so a wrong
//! guess costs two comparisons that mostly end at the first word. What it saves a walk is both
//! cache misses, those of the index and of a record that nothing has led to yet.

use crossbeam_utils::CachePadded;

use crate::index::Found;
use crate::shared::Storage;
use crate::sync::{Counter, Ordering};

/// The slot of the last answer, and by how much it had moved from the one before: up or down by
/// one. Padded, since each lookup writes it.
#[derive(Debug)]
pub(crate) struct Guess(CachePadded<Counter>);

impl Guess {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(Counter::new(pack(0, 1))))
    }

    /// Looks one key up.
    #[inline]
    pub(crate) fn find(&self, storage: &Storage, key: &[u8]) -> Found {
        // Relaxed: threads that share a guess only spoil it for each other.
        let (last, step) = unpack(self.0.load(Ordering::Relaxed));
        let next = last.wrapping_add(step);
        if let Some(state) = storage.records.find(next, key) {
            self.0.store(pack(next, step), Ordering::Relaxed);
            return Found::Slot(next, state);
        }
        if let Some(state) = storage.records.find(last, key) {
            return Found::Slot(last, state);
        }
        let found = storage.find_one(key);
        if let Some(slot) = found.slot() {
            let moved = slot.wrapping_sub(last);
            let neighbour = moved == 1 || moved == u32::MAX;
            let step = if neighbour { moved } else { step };
            self.0.store(pack(slot, step), Ordering::Relaxed);
        }
        found
    }
}

fn pack(slot: u32, step: u32) -> u64 {
    u64::from(slot) << 32 | u64::from(step)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Config, Keys, LookupResult, Manager};

    fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
        numbers.into_iter().flat_map(u32::to_be_bytes).collect()
    }

    fn store(manager: &mut Manager, rows: &[u8]) {
        let output = manager
            .prepare_store(Keys::rows(rows, 4).expect("whole keys"), None)
            .expect("the keys fit")
            .stored()
            .expect("nothing is pinned");
        manager.complete_store(output.ticket, true);
    }

    #[test]
    fn whatever_was_asked_for_before_the_answer_is_right() {
        let mut manager = Manager::new(Config::new(64)).expect("a small tier");
        let reader = manager.reader();
        for generation in 0..6u32 {
            // Every other generation lies the other way round, and a part of each is left.
            let mut numbers: Vec<u32> = (generation * 100..generation * 100 + 40).collect();
            if generation % 2 == 1 {
                numbers.reverse();
            }
            store(&mut manager, &keys(numbers));
            let resident: Vec<bool> = (0..700u32)
                .map(|n| {
                    let mut each = Vec::new();
                    let key = n.to_be_bytes();
                    let one = Keys::rows(&key, 4).expect("a whole key");
                    manager.lookup_each(one, &mut each).expect("it fits");
                    each == [LookupResult::Hit]
                })
                .collect();
            let up = 0..700u32;
            let walks: [Vec<u32>; 3] = [
                up.clone().collect(),
                up.clone().rev().collect(),
                up.flat_map(|n| [n, n, n * 37 % 700]).collect(),
            ];
            for n in walks.into_iter().flatten() {
                let hit = |result: Result<LookupResult, _>| result == Ok(LookupResult::Hit);
                let expected = resident[n as usize];
                assert_eq!(hit(reader.lookup(&n.to_be_bytes())), expected, "{n}");
                assert_eq!(hit(manager.lookup(&n.to_be_bytes())), expected, "{n}");
            }
        }
    }
}
