"""What a reference policy is asked, and the chunk that it is asked about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

PENDING = -1


@dataclass(slots=True)
class Chunk:
    """One resident chunk: its slot, the slot's generation, and who holds it.

    `pins` is `PENDING` while the store is in flight, else the number of loads in flight. A dropped
    chunk leaves as soon as nobody holds it.
    """

    slot: int
    generation: int
    pins: int = PENDING
    dropped: bool = False

    @property
    def ready(self) -> bool:
        """Whether the slot's bytes may be read."""
        return self.pins >= 0

    @property
    def evictable(self) -> bool:
        """Whether nobody writes or reads the slot."""
        return self.pins == 0


class Policy(Protocol):
    """Order and replacement: who is resident, and who leaves."""

    target_t1_size: float

    def get(self, key: bytes) -> Chunk | None:
        """Return the resident chunk of `key`."""

    def insert(self, key: bytes, chunk: Chunk) -> None:
        """Add a chunk that was given a slot."""

    def remove(self, key: bytes) -> None:
        """Forget a resident chunk and leave no ghost of it."""

    def evict(self, count: int, protected: Collection[bytes]) -> list[tuple[bytes, Chunk]] | None:
        """Take out exactly `count` victims in the order in which they were picked, or nobody."""

    def touch(self, keys: Sequence[bytes]) -> None:
        """Apply one access by key, last key first."""

    def on_store_miss(self, keys: Sequence[bytes]) -> None:
        """See keys that are about to be stored, last key first."""

    def on_finish(
        self, keys: Sequence[bytes], only_inserted: Collection[bytes], reused: Collection[bytes]
    ) -> None:
        """Apply one request's access, last key first."""

    def clear(self) -> None:
        """Forget every chunk, every ghost and whatever was learned."""

    def chunks(self) -> list[tuple[bytes, Chunk]]:
        """Return all resident chunks."""

    def lists(self) -> dict[str, list[bytes]]:
        """Return each list from its LRU end to its MRU end."""
