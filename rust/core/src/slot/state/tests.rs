//! Every transition from every state, against a table of what it may do.

use super::*;

const PHASES: [Phase; 5] = [
    Phase::Free,
    Phase::Pending,
    Phase::Ready,
    Phase::Evicting,
    Phase::Draining,
];
const GENERATION: u32 = 7;

/// A state in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    generation: u32,
    phase: Phase,
    pins: u16,
    parked: bool,
}

impl Parts {
    fn word(self) -> AtomicU64 {
        let parked = if self.parked { PARKED } else { 0 };
        let generation = u64::from(self.generation) << GENERATION_SHIFT;
        let phase = (self.phase as u64) << PHASE_SHIFT;
        AtomicU64::new(generation | phase | parked | u64::from(self.pins))
    }

    fn of(word: &AtomicU64) -> Self {
        let state = load(word);
        Self {
            generation: state.generation(),
            phase: state.phase(),
            pins: state.pins(),
            parked: state.is_parked(),
        }
    }

    fn with(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }
}

fn every_state() -> impl Iterator<Item = Parts> {
    let pins = [0, 1, 2, MAX_PINS - 1, MAX_PINS];
    PHASES.into_iter().flat_map(move |phase| {
        pins.into_iter().flat_map(move |pins| {
            [false, true].map(|parked| Parts {
                generation: GENERATION,
                phase,
                pins,
                parked,
            })
        })
    })
}

/// Runs `step` on every state; it answers, and says what the state must be then.
fn check<A: PartialEq + std::fmt::Debug>(
    step: impl Fn(&AtomicU64) -> A,
    expected: impl Fn(Parts) -> (A, Parts),
) {
    for before in every_state() {
        let word = before.word();
        let answer = step(&word);
        let (wanted, after) = expected(before);
        assert_eq!(
            (answer, Parts::of(&word)),
            (wanted, after),
            "from {before:?}"
        );
    }
}

#[test]
fn a_state_is_what_it_was_made_of() {
    for parts in every_state() {
        assert_eq!(Parts::of(&parts.word()), parts);
        let visible = !matches!(parts.phase, Phase::Free | Phase::Draining);
        assert_eq!(load(&parts.word()).is_visible(), visible);
    }
}

#[test]
fn patterns_that_no_transition_writes_read_as_free() {
    for raw in 5..8u64 {
        let state = State::from_raw(raw << PHASE_SHIFT);
        assert_eq!((state.phase(), state.is_visible()), (Phase::Free, false));
    }
    assert_eq!(State::from_raw(0).phase(), Phase::Free);
}

#[test]
fn a_pin_is_taken_on_a_ready_slot_of_its_generation_below_the_most() {
    check(
        |word| try_pin(word, GENERATION),
        |before| match (before.phase, before.pins) {
            (Phase::Ready, pins) if pins < MAX_PINS => {
                let pins = pins + 1;
                (PinAnswer::Pinned, Parts { pins, ..before })
            }
            (Phase::Ready | Phase::Evicting, _) => (PinAnswer::Busy, before),
            (Phase::Pending, _) => (PinAnswer::Pending, before),
            (Phase::Free | Phase::Draining, _) => (PinAnswer::Gone, before),
        },
    );
    for other in [GENERATION - 1, GENERATION + 1, 0, u32::MAX] {
        check(
            |word| try_pin(word, other),
            |before| (PinAnswer::Gone, before),
        );
    }
}

#[test]
fn a_pin_is_given_back_in_its_generation_while_there_is_one() {
    check(
        |word| unpin(word, GENERATION),
        |before| match before.pins {
            0 => (Unpin::Stale, before),
            pins => {
                let last = pins == 1 && before.parked;
                let answer = if last {
                    Unpin::LastOfParked
                } else {
                    Unpin::Released
                };
                let pins = pins - 1;
                (answer, Parts { pins, ..before })
            }
        },
    );
    for other in [GENERATION - 1, GENERATION + 1, 0, u32::MAX] {
        check(|word| unpin(word, other), |before| (Unpin::Stale, before));
    }
}

#[test]
fn a_ready_slot_that_nobody_holds_is_claimed_and_given_back_as_it_was() {
    check(claim, |before| match (before.phase, before.pins) {
        (Phase::Ready, 0) => (Claim::Claimed, before.with(Phase::Evicting)),
        (Phase::Ready, _) => (Claim::Pinned, before),
        _ => (Claim::Gone, before),
    });
    check(restore, |before| match before.phase {
        Phase::Evicting => ((), before.with(Phase::Ready)),
        _ => ((), before),
    });
}

#[test]
fn a_slot_that_is_claimed_or_parked_is_one_of_them() {
    check(claim_or_park, |before| match (before.phase, before.pins) {
        (Phase::Ready, 0) => (Claim::Claimed, before.with(Phase::Evicting)),
        (Phase::Ready, _) => {
            let parked = true;
            (Claim::Pinned, Parts { parked, ..before })
        }
        _ => (Claim::Gone, before),
    });
}

#[test]
fn freeing_begins_the_next_generation_and_leaves_nothing_of_the_old_one() {
    for generation in [0, GENERATION, u32::MAX] {
        for before in every_state() {
            let word = Parts {
                generation,
                ..before
            }
            .word();
            let next = generation.wrapping_add(1);
            assert_eq!(free(&word), next);
            let free = Parts {
                generation: next,
                phase: Phase::Free,
                pins: 0,
                parked: false,
            };
            assert_eq!(Parts::of(&word), free);
        }
    }
}

#[test]
fn a_store_is_published_in_its_generation_while_it_is_pending() {
    check(
        |word| publish(word, GENERATION),
        |before| match before.phase {
            Phase::Pending => (true, before.with(Phase::Ready)),
            _ => (false, before),
        },
    );
    check(
        |word| publish(word, GENERATION + 1),
        |before| (false, before),
    );
}

#[test]
fn a_free_slot_becomes_pending_in_the_generation_that_it_has() {
    let free = Parts {
        generation: GENERATION,
        phase: Phase::Free,
        pins: 0,
        parked: false,
    };
    let word = free.word();
    assert_eq!(begin_store(&word), GENERATION);
    assert_eq!(Parts::of(&word), free.with(Phase::Pending));
}

#[test]
fn a_slot_is_parked_while_somebody_holds_it_and_unparked_at_any_time() {
    let parked = true;
    check(park, |before| match (before.phase, before.pins) {
        (Phase::Ready, 1..) => (true, Parts { parked, ..before }),
        _ => (false, before),
    });
    check(park_draining, |before| match (before.phase, before.pins) {
        (Phase::Draining, 1..) => (true, Parts { parked, ..before }),
        _ => (false, before),
    });
    check(unpark, |before| {
        let parked = false;
        ((), Parts { parked, ..before })
    });
}

#[test]
fn a_pending_slot_drains_with_one_pin_for_its_transfer() {
    for before in every_state().filter(|before| before.pins == 0) {
        let word = before.word();
        drain_pending(&word);
        let after = match before.phase {
            Phase::Pending => Parts {
                phase: Phase::Draining,
                pins: 1,
                ..before
            },
            _ => before,
        };
        assert_eq!(Parts::of(&word), after);
    }
}

#[test]
fn a_ready_slot_drains_parked_while_somebody_holds_it() {
    check(drain_pinned, |before| match (before.phase, before.pins) {
        (Phase::Ready, 1..) => {
            let (phase, parked) = (Phase::Draining, true);
            (
                true,
                Parts {
                    phase,
                    parked,
                    ..before
                },
            )
        }
        _ => (false, before),
    });
}
