"""Two warm tiers with one history: the baseline's and kvferry's, same capacity, policy and keys.

Warm means filled several times over: free slots, tables and orders are as they are after hours of
work. Under ARC the four lists are where they cost most: T1 and T2 hold about a half each, B1 and B2
a whole capacity each.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import kvferry
from benchmarks.baseline import Baseline

KEY_BYTES = 36
PROMPT = 8192  # chunks of a prompt of 128k tokens, 16 tokens a block

Array = np.ndarray
T = TypeVar("T")


class Keys:
    """Random keys as vLLM makes them: a block hash of 32 bytes and the group, four bytes."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, count: int) -> Array:
        keys = self._random.integers(0, 256, (count, KEY_BYTES), dtype=np.uint8)
        keys[:, -4:] = 0
        return keys


def as_list(keys: Array) -> list[bytes]:
    """The keys as new objects, whose hashes Python has not computed yet."""
    packed = keys.tobytes()
    return [packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES)]


def resident_bytes() -> int:
    """Anonymous memory of this process, what the allocators can give back left aside."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return 1024 * status_kib("status", "RssAnon")


def status_kib(file: str, name: str) -> int:
    for line in (Path("/proc/self") / file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


@dataclass
class BaselineTier:
    """One manager of the baseline, driven as vLLM's scheduler drives it."""

    baseline: Baseline
    manager: Any

    def store(self, keys: Array, *, twice: bool) -> None:
        listed = as_list(keys)
        context = self.baseline.context()
        self.manager.on_new_request(context)
        output = self.manager.prepare_store(listed, context)
        self.manager.complete_store(output.keys_to_store, context)
        self.manager.on_request_finished(context)
        if twice:
            self.manager.touch(listed, context)

    def resident(self, keys: Array) -> bool:
        context = self.baseline.context()
        return all(self.manager.lookup(k, context) is self.baseline.hit for k in as_list(keys))


@dataclass
class KvferryTier:
    """One manager of kvferry."""

    manager: kvferry.OffloadingManager

    def store(self, keys: Array, *, twice: bool) -> None:
        access = self.manager.begin_request()
        output = self.manager.prepare_store(keys, access)
        self.manager.complete_store(output)
        self.manager.finish_request(access)
        if twice:
            self.manager.touch(keys)

    def resident(self, keys: Array) -> bool:
        return self.manager.lookup_prefix(keys)[0] == len(keys)


@dataclass
class Pair:
    """See the module."""

    policy: str
    capacity: int
    baseline: Baseline
    theirs: Any
    ours: kvferry.OffloadingManager
    keys: Keys
    prompts: list[Array]
    """What is resident as a whole in both, the oldest first; under ARC those of T2 before T1's."""
    first_to_leave: list[Array]
    """What was stored in the list from which evictions take now, LRU's or T1, the oldest first."""
    bytes_per_chunk: tuple[float, float]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # As vLLM does once it has started: what lives as long as the engine is not looked at by
        # the garbage collector again, else one tier's objects would slow the other tier down.
        gc.collect()
        gc.freeze()


def warm_pair(policy: str, capacity: int, baseline: Baseline) -> Pair:
    # A quarter of what the tier holds at most, so that a small tier can be measured too.
    prompt = min(PROMPT, capacity // 4)
    keys = Keys(seed=capacity)
    history = list(_history(policy, capacity, prompt, keys))
    theirs, their_bytes = _grown(lambda: _their_tier(policy, capacity, baseline, history))
    ours, our_bytes = _grown(lambda: _our_tier(policy, capacity, history))
    stored = {id(keys): keys for keys, _ in history}.values()
    prompts = [k for k in stored if ours.resident(k) and theirs.resident(k)]
    last_phase = history if policy == "lru" else history[-_prompts(1, capacity, prompt) :]
    pair = Pair(
        policy,
        capacity,
        baseline,
        theirs.manager,
        ours.manager,
        keys,
        prompts,
        [keys for keys, _ in last_phase],
        (their_bytes / capacity, our_bytes / capacity),
    )
    stats = ours.manager.stats()
    pair.notes.append(
        f"{policy}: {stats.ready:,} chunks resident, {stats.ghosts:,} ghosts, "
        f"{len(prompts)} whole prompts of {prompt} chunks; kvferry's memory_bytes() "
        f"says {ours.manager.memory_bytes() / capacity:.0f} bytes a chunk"
    )
    return pair


def _prompts(share: float, capacity: int, prompt: int) -> int:
    return -(-int(share * capacity) // prompt)


def _history(policy: str, capacity: int, prompt: int, keys: Keys) -> Iterator[tuple[Array, bool]]:
    """The prompts that are stored one after the other, and whether each is used once more."""

    def fresh(share: float, *, twice: bool) -> Iterator[tuple[Array, bool]]:
        for _ in range(_prompts(share, capacity, prompt)):
            yield keys(prompt), twice

    if policy == "lru":
        yield from fresh(2, twice=False)
        return
    # T2, and most of B2; then B1.
    yield from fresh(1.75, twice=True)
    once = list(fresh(1, twice=False))
    yield from once
    # Some of B1 comes back: the target rises to about the middle while T2 shrinks into B2. The
    # newest is left out, it may be resident still.
    yield from once[-_prompts(0.5, capacity, prompt) - 2 : -2]
    # T1, and B1 once more.
    yield from fresh(1, twice=False)


def _their_tier(
    policy: str, capacity: int, baseline: Baseline, history: list[tuple[Array, bool]]
) -> BaselineTier:
    tier = BaselineTier(baseline, baseline.manager(capacity, policy))
    for keys, twice in history:
        tier.store(keys, twice=twice)
    return tier


def _our_tier(policy: str, capacity: int, history: list[tuple[Array, bool]]) -> KvferryTier:
    tier = KvferryTier(kvferry.OffloadingManager(capacity, policy=policy))
    for keys, twice in history:
        tier.store(keys, twice=twice)
    return tier


def _grown(build: Callable[[], T]) -> tuple[T, int]:
    before = resident_bytes()
    built = build()
    return built, resident_bytes() - before
