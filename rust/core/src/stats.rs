//! Counters and gauges, readable from any thread while the owner works.

use std::fmt;

use crate::sync::{Counter, Ordering};

/// Declares the numbers once: the struct of a snapshot, and its form as words.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of an engine's numbers. Each is right by itself; a snapshot taken while the
        /// owner works may mix the numbers from before and after a call.
        #[derive(Clone, Debug, Default, PartialEq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// ARC's adaptive target, in chunks; `None` for other policies.
            pub target_t1_size: Option<f64>,
        }

        impl Stats {
            const WORDS: usize = [$(stringify!($name)),*].len() + 1;

            /// The numbers and their names, for exporters.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            fn words(&self) -> [u64; Self::WORDS] {
                // No target is kept as a NaN, which no target is.
                [$(self.$name,)* self.target_t1_size.unwrap_or(f64::NAN).to_bits()]
            }

            fn from_words(words: [u64; Self::WORDS]) -> Self {
                let [$($name,)* target] = words;
                let target = f64::from_bits(target);
                Self { $($name,)* target_t1_size: (!target.is_nan()).then_some(target) }
            }
        }
    };
}

numbers! {
    /// Chunks that the tier holds at most.
    capacity,
    /// Slots that hold nothing.
    free,
    /// Chunks that are stored and may be read, pinned ones included.
    ready,
    /// Chunks that are being stored.
    pending,
    /// Ready chunks that the owner has pinned. Pins of readers are not in it.
    pinned,
    /// Slots without a key that a transfer still uses.
    draining,
    /// Chunks that the policy may evict now, those that only readers hold included.
    evictable,
    /// Keys remembered without data.
    ghosts,
    /// How long the oldest pin of the owner has been held, in microseconds of the caller's clock.
    longest_pin_us,
    /// How long the oldest pending store has been under way, in microseconds of the caller's clock.
    longest_pending_us,
    /// Chunks that a request found, once per request and key.
    hits,
    /// Chunks that a request offered and did not find, once per request and key.
    misses,
    /// Chunks whose store has completed.
    stored,
    /// Chunks whose store failed.
    failed,
    /// Chunks that left to make room.
    evicted,
    /// Chunks that left by `drop_keys`.
    dropped,
    /// Stores given up: cancelled, or pending for too long.
    cancelled,
    /// Stores that did not fit: not enough chunks that nobody holds.
    declined_full,
    /// Stores that did not fit: no room in the index.
    declined_index,
    /// Offers of missing keys that were below the store threshold.
    declined_threshold,
    /// Completions that came for a slot that had changed hands, or twice.
    late,
    /// Touches of readers that did not fit the log.
    touches_dropped,
    /// Unpins of readers whose chunk had left by a reset.
    unpins_stale,
    /// Events that did not fit.
    events_lost,
    /// Resets so far.
    epoch,
}

impl Stats {
    /// Chunks in the tier, ready or pending.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.ready + self.pending
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resident, capacity) = (self.resident(), self.capacity);
        write!(f, "{resident}/{capacity} chunks, {} pinned", self.pinned)
    }
}

/// The last snapshot that the owner published.
#[derive(Debug)]
pub(crate) struct Published([Counter; Stats::WORDS]);

impl Published {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Counter::new(0)))
    }

    pub(crate) fn publish(&self, stats: &Stats) {
        for (cell, word) in self.0.iter().zip(stats.words()) {
            // Relaxed: a number says nothing about other memory.
            cell.store(word, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Stats {
        // Relaxed: as above.
        Stats::from_words(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Published, Stats};

    #[test]
    fn what_is_published_is_what_is_read() {
        let published = Published::new();
        let some = Stats {
            hits: 7,
            epoch: 3,
            target_t1_size: Some(1.5),
            ..Stats::default()
        };
        let none = Stats {
            target_t1_size: None,
            capacity: 9,
            ..Stats::default()
        };
        for stats in [some, none] {
            published.publish(&stats);
            assert_eq!(published.read(), stats);
        }
    }
}
