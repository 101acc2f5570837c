"""Managers over `OrderedDict`, the baseline where vLLM is not installed.

They have the interface of vLLM 0.32's manager as far as the benchmark needs it, and are what one
writes in an afternoon: a dictionary in order of use, victims from its old end, pinned chunks passed
over one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

Key = bytes


@dataclass(slots=True)
class Chunk:
    slot: int
    pins: int = -1  # -1: being stored


@dataclass(slots=True)
class Context:
    """One request: what it saw."""

    inserted: set[Key] = field(default_factory=set)
    reused: set[Key] = field(default_factory=set)
    seen: dict[Key, None] = field(default_factory=dict)
    positions: dict[Key, int] = field(default_factory=dict)

    def set_offload_key_position(self, key: Key, position: int) -> None:
        self.positions[key] = position


@dataclass(slots=True)
class Spec:
    block_ids: np.ndarray


@dataclass(slots=True)
class StoreOutput:
    keys_to_store: list[Key]
    store_spec: Spec
    evicted_keys: list[Key]


class Lru:
    def __init__(self, capacity: int) -> None:
        self.chunks: OrderedDict[Key, Chunk] = OrderedDict()

    def get(self, key: Key) -> Chunk | None:
        return self.chunks.get(key)

    def insert(self, key: Key, chunk: Chunk) -> None:
        self.chunks[key] = chunk

    def missed(self, keys: Iterable[Key]) -> None:
        """Learn nothing from misses."""

    def use(self, key: Key, *, hit: bool) -> None:
        if key in self.chunks:
            self.chunks.move_to_end(key)

    def evict(self, count: int, spared: set[Key]) -> list[tuple[Key, Chunk]] | None:
        victims = []
        for key, chunk in self.chunks.items():
            if len(victims) == count:
                break
            if chunk.pins == 0 and key not in spared:
                victims.append((key, chunk))
        if len(victims) < count:
            return None
        for key, _ in victims:
            del self.chunks[key]
        return victims


class Arc:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0
        self.t1: OrderedDict[Key, Chunk] = OrderedDict()
        self.t2: OrderedDict[Key, Chunk] = OrderedDict()
        self.b1: OrderedDict[Key, None] = OrderedDict()
        self.b2: OrderedDict[Key, None] = OrderedDict()

    def get(self, key: Key) -> Chunk | None:
        return self.t1.get(key) or self.t2.get(key)

    def insert(self, key: Key, chunk: Chunk) -> None:
        self.t1[key] = chunk
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def missed(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self.b1:
                self.target += max(1, len(self.b2) / len(self.b1))
                self.b1.move_to_end(key)
            elif key in self.b2:
                self.target -= max(1, len(self.b1) / len(self.b2))
                self.b2.move_to_end(key)
        self.target = min(max(self.target, 0.0), self.capacity)

    def use(self, key: Key, *, hit: bool) -> None:
        if key in self.t2:
            self.t2.move_to_end(key)
        elif key in self.t1:
            if hit and self.t1[key].pins >= 0:
                self.t2[key] = self.t1.pop(key)
            else:
                self.t1.move_to_end(key)

    def evict(self, count: int, spared: set[Key]) -> list[tuple[Key, Chunk]] | None:
        def free(chunks: OrderedDict[Key, Chunk]) -> Iterable[tuple[Key, Chunk]]:
            return (e for e in chunks.items() if e[1].pins == 0 and e[0] not in spared)

        old1, old2 = iter(free(self.t1)), iter(free(self.t2))
        size = len(self.t1)
        chosen = []
        for _ in range(count):
            victim = next(old1, None) if size >= int(self.target) else None
            from_t1 = victim is not None
            victim = victim or next(old2, None)
            if victim is None:
                victim, from_t1 = next(old1, None), True
            if victim is None:
                return None
            size -= from_t1
            chosen.append((victim, from_t1))
        for (key, _), from_t1 in chosen:
            chunks, ghosts = (self.t1, self.b1) if from_t1 else (self.t2, self.b2)
            del chunks[key]
            ghosts[key] = None
            if len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return [victim for victim, _ in chosen]


class OrderedDictManager:
    def __init__(self, capacity: int, policy: str) -> None:
        self.policy = {"lru": Lru, "arc": Arc}[policy](capacity)
        self.free = list(range(capacity - 1, -1, -1))

    def lookup(self, key: Key, context: Context) -> bool:
        chunk = self.policy.get(key)
        return chunk is not None and chunk.pins >= 0

    def on_new_request(self, context: Context) -> None:
        """Do nothing: the context is empty."""

    def on_request_finished(self, context: Context) -> None:
        keys = list(context.seen)
        if len(context.positions) >= len(keys):
            keys.sort(key=context.positions.__getitem__)
        for key in reversed(keys):
            self.policy.use(key, hit=key in context.reused)

    def touch(self, keys: Sequence[Key], context: Context) -> None:
        for key in reversed(keys):
            self.policy.use(key, hit=True)

    def prepare_store(self, keys: Sequence[Key], context: Context) -> StoreOutput | None:
        missing = []
        for key in keys:
            chunk = self.policy.get(key)
            if chunk is None:
                missing.append(key)
            elif chunk.pins < 0:
                continue
            elif key not in context.inserted:
                context.reused.add(key)
            context.seen[key] = None
        self.policy.missed(reversed(missing))
        evicted = []
        if len(missing) > len(self.free):
            victims = self.policy.evict(len(missing) - len(self.free), set(keys))
            if victims is None:
                return None
            for key, chunk in victims:
                self.free.append(chunk.slot)
                evicted.append(key)
        slots = [self.free.pop() for _ in missing]
        for key, slot in zip(missing, slots, strict=True):
            self.policy.insert(key, Chunk(slot))
        context.inserted.update(missing)
        return StoreOutput(missing, Spec(np.array(slots)), evicted)

    def complete_store(self, keys: Sequence[Key], context: Context) -> None:
        for key in keys:
            chunk = self.policy.get(key)
            if chunk is not None and chunk.pins < 0:
                chunk.pins = 0

    def prepare_load(self, keys: Sequence[Key], context: Context) -> Spec:
        slots = []
        for key in keys:
            chunk = self.policy.get(key)
            chunk.pins += 1
            slots.append(chunk.slot)
            context.seen[key] = None
            if key not in context.inserted:
                context.reused.add(key)
        return Spec(np.array(slots))

    def complete_load(self, keys: Sequence[Key], context: Context) -> None:
        for key in keys:
            self.policy.get(key).pins -= 1
