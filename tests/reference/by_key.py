"""Managers as vLLM 0.14 had them: no requests, uses are told by `touch`, transfers end by key.

Only what that release does well is here. `meets_fault` says which stores would meet one of its
faults (it evicts keys of the same call, and its ARC evicts some and then gives up, or gives up
while T1 still has victims); such a store has no right answer to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Stored = tuple[list[bytes], list[bytes]]


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """Keys that were stored or removed."""

    keys: tuple[bytes, ...]
    removed: bool


class ByKeyLru:
    """One list, LRU end first. `pins[key]` is -1 for a pending key."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.pins: dict[bytes, int] = {}
        self.order: list[bytes] = []
        self.events: list[KeyEvent] = []

    def lookup(self, keys: Sequence[bytes]) -> int:
        ready = 0
        while ready < len(keys) and self.pins.get(keys[ready], -1) >= 0:
            ready += 1
        return ready

    def touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self.pins:
                self.order.remove(key)
                self.order.append(key)

    def prepare_load(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.pins[key] += 1

    def complete_load(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.pins[key] -= 1

    def meets_fault(self, keys: Sequence[bytes]) -> bool:
        victims = self._victims(self._shortage(keys))
        return victims is not None and not set(keys).isdisjoint(victims)

    def prepare_store(self, keys: Sequence[bytes]) -> Stored | None:
        missing = [key for key in keys if key not in self.pins]
        victims = self._victims(self._shortage(keys))
        if victims is None:
            return None
        for key in victims:
            self._evict(key)
        if victims:
            self.events.append(KeyEvent(tuple(victims), removed=True))
        for key in missing:
            self._insert(key)
        return missing, victims

    def complete_store(self, keys: Sequence[bytes], *, success: bool) -> None:
        pending = [key for key in keys if self.pins.get(key) == -1]
        for key in pending:
            if success:
                self.pins[key] = 0
            else:
                self._remove(key)
        if success and pending:
            self.events.append(KeyEvent(tuple(pending), removed=False))

    def take_events(self) -> list[KeyEvent]:
        events, self.events = self.events, []
        return events

    def _shortage(self, keys: Sequence[bytes]) -> int:
        missing = sum(key not in self.pins for key in keys)
        return max(0, missing - (self.capacity - len(self.pins)))

    def _victims(self, count: int) -> list[bytes] | None:
        victims = [key for key in self.order if self.pins[key] == 0][:count]
        return victims if len(victims) == count else None

    def _insert(self, key: bytes) -> None:
        self.pins[key] = -1
        self.order.append(key)

    def _remove(self, key: bytes) -> None:
        del self.pins[key]
        self.order.remove(key)

    def _evict(self, key: bytes) -> None:
        self._remove(key)


class ByKeyArc(ByKeyLru):
    """Here `order` is T1. A store does not look at ghosts; only a touch moves the target."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.t2: list[bytes] = []
        self.b1: list[bytes] = []
        self.b2: list[bytes] = []
        self.target_t1_size = 0.0

    def touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self.pins:
                # That release raises `KeyError` for a pending key, so no history touches one.
                self._unlist(key)
                self.t2.append(key)
                continue
            for ghosts, others, sign in ((self.b1, self.b2, 1), (self.b2, self.b1, -1)):
                if key in ghosts:
                    moved = self.target_t1_size + sign * max(1.0, len(others) / len(ghosts))
                    self.target_t1_size = min(max(moved, 0.0), float(self.capacity))
                    ghosts.remove(key)
                    ghosts.append(key)
                    break

    def meets_fault(self, keys: Sequence[bytes]) -> bool:
        # What it evicted before it gives up cannot be foreseen cheaply, so nothing that is
        # declined and nothing that needs T1 below its target is compared.
        shortage = self._shortage(keys)
        victims = self._victims(shortage)
        return victims is None or not set(keys).isdisjoint(victims)

    def _victims(self, count: int) -> list[bytes] | None:
        victims: list[bytes] = []
        t1, t2 = ([k for k in keys if self.pins[k] == 0] for keys in (self.order, self.t2))
        t1_size = len(self.order)
        for _ in range(count):
            if t1_size >= int(self.target_t1_size) and t1:
                victims.append(t1.pop(0))
                t1_size -= 1
            elif t2:
                victims.append(t2.pop(0))
            else:
                return None
        return victims

    def _insert(self, key: bytes) -> None:
        super()._insert(key)
        for ghosts in (self.b1, self.b2):
            if key in ghosts:
                ghosts.remove(key)

    def _evict(self, key: bytes) -> None:
        ghosts = self.b1 if key in self.order else self.b2
        ghosts.append(key)
        del ghosts[: max(0, len(ghosts) - self.capacity)]
        self._remove(key)

    def _remove(self, key: bytes) -> None:
        del self.pins[key]
        self._unlist(key)

    def _unlist(self, key: bytes) -> None:
        (self.order if key in self.order else self.t2).remove(key)
