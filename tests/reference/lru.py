"""LRU: one order, moved by insertion, by `touch` and by the end of a request, never by pins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from reference.policy import Chunk


class LruPolicy:
    """Evicts the chunks that nobody holds from the LRU end."""

    target_t1_size = 0.0

    def __init__(self, capacity: int) -> None:
        del capacity  # The one list is bounded by the slots themselves.
        self.order: OrderedDict[bytes, Chunk] = OrderedDict()

    def get(self, key: bytes) -> Chunk | None:
        return self.order.get(key)

    def insert(self, key: bytes, chunk: Chunk) -> None:
        self.order[key] = chunk

    def remove(self, key: bytes) -> None:
        del self.order[key]

    def evict(self, count: int, protected: Collection[bytes]) -> list[tuple[bytes, Chunk]] | None:
        victims: list[tuple[bytes, Chunk]] = []
        for key, chunk in self.order.items():
            if len(victims) == count:
                break
            if chunk.evictable and key not in protected:
                victims.append((key, chunk))
        if len(victims) < count:
            return None
        for key, _ in victims:
            del self.order[key]
        return victims

    def touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self.order:
                self.order.move_to_end(key)

    def on_store_miss(self, keys: Sequence[bytes]) -> None:
        """Learn nothing: LRU remembers nobody who left."""

    def on_finish(
        self, keys: Sequence[bytes], only_inserted: Collection[bytes], reused: Collection[bytes]
    ) -> None:
        del only_inserted, reused  # LRU treats every use alike.
        self.touch(keys)

    def clear(self) -> None:
        self.order.clear()

    def chunks(self) -> list[tuple[bytes, Chunk]]:
        return list(self.order.items())

    def lists(self) -> dict[str, list[bytes]]:
        return {"t1": list(self.order), "t2": [], "b1": [], "b2": []}
