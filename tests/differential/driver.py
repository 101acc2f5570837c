"""The one interface through which a history talks to any manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from differential.workload import Workload

Keys = tuple[bytes, ...]
# The keys that got a slot and those that lost theirs, in the manager's order; `None`: did not fit.
StoreResult = tuple[Keys, Keys] | None
LISTS = ("t1", "t2", "b1", "b2")


class SlotError(AssertionError):
    """A manager handed out a slot that it may not hand out, or lost track of one."""


class SlotLedger:
    """Follows slots from the outside: in range, one owner each, and the owner keeps its slot.

    Which slot a key gets is the manager's own affair, so slots are never compared between two.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slot_of: dict[bytes, int] = {}
        self._used: set[int] = set()
        self._open: dict[int, list[int]] = {}
        # Transfers from before a reset, and how many of them still hold each slot.
        self._old: dict[int, list[int]] = {}
        self._draining: dict[int, int] = {}

    def stored(self, job: int, keys: Sequence[bytes], slots: list[int], evicted: Keys) -> None:
        """See what a store handed out."""
        self.freed(evicted)
        if len(keys) != len(slots):
            raise SlotError(f"{len(slots)} slots for {len(keys)} keys")
        for key, slot in zip(keys, slots, strict=True):
            if not 0 <= slot < self.capacity:
                raise SlotError(f"slot {slot} of {self.capacity}")
            if slot in self._used or slot in self._draining:
                raise SlotError(f"slot {slot} was handed out while in use")
            self._used.add(slot)
            self.slot_of[key] = slot
        self._open[job] = slots

    def loaded(self, job: int, keys: Sequence[bytes], slots: list[int]) -> None:
        """See what a load pinned."""
        expected = [self.slot_of[key] for key in keys]
        if slots != expected:
            raise SlotError(f"slots {slots} for keys that were stored in {expected}")
        self._open[job] = slots

    def freed(self, keys: Sequence[bytes]) -> None:
        """See keys leave."""
        for key in keys:
            self._used.remove(self.slot_of.pop(key))

    def cancelled(self, job: int, keys: Sequence[bytes]) -> None:
        """See a store given up: its keys leave, its slots stay taken until it ends."""
        slots = [self.slot_of[key] for key in keys]
        self.freed(keys)
        self._draining.update(dict.fromkeys(slots, 1))
        self._old[job] = slots
        self._open.pop(job, None)

    def ended(self, job: int) -> None:
        """See a transfer end, in whatever epoch it began."""
        self._open.pop(job, None)
        for slot in self._old.pop(job, ()):
            self._draining[slot] -= 1
            if self._draining[slot] == 0:
                del self._draining[slot]

    def reset(self, in_flight: str) -> None:
        """See all keys leave; with `drain`, slots of open transfers stay taken."""
        self.slot_of.clear()
        self._used.clear()
        if in_flight == "fenced":
            self._old.clear()
            self._draining.clear()
        else:
            self._old.update(self._open)
            for slots in self._open.values():
                for slot in slots:
                    self._draining[slot] = self._draining.get(slot, 0) + 1
        self._open.clear()


class Driver(ABC):
    """One manager under test. Jobs and requests are named by the history's numbers."""

    name: ClassVar[str]

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.ledger = SlotLedger(workload.capacity)

    @abstractmethod
    def begin(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        """Begin a request; `positions[i]` is where `keys[i]` ends in its prefix."""

    @abstractmethod
    def extend(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        """Tell a running request where keys of its output stand."""

    @abstractmethod
    def finish(self, request: int) -> None:
        """Finish a request."""

    @abstractmethod
    def forget(self, request: int) -> None:
        """Drop a request's record without finishing it."""

    @abstractmethod
    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        """Return 0 for a miss, 1 for a ready key and 2 for a pending one."""

    @abstractmethod
    def prepare_store(self, request: int | None, job: int, keys: Keys) -> StoreResult:
        """Store what is missing."""

    @abstractmethod
    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        """End a store; `keys` are those of it that are still open."""

    @abstractmethod
    def complete_store_keys(self, keys: Keys, success: bool) -> None:
        """End a part of a store."""

    @abstractmethod
    def cancel(self, job: int, keys: Keys) -> None:
        """Give up a store whose `keys` are pending; `late_store` ends its transfer."""

    @abstractmethod
    def drop(self, keys: Keys) -> None:
        """Let keys leave as soon as nobody holds them."""

    @abstractmethod
    def prepare_load(self, request: int | None, job: int, keys: Keys) -> str:
        """Pin keys: `pinned` or `refused`."""

    @abstractmethod
    def complete_load(self, job: int, keys: Keys) -> None:
        """Unpin what a load pinned."""

    @abstractmethod
    def complete_load_keys(self, keys: Keys) -> str:
        """Unpin by key: `unpinned` or `refused`."""

    @abstractmethod
    def touch(self, keys: Keys) -> None:
        """Use keys outside of any request."""

    @abstractmethod
    def reset(self, in_flight: str) -> None:
        """Forget every key."""

    @abstractmethod
    def late_store(self, job: int) -> None:
        """End a store that was cancelled, or that began before a reset."""

    @abstractmethod
    def late_load(self, job: int) -> None:
        """End a load that began before a reset, or that has ended already."""

    @abstractmethod
    def take_events(self) -> list[tuple[str, Keys]]:
        """Return `stored`, `removed` and `cleared` events since the last call."""

    @abstractmethod
    def target(self) -> float:
        """Return ARC's target, 0.0 for other policies."""

    @abstractmethod
    def lists(self) -> tuple[Keys, Keys, Keys, Keys]:
        """Return T1, T2, B1 and B2, each from its LRU end; LRU's one list is T1."""

    def digest(self) -> int:
        """Return a hash of `lists()` that is comparable between drivers of one process."""
        return hash(self.lists())

    @abstractmethod
    def check(self) -> None:
        """Check whatever the manager can check of itself."""
