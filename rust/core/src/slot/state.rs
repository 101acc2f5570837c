//! The state word of a slot, and every transition it can make.
//!
//! ```text
//! bits  63..32 generation | 31..16 unused | 15 parked | 14..12 phase | 11..0 pins
//!
//! Free → Pending → Ready ⇄ Evicting → Free          Pending or Ready → Draining → Free  (reset, cancel)
//! ```
//!
//! Invariants:
//!
//! * I1. Every transition is one compare-exchange on this word. Only the owner changes the phase,
//!   the generation and the parked flag; anyone changes the pins.
//! * I2. The generation grows by one whenever the slot becomes `Free`, and at no other time. A pin
//!   or a ticket names the generation it was given, so that a late one finds that its slot has
//!   changed hands.
//! * I3. Pins are above zero only in `Ready` and `Draining`. In `Draining` one pin may stand for
//!   the transfer of a cancelled store.
//! * I4. `parked` asks whoever releases the last pin for a notice.
//!
//! | step | by | success ordering | pairs with |
//! |---|---|---|---|
//! | [`begin_store`] | owner | Release | the Acquire of [`load`]: the key words are visible |
//! | [`publish`] | owner | Release | the Acquire of [`try_pin`]: the bytes of the chunk are visible |
//! | [`try_pin`] | anyone | Acquire | [`publish`] |
//! | [`unpin`] | anyone | Release | the Acquire of [`free`]: reads of the slot end before it is overwritten |
//! | [`claim`] | owner | Relaxed | nothing: it reserves the slot, and whoever reuses it frees it first |
//! | [`free`] | owner | Acquire | every [`unpin`] of the generation |
//!
//! A slot is overwritten only after it was free, however it came to be: evicted, dropped, failed or
//! drained. So [`free`] alone takes over from the readers, and no path to it can forget to.
//!
//! All transitions are read-modify-writes, so each continues the release sequence that it finds.
//! Every function is lock-free: a failed compare-exchange means that another one succeeded.
//! Generations wrap after 2^32 uses of one slot; a pin held across exactly that many is not told
//! apart.

use crate::mutant::{Mutant, is, weaken};
use crate::sync::{AtomicU64, Ordering};

const PINS: u64 = 0xfff;
const PHASE_SHIFT: u32 = 12;
const PHASE: u64 = 0b111 << PHASE_SHIFT;
const PARKED: u64 = 1 << 15;
const GENERATION_SHIFT: u32 = 32;

/// The most pins that one slot can hold.
pub(crate) const MAX_PINS: u16 = 0xfff;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// On the free list.
    Free,
    /// A store writes it.
    Pending,
    /// It may be read.
    Ready,
    /// The owner has claimed it as a victim and has not decided yet.
    Evicting,
    /// Its key is gone, a transfer still uses it.
    Draining,
}

/// A value of the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The phase. Patterns that no transition writes read as `Free`.
    #[inline]
    pub(crate) const fn phase(self) -> Phase {
        match (self.0 & PHASE) >> PHASE_SHIFT {
            1 => Phase::Pending,
            2 => Phase::Ready,
            3 => Phase::Evicting,
            4 => Phase::Draining,
            _ => Phase::Free,
        }
    }

    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    #[inline]
    pub(crate) const fn pins(self) -> u16 {
        (self.0 & PINS) as u16
    }

    #[inline]
    pub(crate) const fn is_parked(self) -> bool {
        self.0 & PARKED != 0
    }

    /// Whether a lookup of the slot's key finds it.
    #[inline]
    pub(crate) const fn is_visible(self) -> bool {
        matches!(
            self.phase(),
            Phase::Pending | Phase::Ready | Phase::Evicting
        )
    }

    const fn with_phase(self, phase: Phase) -> Self {
        Self(self.0 & !PHASE | (phase as u64) << PHASE_SHIFT)
    }

    /// `Free` in the next generation: flags and pins cleared.
    fn freed(self) -> Self {
        let next = if is(Mutant::FreeKeepsGeneration) {
            self.generation()
        } else {
            self.generation().wrapping_add(1)
        };
        Self(u64::from(next) << GENERATION_SHIFT)
    }
}

/// What [`try_pin`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinAnswer {
    /// The caller holds one pin more.
    Pinned,
    /// Being evicted, or at the most pins: ask again later.
    Busy,
    /// Not ready yet.
    Pending,
    /// The slot has changed hands.
    Gone,
}

