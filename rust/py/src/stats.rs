//! `Stats`: a snapshot of an engine's numbers.

use kvferry::Stats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A snapshot of the engine's numbers. Each is right by itself; one taken while the owner works may
/// mix the numbers from before and after a call.
#[pyclass(frozen, eq, module = "kvferry", name = "Stats")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyStats {
    stats: Stats,
}

impl PyStats {
    pub(crate) fn new(stats: Stats) -> Self {
        Self { stats }
    }
}

/// One getter a number, documented where the engine declares it.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[pymethods]
        impl PyStats {
            $(
                $(#[$doc])*
                #[getter]
                fn $name(&self) -> u64 {
                    self.stats.$name
                }
            )*

            /// Chunks in the tier, ready or pending.
            #[getter]
            fn resident(&self) -> u64 {
                self.stats.resident()
            }

            /// ARC's adaptive target, in chunks; 0.0 under other policies.
            #[getter]
            fn target_t1_size(&self) -> f64 {
                self.stats.target_t1_size.unwrap_or(0.0)
            }

            /// The numbers by name, for exporters: `dict[str, float]`.
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                for (name, number) in self.stats.iter() {
                    dict.set_item(name, number)?;
                }
                dict.set_item("resident", self.resident())?;
                dict.set_item("target_t1_size", self.target_t1_size())?;
                Ok(dict)
            }

            fn __repr__(&self) -> String {
                let numbers: Vec<String> = self
                    .stats
                    .iter()
                    .filter(|&(_, number)| number > 0)
                    .map(|(name, number)| format!("{name}={number}"))
                    .collect();
                format!("<Stats {}>", numbers.join(" "))
            }
        }
    };
}

getters! {
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
    /// Chunks whose store was cancelled or was pending for too long.
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
