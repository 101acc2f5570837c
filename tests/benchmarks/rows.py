"""One function for each row of the table: rounds of the baseline and of kvferry, in turn.

Times are the CPU time of the measuring thread, so that other programs on the machine disturb less;
on a quiet machine that is the time that passes. What a caller has before he asks (a list of keys, a
request's context) is made outside the measured time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np

import kvferry
from benchmarks.tiers import Array, Pair, as_list

clock = time.thread_time_ns

STEP = 1024  # keys of a store or load: a prefill step of 16k tokens
ROUNDS = 100


@dataclass(frozen=True)
class Row:
    """One measure. Figures are one a round, in `unit`."""

    name: str
    policy: str
    unit: str
    theirs: Sequence[float]
    ours: Sequence[float]
    least_ratio: float | None = None
    """How many times the baseline's figure has to be kvferry's."""
    at_most: float | None = None
    """What kvferry's figure may be, in `unit`."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def in_turn(
    rounds: int, theirs: Callable[[int], float], ours: Callable[[int], float]
) -> tuple[list[float], list[float]]:
    """Runs both, each first in every other round."""
    measured: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            measured[which].append((theirs, ours)[which](number))
    return measured


def rounds_of(pair: Pair, most: int = ROUNDS) -> int:
    """Fewer in small tiers, where the last rounds would meet the keys of the first."""
    return min(most, pair.capacity // 8 // STEP)


def one_hot(pair: Pair, calls: int = 20_000) -> Row:
    key = as_list(pair.prompts[-1][:1])[0]
    context = pair.baseline.context()

    def theirs(_: int) -> float:
        lookup = pair.theirs.lookup
        started = clock()
        for _ in repeat(None, calls):
            lookup(key, context)
        return (clock() - started) / calls

    def ours(_: int) -> float:
        lookup = pair.ours.lookup
        started = clock()
        for _ in repeat(None, calls):
            lookup(key)
        return (clock() - started) / calls

    measured = in_turn(15, theirs, ours)
    return Row("one key, hot", pair.policy, "ns/call", *measured, least_ratio=7)


def one_fresh(pair: Pair, least_ratio: float = 3.5, what: str = "") -> Row:
    """Keys that nobody asked for in a long time, each of another prompt than the one before."""
    keys = [k for prompt in pair.prompts for k in as_list(prompt[:: len(prompt) // 256])]
    random.Random(1).shuffle(keys)
    rounds = rounds_of(pair, 50)
    a_round = min(512, len(keys) // rounds)
    context = pair.baseline.context()

    def asked(number: int) -> list[bytes]:
        return as_list(np.frombuffer(b"".join(keys[number * a_round :][:a_round]), np.uint8))

    def theirs(number: int) -> float:
        lookup, asked_now = pair.theirs.lookup, asked(number)
        started = clock()
        for key in asked_now:
            lookup(key, context)
        return (clock() - started) / a_round

    def ours(number: int) -> float:
        lookup, asked_now = pair.ours.lookup, asked(number)
        started = clock()
        for key in asked_now:
            lookup(key)
        return (clock() - started) / a_round

    measured = in_turn(rounds, theirs, ours)
    name = f"one key of a fresh prompt, another prompt each call{what}"
    return Row(name, pair.policy, "ns/call", *measured, least_ratio=least_ratio)


def walked(pair: Pair, least_ratio: float = 3.5, what: str = "") -> Row:
    """A fresh prompt asked for key by key, as vLLM's scheduler does, of both."""
    hit = kvferry.LookupResult.HIT

    def ours(number: int) -> float:
        lookup, keys = pair.ours.lookup, as_list(pair.prompts[number])
        started = clock()
        for key in keys:
            if lookup(key) is not hit:
                raise AssertionError("a chunk of a whole prompt is not there")
        return (clock() - started) / len(keys)

    measured = in_turn(len(pair.prompts), lambda n: _walk_theirs(pair, n), ours)
    name = f"one key of a fresh prompt, the next one each call{what}"
    return Row(name, pair.policy, "ns/call", *measured, least_ratio=least_ratio)


def _walk_theirs(pair: Pair, number: int) -> float:
    lookup, hit = pair.theirs.lookup, pair.baseline.hit
    keys, context = as_list(pair.prompts[number]), pair.baseline.context()
    started = clock()
    for key in keys:
        if lookup(key, context) is not hit:
            raise AssertionError("a chunk of a whole prompt is not there")
    return (clock() - started) / len(keys)


def whole_prompt(pair: Pair, form: str, least_ratio: float) -> Row:
    """A fresh prompt in one call, the baseline key by key."""
    packed: Callable[[Array], Any] = as_list if form == "list" else np.copy

    def ours(number: int) -> float:
        keys = packed(pair.prompts[number])
        started = clock()
        ready, _ = pair.ours.lookup_prefix(keys)
        spent = clock() - started
        if ready != len(keys):
            raise AssertionError("a chunk of a whole prompt is not there")
        return spent / ready

    measured = in_turn(len(pair.prompts), lambda n: _walk_theirs(pair, n), ours)
    name = f"{len(pair.prompts[0]):,} keys of a fresh prompt in one call, {form}"
    return Row(name, pair.policy, "ns/key", *measured, least_ratio=least_ratio)


def stores(pair: Pair, least_ratio: float) -> Iterator[Row]:
    """Stores of new chunks for which as many leave: what the call returns is read, too."""
    measured = in_turn(
        rounds_of(pair),
        lambda _: _their_request(pair, as_list(pair.keys(STEP)), _their_store)[1],
        lambda _: _our_request(pair, as_list(pair.keys(STEP)), _our_store)[1],
    )
    name = f"store and evict, {STEP:,} keys"
    yield Row(name, pair.policy, "ns/key", *measured, least_ratio=least_ratio)
    positions = np.arange(1, STEP + 1) * 16
    measured = in_turn(
        rounds_of(pair),
        lambda _: sum(_their_request(pair, as_list(pair.keys(STEP)), _their_store, positions)),
        lambda _: sum(_our_request(pair, as_list(pair.keys(STEP)), _our_store, positions)),
    )
    yield Row(f"{name}, with the request's begin and end", pair.policy, "ns/key", *measured)


def loads(pair: Pair, least_ratio: float) -> Iterator[Row]:
    """Loads of parts of fresh prompts."""
    starts = range(0, len(pair.prompts[0]) - STEP + 1, STEP)
    parts = [prompt[i : i + STEP] for i in starts for prompt in pair.prompts]
    # Stores have evicted some meanwhile.
    parts = [part for part in parts if pair.ours.lookup_prefix(part)[0] == STEP]
    rounds = min(rounds_of(pair), len(parts) // 2)
    measured = in_turn(
        rounds,
        lambda n: _their_request(pair, as_list(parts[n]), _their_load)[1],
        lambda n: _our_request(pair, as_list(parts[n]), _our_load)[1],
    )
    name = f"load, {STEP:,} keys"
    yield Row(name, pair.policy, "ns/key", *measured, least_ratio=least_ratio)
    positions = np.arange(1, STEP + 1) * 16
    measured = in_turn(
        rounds,
        lambda n: sum(_their_request(pair, as_list(parts[-n - 1]), _their_load, positions)),
        lambda n: sum(_our_request(pair, as_list(parts[-n - 1]), _our_load, positions)),
    )
    yield Row(f"{name}, with the request's begin and end", pair.policy, "ns/key", *measured)


Verb = Callable[[Any, list[bytes], Any], None]


def _their_store(manager: Any, keys: list[bytes], context: Any) -> None:
    output = manager.prepare_store(keys, context)
    stored, _, _ = output.keys_to_store, output.store_spec.block_ids, output.evicted_keys
    manager.complete_store(stored, context)


def _our_store(manager: kvferry.OffloadingManager, keys: list[bytes], access: Any) -> None:
    output = manager.prepare_store(keys, access)
    _ = output.keys_to_store, output.store_spec.block_ids, output.evicted_keys
    manager.complete_store(output)


def _their_load(manager: Any, keys: list[bytes], context: Any) -> None:
    _ = manager.prepare_load(keys, context).block_ids
    manager.complete_load(keys, context)


def _our_load(manager: kvferry.OffloadingManager, keys: list[bytes], access: Any) -> None:
    output = manager.prepare_load(keys, access)
    _ = output.load_spec.block_ids
    manager.complete_load(output)


def _their_request(
    pair: Pair, keys: list[bytes], verb: Verb, positions: Array | None = None
) -> tuple[float, float, float]:
    """Returns what the begin, the verb and the end took, in ns a key.

    The scheduler fills the table of positions; that is not the manager's time.
    """
    manager, context = pair.theirs, pair.baseline.context()
    if positions is not None:
        for key, position in zip(keys, positions.tolist(), strict=True):
            context.set_offload_key_position(key, position)
    times = [clock()]
    manager.on_new_request(context)
    times.append(clock())
    verb(manager, keys, context)
    times.append(clock())
    manager.on_request_finished(context)
    times.append(clock())
    return _steps(times, len(keys))


def _our_request(
    pair: Pair, keys: list[bytes], verb: Verb, positions: Array | None = None
) -> tuple[float, float, float]:
    """The same; here the positions are told when the request begins."""
    manager = pair.ours
    told = {} if positions is None else {"keys": keys, "positions": positions}
    times = [clock()]
    access = manager.begin_request(**told)
    times.append(clock())
    verb(manager, keys, access)
    times.append(clock())
    manager.finish_request(access)
    times.append(clock())
    return _steps(times, len(keys))


def _steps(times: list[int], keys: int) -> tuple[float, float, float]:
    begin, verb, end = ((b - a) / keys for a, b in pairwise(times))
    return begin, verb, end


def store_beside_pins(pair: Pair, most_rounds: int) -> Row:
    """A small store after the quarter of the tier that would leave next was pinned."""
    pinned = _oldest(pair, pair.capacity // 4)

    def theirs(_: int) -> float:
        manager, context = pair.theirs, pair.baseline.context()
        listed = [as_list(prompt) for prompt in pinned]
        for keys in listed:
            manager.prepare_load(keys, context)
        new, request = as_list(pair.keys(16)), pair.baseline.context()
        started = clock()
        _their_store(manager, new, request)
        spent = clock() - started
        for keys in listed:
            manager.complete_load(keys, context)
        return spent / 1e6

    def ours(_: int) -> float:
        manager = pair.ours
        loads = [manager.prepare_load(prompt) for prompt in pinned]
        new, request = as_list(pair.keys(16)), manager.begin_request()
        started = clock()
        _our_store(manager, new, request)
        spent = clock() - started
        for load in loads:
            manager.complete_load(load)
        return spent / 1e6

    measured = in_turn(most_rounds, theirs, ours)
    count = sum(map(len, pinned))
    name = f"one 16-key store, {count:,} of {pair.capacity:,} pinned"
    return Row(name, pair.policy, "ms", *measured, at_most=0.1)


def _oldest(pair: Pair, count: int) -> list[Array]:
    """Resident keys, those that would leave next."""
    found: list[Array] = []
    hit = kvferry.LookupResult.HIT.value
    for prompt in pair.first_to_leave:
        resident = prompt[pair.ours.lookup_each(prompt) == hit]
        # A request leaves its head more recent than its tail.
        found.append(resident[max(0, len(resident) - count) :])
        count -= len(found[-1])
    return [keys for keys in found if len(keys)]


def memory(pair: Pair, least_ratio: float) -> Row:
    theirs, ours = pair.bytes_per_chunk
    ghosts = ", ghosts full" if pair.policy == "arc" else ""
    name = f"memory per resident chunk{ghosts}"
    return Row(name, pair.policy, "bytes", [theirs], [ours], least_ratio=least_ratio)
