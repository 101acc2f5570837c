"""What the reference manager hands out, and what it raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MISS, HIT, HIT_PENDING = 0, 1, 2


class NotReadyError(Exception):
    """A load asked for a key that is missing or pending."""


class NotPinnedError(Exception):
    """A load was completed that nobody had prepared."""


@dataclass(frozen=True, slots=True)
class Event:
    """What became of some keys: `stored`, `removed`, or all of them `cleared`."""

    kind: Literal["stored", "removed", "cleared"]
    keys: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Ticket:
    """The slots and generations that one call handed out; good for one completion."""

    entries: tuple[tuple[bytes, int, int], ...]
    spent: bool = False


@dataclass(frozen=True, slots=True)
class StoreOutput:
    """`block_ids[i]` is the slot of `keys_to_store[i]`."""

    keys_to_store: list[bytes]
    evicted_keys: list[bytes]
    block_ids: list[int]
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class LoadOutput:
    """`block_ids[i]` is the slot of the call's i-th key."""

    block_ids: list[int]
    ticket: Ticket
