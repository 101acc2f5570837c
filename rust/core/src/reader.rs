//! Readers: lookups, pins and touches from any thread while the owner works.

use crate::error::KeyError;
use crate::guess::Guess;
use crate::index::Found;
use crate::key::{Keys, check_key};
use crate::shared::{LookupResult, PrefixHits, Shared};
use crate::slot::state::{self, PinAnswer, State, Unpin};
use crate::stats::Stats;
use crate::sync::{Arc, Ordering};

/// A handle for any thread, made by [`crate::Manager::reader`]. Clones are cheap and share one
/// engine, which lives for as long as any of them.
///
/// Progress: `lookup` and its batch forms are lock-free and `wait`-free but for moves in the index
/// by the owner; `try_pin` and `unpin` are lock-free (one compare-exchange); `touch` is lock-free
/// and bounded. Nothing here ever blocks the owner or another reader.
///
/// A handle remembers where `lookup` found its last key, so that walking along a prefix key by key
/// is cheap. Threads that share one handle get right answers, but spoil that for each other: give
/// each a clone.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    guess: Guess,
}

impl Clone for Reader {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }
}

/// The right to read one slot. It cannot be evicted until [`Reader::unpin`] gives this back.
///
/// A pin that is dropped instead keeps its chunk in the tier until the next reset.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a pin that is not given back holds its slot until the next reset"]
pub struct Pin {
    incarnation: u64,
    slot: u32,
    generation: u32,
}

impl Pin {
    /// The slot that may be read.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// How often the slot had changed hands when it was pinned.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }
}

/// What [`Reader::try_pin`] found.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum TryPin {
    /// The chunk may be read.
    Pinned(Pin),
    /// It is being stored.
    Pending,
    /// It is being evicted at this moment, or holds the most pins that a slot can have: ask again,
    /// or compute.
    Busy,
    /// It is not in the tier.
    Miss,
}

/// What [`Reader::unpin`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpinned {
    /// The pin is gone; what was read is valid.
    Released,
    /// The chunk had left by a reset, or the pin is another engine's: what was read must not be
    /// used.
    Stale,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            guess: Guess::new(),
        }
    }

    /// Whether one chunk is in the tier. Never pins, never changes an order.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if no engine can hold the key.
    pub fn lookup(&self, key: &[u8]) -> Result<LookupResult, KeyError> {
        check_key(0, key.len(), self.shared.key_bytes)?;
        Ok(self.guess.find(&self.shared.storage, key).into())
    }

    /// The longest leading run of ready chunks, and of ready or pending ones.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held.
    pub fn lookup_prefix(&self, keys: Keys<'_>) -> Result<PrefixHits, KeyError> {
        keys.check(self.shared.key_bytes)?;
        Ok(self.shared.storage.prefix(keys))
    }

    /// One answer a key, into `out`.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held.
    pub fn lookup_each(&self, keys: Keys<'_>, out: &mut Vec<LookupResult>) -> Result<(), KeyError> {
        keys.check(self.shared.key_bytes)?;
        self.shared.storage.each(keys, out);
        Ok(())
    }

    /// Pins a ready chunk, so that its slot may be read.
    ///
    /// The generation that the lookup saw beside the key is part of the compare-exchange: if it
    /// succeeds, the slot has not changed hands since the key was compared.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if no engine can hold the key.
    pub fn try_pin(&self, key: &[u8]) -> Result<TryPin, KeyError> {
        check_key(0, key.len(), self.shared.key_bytes)?;
        loop {
            let Found::Slot(slot, seen) = self.shared.storage.find_one(key) else {
                return Ok(TryPin::Miss);
            };
            match self.pin_seen(slot, seen) {
                PinAnswer::Pinned => {
                    return Ok(TryPin::Pinned(Pin {
                        incarnation: self.shared.incarnation,
                        slot,
                        generation: seen.generation(),
                    }));
                }
                PinAnswer::Busy => return Ok(TryPin::Busy),
                PinAnswer::Pending => return Ok(TryPin::Pending),
                // The slot changed hands since the lookup. The loop ends: each turn means that the
                // owner freed a slot.
                PinAnswer::Gone => {}
            }
        }
    }

    fn pin_seen(&self, slot: u32, seen: State) -> PinAnswer {
        state::try_pin(self.shared.storage.records.state(slot), seen.generation())
    }

    /// Gives a pin back.
    pub fn unpin(&self, pin: Pin) -> Unpinned {
        let ours = pin.incarnation == self.shared.incarnation;
        if ours && self.shared.unpin(pin.slot, pin.generation) != Unpin::Stale {
            return Unpinned::Released;
        }
        // Relaxed: a counter.
        self.shared.unpins_stale.fetch_add(1, Ordering::Relaxed);
        Unpinned::Stale
    }

    /// "These chunks were used": applied by the owner, tail first, when it next changes anything.
    /// Touches that do not fit the log are dropped and counted. Keys that are not in the tier are
    /// left out.
    ///
    /// # Errors
    ///
    /// [`KeyError`] if a key cannot be held.
    pub fn touch(&self, keys: Keys<'_>) -> Result<(), KeyError> {
        keys.check(self.shared.key_bytes)?;
        for key in keys.iter().rev() {
            if let Found::Slot(slot, state) = self.shared.storage.find_one(key) {
                let touch = u64::from(slot) << 32 | u64::from(state.generation());
                if self.shared.touches.push(touch).is_err() {
                    // Relaxed: a counter.
                    self.shared.touches_dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// The engine's numbers. See [`Stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }
}
