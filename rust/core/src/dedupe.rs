//! Finds a key that a call names twice, among those of its keys that are not resident.

use crate::key::Keys;

/// A hash set of places in one call, emptied by counting the calls up: nothing is cleared and, once
/// it has grown to the largest call, nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Dedupe {
    /// Call number in the upper half, place in the lower.
    table: Vec<u64>,
    call: u32,
}

impl Dedupe {
    /// Begins a call of at most `keys` keys.
    pub(crate) fn begin(&mut self, keys: usize) {
        let wanted = (keys * 2).next_power_of_two();
        if self.table.len() < wanted || self.call == u32::MAX {
            self.table = vec![0; wanted.max(self.table.len())];
            self.call = 0;
        }
        self.call += 1;
    }

    /// Notes the key at place `i`, whose hash is given; false if the call named it before.
    pub(crate) fn insert(&mut self, keys: Keys<'_>, i: usize, hash: u64) -> bool {
        let mask = self.table.len() - 1;
        let call = u64::from(self.call) << 32;
        // The low half of the hash, whole: the table is shorter than 2^32.
        let mut at = usize::try_from(hash & 0xffff_ffff).unwrap_or(0) & mask;
        loop {
            let entry = self.table[at];
            if entry >> 32 != u64::from(self.call) {
                self.table[at] = call | i as u64;
                return true;
            }
            let other = usize::try_from(entry & 0xffff_ffff).unwrap_or(0);
            if keys.get(other) == keys.get(i) {
                return false;
            }
            // The table is at most half full, so that the probe ends.
            at = (at + 1) & mask;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Dedupe;
    use crate::key::Keys;

    #[test]
    fn a_key_is_new_once_a_call_even_if_hashes_collide() {
        let keys: [&[u8]; 5] = [b"a", b"b", b"a", b"c", b"b"];
        let keys = Keys::slices(&keys);
        let mut dedupe = Dedupe::default();
        for _ in 0..3 {
            dedupe.begin(keys.len());
            let new: Vec<bool> = (0..5).map(|i| dedupe.insert(keys, i, 7)).collect();
            assert_eq!(new, [true, true, false, true, false]);
        }
    }

    #[test]
    fn no_entry_of_an_old_call_is_taken_for_one_of_this_when_the_count_of_calls_starts_again() {
        let keys: [&[u8]; 2] = [b"a", b"b"];
        let keys = Keys::slices(&keys);
        let mut dedupe = Dedupe::default();
        for call in [0, u32::MAX - 2] {
            dedupe.call = call;
            for _ in 0..4 {
                dedupe.begin(2);
                let new = [0, 1, 0].map(|i| dedupe.insert(keys, i, 1));
                assert_eq!(new, [true, true, false]);
            }
        }
        // A longer call finds a table that is at most half full.
        let many = vec![&b"x"[..]; 1000];
        dedupe.begin(many.len());
        assert!(dedupe.insert(Keys::slices(&many), 0, 3));
        assert!(!dedupe.insert(Keys::slices(&many), 999, 3));
    }
}
