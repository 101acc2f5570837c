"""What one random history is about: sizes, habits of its requests, and how transfers end."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

SMALL_CAPACITIES = 64
LARGE_CAPACITIES = (100, 200, 300, 500)
HUGE_CAPACITIES = (1500, 2500)


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that a history draws from, so that the pair (workload, step) names a state.

    Attributes:
        seed: seed of the history's own generator.
        policy: `lru` or `arc`.
        capacity: slots.
        steps: operations in the history.
        rough: also do what vLLM leaves undefined, answers with an assertion, or does not have: a
            missing key twice in a store, loads of keys that are not ready, completions of loads
            that nobody prepared, late completions by ticket, resets with transfers in flight,
            cancelled stores, dropped keys, calls without a request. Only managers that define all
            of that can be compared then.
        groups: group indices; each chunk of a prefix has one key in each.
        hash_bytes: lengths of the hash in front of the group.
        universe: chunks of a prefix that exist from the start.
        skew: how much more often the first documents are asked for; 1 is all alike.
        longest_tail: most chunks that one document adds to the prefix it shares.
        most_in_call: most chunks (each with a key per group) that one store covers.
        most_requests: requests in flight.
        store_threshold: offers before a key is stored.
        max_tracker_size: entries of the offer table.
        window: for groups after the first, the trailing chunks that exist; 0 means all.
        positions: which keys have one: `all`, `some`, `none`, or all but those of one `group`.
        by_ticket: completions name a ticket, where a manager has tickets, instead of keys.
        newest_first: the youngest transfer ends first, so that old pins stay for long.
        pinned_share: share of the capacity that loads may pin before one of them has to end.
        failures: share of the stores that fail.
        duplicates: share of the calls that name a key twice.
        events: whether events are recorded.
        eager_events: events are taken after every step, not now and then.
        touches: weight of `touch` by key; 0 is the way of newer engines.
        resets: weight of resets.
    """

    seed: int
    policy: str
    capacity: int
    steps: int
    rough: bool
    groups: tuple[int, ...]
    hash_bytes: tuple[int, ...]
    universe: int
    skew: float
    longest_tail: int
    most_in_call: int
    most_requests: int
    store_threshold: int
    max_tracker_size: int
    window: int
    positions: str
    by_ticket: bool
    newest_first: bool
    pinned_share: float
    failures: float
    duplicates: float
    events: bool
    eager_events: bool
    touches: float
    resets: float


def draw_workload(
    policy: str, seed: int, index: int, *, rough: bool = False, group_bytes: int = 4
) -> Workload:
    """Draw the `index`-th workload of a run; the small capacities come round in turn."""
    rng = random.Random(f"{policy} {seed} {index} {rough}")
    if index % 64 == 63:
        capacity, steps = rng.choice(HUGE_CAPACITIES), 1000
    elif index % 16 == 15:
        capacity, steps = rng.choice(LARGE_CAPACITIES), 4000
    else:
        capacity, steps = 1 + index % SMALL_CAPACITIES, rng.choice([500, 1000, 2000])
    groups = rng.choice([(0,), (0,), (0, 1), (0, 1, 2), (3, 70_000)]) if group_bytes else (0,)
    chunks = max(1, capacity // len(groups))
    threshold = rng.choice([1, 1, 1, 2, 3])
    drawn = Workload(
        seed=rng.getrandbits(48),
        policy=policy,
        capacity=capacity,
        steps=steps,
        rough=rough,
        groups=groups,
        hash_bytes=rng.choice([(8,), (8,), (32,), (1, 8, 20, 32)]),
        universe=3 + int(chunks * rng.choice([1.2, 2.0, 3.0, 5.0, 10.0])),
        skew=rng.choice([1.0, 1.5, 2.5]),
        longest_tail=max(2, min(40 + chunks // 8, int(chunks * rng.choice([0.2, 0.5, 1.0])))),
        most_in_call=rng.choice([2, 4, 8, max(8, chunks)]),
        most_requests=rng.choice([1, 2, 4, 8]),
        store_threshold=threshold,
        max_tracker_size=rng.choice([1, 4, 16, 4 * capacity, 64_000]),
        window=rng.choice([0, 0, 2, 4]),
        positions=rng.choice(["all", "all", "some", "none", "group"]),
        by_ticket=rough or rng.random() < 0.5,
        newest_first=rng.random() < 0.3,
        pinned_share=rng.choice([0.1, 0.3, 0.6, 1.0]),
        failures=rng.choice([0.0, 0.05, 0.3]),
        duplicates=rng.choice([0.0, 0.1]),
        events=rng.random() < 0.7,
        eager_events=rng.random() < 0.6,
        touches=rng.choice([0.0, 0.0, 4.0, 12.0]),
        resets=rng.choice([0.0, 0.05, 0.15]) * (4 if rough else 1),
    )
    if capacity not in HUGE_CAPACITIES:
        return drawn
    # With small calls or many resets so large a tier would never be full.
    return replace(drawn, most_in_call=chunks, store_threshold=1, resets=0.0)


def plain_workload(
    policy: str,
    capacity: int,
    *,
    store_threshold: int = 1,
    max_tracker_size: int = 64_000,
    by_ticket: bool = False,
) -> Workload:
    """Return the workload of a scenario that is written by hand: only its manager matters."""
    return Workload(
        seed=1,
        policy=policy,
        capacity=capacity,
        steps=0,
        rough=False,
        groups=(0,),
        hash_bytes=(8,),
        universe=1,
        skew=1.0,
        longest_tail=1,
        most_in_call=1,
        most_requests=1,
        store_threshold=store_threshold,
        max_tracker_size=max_tracker_size,
        window=0,
        positions="none",
        by_ticket=by_ticket,
        newest_first=False,
        pinned_share=1.0,
        failures=0.0,
        duplicates=0.0,
        events=True,
        eager_events=True,
        touches=0.0,
        resets=0.0,
    )