/// What [`unpin`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpin {
    /// One pin less.
    Released,
    /// That was the last pin of a parked slot: the owner waits for a notice.
    LastOfParked,
    /// The generation is over, or nothing was pinned. Nothing changed.
    Stale,
}

/// What [`claim`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The slot is `Evicting` now.
    Claimed,
    /// Somebody holds it.
    Pinned,
    /// It is not `Ready`.
    Gone,
}

/// Reads the word; what was written before the transition that is seen is visible.
#[inline]
pub(crate) fn load(word: &AtomicU64) -> State {
    // Acquire: pairs with the Release of `begin_store`, for the key words.
    State(word.load(weaken(Mutant::StateLoadRelaxed, Ordering::Acquire)))
}

/// Applies `next` until it succeeds or declines. Lock-free: see the module.
#[inline]
fn transition(
    word: &AtomicU64,
    success: Ordering,
    next: impl Fn(State) -> Option<State>,
) -> Result<State, State> {
    // Relaxed: the compare-exchange below decides, on this word alone.
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let Some(new) = next(State(seen)) else {
            return Err(State(seen));
        };
        if is(Mutant::TransitionNotAtomic) {
            word.store(new.0, success);
            return Ok(new);
        }
        match word.compare_exchange(seen, new.0, success, Ordering::Relaxed) {
            Ok(_) => return Ok(new),
            Err(now) => seen = now,
        }
    }
}

/// Takes one pin if the slot is `Ready` in this generation.
#[inline]
pub(crate) fn try_pin(word: &AtomicU64, generation: u32) -> PinAnswer {
    let same = |s: State| s.generation() == generation || is(Mutant::PinIgnoresGeneration);
    let open = |s: State| s.phase() == Phase::Ready || is(Mutant::PinIgnoresPhase);
    // Acquire: pairs with the Release of `publish`; the bytes of the chunk are visible to whoever
    // holds a pin.
    let order = weaken(Mutant::PinRelaxed, Ordering::Acquire);
    let taken = transition(word, order, |s| {
        (same(s) && open(s) && s.pins() < MAX_PINS).then(|| State(s.0 + 1))
    });
    match taken {
        Ok(_) => PinAnswer::Pinned,
        Err(s) if !same(s) => PinAnswer::Gone,
        Err(s) => match s.phase() {
            Phase::Ready | Phase::Evicting => PinAnswer::Busy,
            Phase::Pending => PinAnswer::Pending,
            Phase::Free | Phase::Draining => PinAnswer::Gone,
        },
    }
}

/// Releases one pin of this generation.
#[inline]
pub(crate) fn unpin(word: &AtomicU64, generation: u32) -> Unpin {
    // Release: pairs with the Acquire of `free`; the holder's reads of the slot end before it is
    // overwritten.
    let order = weaken(Mutant::UnpinRelaxed, Ordering::Release);
    let released = transition(word, order, |s| {
        let same = s.generation() == generation || is(Mutant::UnpinIgnoresGeneration);
        (same && s.pins() > 0).then(|| State(s.0 - 1))
    });
    match released {
        Ok(s) if s.pins() == 0 && s.is_parked() => Unpin::LastOfParked,
        Ok(_) => Unpin::Released,
        Err(_) => Unpin::Stale,
    }
}

/// Claims an unpinned `Ready` slot as a victim.
#[inline]
pub(crate) fn claim(word: &AtomicU64) -> Claim {
    // Relaxed: nothing is read or written under a claim; `free` or `restore` follows.
    let claimed = transition(word, Ordering::Relaxed, |s| {
        let free_of_pins = s.pins() == 0 || is(Mutant::ClaimIgnoresPins);
        (s.phase() == Phase::Ready && free_of_pins).then(|| s.with_phase(Phase::Evicting))
    });
    match claimed {
        Ok(_) => Claim::Claimed,
        Err(s) if s.phase() == Phase::Ready => Claim::Pinned,
        Err(_) => Claim::Gone,
    }
}

/// Gives a claimed slot back.
pub(crate) fn restore(word: &AtomicU64) {
    // Relaxed: nothing was written, and the release sequence of `publish` goes on.
    let _ = transition(word, Ordering::Relaxed, |s| {
        (s.phase() == Phase::Evicting).then(|| s.with_phase(Phase::Ready))
    });
}

