"""ARC as vLLM decides it.

It differs from the rules of Megiddo and Modha (FAST 2003) in three ways, all kept on purpose: a
key that comes back from a ghost list enters T1 and not T2; each ghost list holds up to a whole
capacity; and the target is compared after truncation to an integer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from reference.policy import Chunk


class ArcPolicy:
    """T1 holds chunks used by one request, T2 those used again; B1 and B2 their ghosts."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target_t1_size = 0.0
        self.t1: OrderedDict[bytes, Chunk] = OrderedDict()
        self.t2: OrderedDict[bytes, Chunk] = OrderedDict()
        self.b1: OrderedDict[bytes, None] = OrderedDict()
        self.b2: OrderedDict[bytes, None] = OrderedDict()

    def get(self, key: bytes) -> Chunk | None:
        return self.t1.get(key) or self.t2.get(key)

    def insert(self, key: bytes, chunk: Chunk) -> None:
        self.b1.pop(key, None)
        self.b2.pop(key, None)
        self.t1[key] = chunk

    def remove(self, key: bytes) -> None:
        del (self.t1 if key in self.t1 else self.t2)[key]

    def evict(self, count: int, protected: Collection[bytes]) -> list[tuple[bytes, Chunk]] | None:
        # Each list is walked once, however many victims it gives.
        walks = {
            id(entries): (
                key for key, chunk in entries.items() if chunk.evictable and key not in protected
            )
            for entries in (self.t1, self.t2)
        }
        t1_size = len(self.t1)
        picked: list[tuple[OrderedDict[bytes, Chunk], bytes]] = []
        for _ in range(count):
            t1_first = t1_size >= int(self.target_t1_size)
            for source in (self.t1, self.t2) if t1_first else (self.t2, self.t1):
                victim = next(walks[id(source)], None)
                if victim is not None:
                    break
            else:
                return None
            t1_size -= source is self.t1
            picked.append((source, victim))
        victims = []
        for source, key in picked:
            victims.append((key, source.pop(key)))
            (self.b1 if source is self.t1 else self.b2)[key] = None
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.capacity:
                ghosts.popitem(last=False)
        return victims

    def touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self.t1:
                if self.t1[key].ready:
                    self.t2[key] = self.t1.pop(key)
                else:
                    # A store in flight is the first use, not a second one.
                    self.t1.move_to_end(key)
            elif key in self.t2:
                self.t2.move_to_end(key)
            else:
                self._adapt(key)

    def on_store_miss(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._adapt(key)

    def on_finish(
        self, keys: Sequence[bytes], only_inserted: Collection[bytes], reused: Collection[bytes]
    ) -> None:
        for key in reversed(keys):
            if key in only_inserted:
                for entries in (self.t1, self.t2):
                    if key in entries:
                        entries.move_to_end(key)
            elif key in reused:
                # What counts is that the request read it; by now it may be pending again.
                if key in self.t1:
                    self.t2[key] = self.t1.pop(key)
                elif key in self.t2:
                    self.t2.move_to_end(key)

    def clear(self) -> None:
        for entries in (self.t1, self.t2, self.b1, self.b2):
            entries.clear()
        self.target_t1_size = 0.0

    def chunks(self) -> list[tuple[bytes, Chunk]]:
        return [*self.t1.items(), *self.t2.items()]

    def lists(self) -> dict[str, list[bytes]]:
        return {
            "t1": list(self.t1),
            "t2": list(self.t2),
            "b1": list(self.b1),
            "b2": list(self.b2),
        }

    def _adapt(self, key: bytes) -> None:
        """Move the target towards the list that a ghost hit says was too small."""
        if key in self.b1:
            step = max(1.0, len(self.b2) / len(self.b1))
            self.target_t1_size = min(self.target_t1_size + step, float(self.capacity))
            self.b1.move_to_end(key)
        elif key in self.b2:
            step = max(1.0, len(self.b1) / len(self.b2))
            self.target_t1_size = max(self.target_t1_size - step, 0.0)
            self.b2.move_to_end(key)
