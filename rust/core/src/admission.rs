//! Admission: a key is stored once it has been offered a number of times.
//!
//! Counts offers exactly as vLLM does (0.32): a tracked key once per occurrence in a call, a new
//! key once per call, in a table that forgets the key offered longest ago. The keys of one call
//! never push each other out: where the whole table belongs to the call, new keys are not tracked.
//! O(1) a key.

use hashlink::LinkedHashMap;

use crate::hash::Fingerprint;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tracker {
    threshold: u32,
    max: usize,
    call: u64,
    counts: LinkedHashMap<Fingerprint, Offers>,
}

#[derive(Clone, Copy, Debug)]
struct Offers {
    count: u32,
    call: u64,
}

impl Tracker {
    pub(crate) fn new(threshold: u32, max: usize) -> Self {
        Self {
            threshold,
            max,
            call: 0,
            counts: LinkedHashMap::new(),
        }
    }

    /// Counts one call's offers.
    pub(crate) fn offer(&mut self, keys: &[Fingerprint]) {
        self.call += 1;
        let mut protected = 0;
        for key in keys {
            if let Some(offers) = self.counts.to_back(key) {
                protected += usize::from(offers.call != self.call);
                *offers = Offers {
                    count: offers.count.saturating_add(1),
                    call: self.call,
                };
            }
        }
        let mut unprotected = self.counts.len() - protected;
        for key in keys {
            if self.counts.contains_key(key) {
                continue;
            }
            if self.counts.len() >= self.max {
                if unprotected == 0 {
                    continue;
                }
                self.counts.pop_front();
                unprotected -= 1;
            }
            self.counts.insert(
                *key,
                Offers {
                    count: 1,
                    call: self.call,
                },
            );
        }
    }

    /// Whether a key has been offered often enough.
    pub(crate) fn admits(&self, key: Fingerprint) -> bool {
        self.counts
            .get(&key)
            .is_some_and(|offers| offers.count >= self.threshold)
    }

    /// An estimate: the entries, the hash table over them at its usual load, and two links each.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.counts.capacity() * (size_of::<(Fingerprint, Offers)>() + 4 * size_of::<usize>())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Tracker;

    #[test]
    fn a_key_is_admitted_at_the_threshold() {
        let mut tracker = Tracker::new(2, 10);
        tracker.offer(&[1]);
        assert!(!tracker.admits(1));
        tracker.offer(&[1, 2]);
        assert!(tracker.admits(1) && !tracker.admits(2));
    }

    #[test]
    fn the_key_offered_longest_ago_is_forgotten() {
        let mut tracker = Tracker::new(2, 2);
        tracker.offer(&[1, 2]);
        tracker.offer(&[1]);
        tracker.offer(&[3]);
        tracker.offer(&[2]);
        assert!(tracker.admits(1) || !tracker.admits(2));
        assert!(
            !tracker.admits(2),
            "it was forgotten for 3, so this was its first offer"
        );
    }

    #[test]
    fn keys_of_one_call_do_not_push_each_other_out() {
        let mut tracker = Tracker::new(2, 2);
        tracker.offer(&[1, 2, 3]);
        tracker.offer(&[1, 2, 3]);
        assert!(tracker.admits(1) && tracker.admits(2) && !tracker.admits(3));
    }
}