/// Makes a slot `Free` in the next generation, whatever it is, and returns that generation.
pub(crate) fn free(word: &AtomicU64) -> u32 {
    // Acquire: pairs with the Release of every `unpin` of this generation; see the module. A reader
    // learns that the slot is free through the next key words, which are stored with Release.
    let order = weaken(Mutant::FreeRelaxed, Ordering::Acquire);
    match transition(word, order, |s| Some(s.freed())) {
        Ok(s) | Err(s) => s.generation(),
    }
}

/// Makes a `Free` slot `Pending`: from now on its key words count. Returns the generation.
#[inline]
pub(crate) fn begin_store(word: &AtomicU64) -> u32 {
    // Release: pairs with the Acquire of `load`; whoever sees `Pending` sees the key.
    let order = weaken(Mutant::BeginStoreRelaxed, Ordering::Release);
    let begun = transition(word, order, |s| {
        (s.phase() == Phase::Free).then(|| s.with_phase(Phase::Pending))
    });
    debug_assert!(begun.is_ok(), "a store begins in a free slot");
    match begun {
        Ok(s) | Err(s) => s.generation(),
    }
}

/// Makes a `Pending` slot of this generation `Ready`; false if it is something else.
#[inline]
pub(crate) fn publish(word: &AtomicU64, generation: u32) -> bool {
    // Release: pairs with the Acquire of `try_pin`; the bytes of the chunk are visible to whoever
    // pins it.
    let order = weaken(Mutant::PublishRelaxed, Ordering::Release);
    transition(word, order, |s| {
        (s.generation() == generation && s.phase() == Phase::Pending)
            .then(|| s.with_phase(Phase::Ready))
    })
    .is_ok()
}

/// Asks for a notice when the last pin goes; false if nothing is pinned any more.
pub(crate) fn park(word: &AtomicU64) -> bool {
    // Relaxed: the notice itself carries what the owner must see.
    transition(word, Ordering::Relaxed, |s| {
        let held = s.pins() > 0 || is(Mutant::ParkUnconditionally);
        (s.phase() == Phase::Ready && held).then_some(State(s.0 | PARKED))
    })
    .is_ok()
}

/// Claims a `Ready` slot; if somebody holds it, parks it instead, and answers [`Claim::Pinned`].
pub(crate) fn claim_or_park(word: &AtomicU64) -> Claim {
    loop {
        let claim = claim(word);
        // Each turn means that the last pin went between the two; it ends when no reader pins
        // again.
        if claim != Claim::Pinned || park(word) || is(Mutant::ParkNotRetried) {
            return claim;
        }
    }
}

/// Takes the request for a notice back.
pub(crate) fn unpark(word: &AtomicU64) {
    // Relaxed: the flag publishes nothing.
    let _ = transition(word, Ordering::Relaxed, |s| {
        s.is_parked().then_some(State(s.0 & !PARKED))
    });
}

/// Hides a `Pending` slot whose transfer still runs: `Draining`, with one pin for the transfer.
pub(crate) fn drain_pending(word: &AtomicU64) {
    // Relaxed: nothing is published; the transfer that ends it is the owner's to see.
    let _ = transition(word, Ordering::Relaxed, |s| {
        (s.phase() == Phase::Pending).then(|| State(s.with_phase(Phase::Draining).0 + 1))
    });
}

/// Hides a `Ready` slot: `Draining`, parked, while somebody holds it; false if nobody does, and
/// then nothing changed.
pub(crate) fn drain_pinned(word: &AtomicU64) -> bool {
    // Relaxed: as for `park`.
    transition(word, Ordering::Relaxed, |s| {
        let held = s.pins() > 0 || is(Mutant::DrainUnconditionally);
        (s.phase() == Phase::Ready && held).then(|| State(s.with_phase(Phase::Draining).0 | PARKED))
    })
    .is_ok()
}

/// Asks for a notice when the last pin of a `Draining` slot goes; false if nothing is pinned any
/// more.
pub(crate) fn park_draining(word: &AtomicU64) -> bool {
    // Relaxed: as for `park`.
    transition(word, Ordering::Relaxed, |s| {
        let held = s.pins() > 0 || is(Mutant::ParkDrainingUnconditionally);
        (s.phase() == Phase::Draining && held).then_some(State(s.0 | PARKED))
    })
    .is_ok()
}

#[cfg(all(test, not(loom)))]
mod tests;
