"""Values that verbs return: enumerations and events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Literal

__all__ = ["EventKind", "LookupResult", "OffloadingEvent", "PinRefused", "StoreRejected"]

EventKind = Literal["stored", "removed", "cleared", "lost"]


class LookupResult(IntEnum):
    """What a lookup found.

    Attributes:
        MISS: Not in the tier.
        HIT: Stored, and may be loaded.
        HIT_PENDING: Being stored: ask again later, or compute.
    """

    MISS = 0
    HIT = 1
    HIT_PENDING = 2


class PinRefused(Enum):
    """Why a chunk could not be pinned. Falsy, as a `Pin` is not.

    Attributes:
        MISS: Not in the tier.
        PENDING: Being stored.
        BUSY: Being evicted at this moment, or at the most pins that a slot can have: ask again, or
            compute.
    """

    MISS = "miss"
    PENDING = "pending"
    BUSY = "busy"

    def __bool__(self) -> Literal[False]:
        return False


class StoreRejected(Enum):
    """Why a store did not fit.

    Attributes:
        FULL: More slots are needed than are free or held by nobody, the call's own chunks left
            aside.
        INDEX_FULL: The index has no room for one of the keys. Below one in ten million, unless keys
            were chosen to collide.
    """

    FULL = "full"
    INDEX_FULL = "index full"


@dataclass(frozen=True, slots=True)
class OffloadingEvent:
    """One change of the tier.

    Attributes:
        keys: The chunks, in the order of their leaving or of the store. Empty for `cleared` and
            `lost`.
        kind: `stored`: they can be loaded from now on. `removed`: they have left. `cleared`:
            everything has left, by a reset. `lost`: further events did not fit; a mirror must start
            again from what the tier holds.
        medium: Where the chunks are.
    """

    keys: list[bytes]
    kind: EventKind
    medium: str = "CPU"

    @property
    def removed(self) -> bool:
        """Whether a mirror must forget chunks: true of every kind but `stored`."""
        return self.kind != "stored"
