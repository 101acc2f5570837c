"""Counts how often a key was offered, in a bounded table, for `store_threshold`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class OfferTracker:
    """The least recently offered key leaves first; a call never drops a key of its own."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.counts: OrderedDict[bytes, int] = OrderedDict()

    def record(self, keys: Sequence[bytes]) -> None:
        """See one offer of `keys`.

        A key that is known counts once for each time that the call names it, a new one once.
        """
        known = {key for key in keys if key in self.counts}
        for key in keys:
            if key in known:
                self.counts[key] += 1
                self.counts.move_to_end(key)
        # Whatever is older than this call's keys stands before them.
        droppable = len(self.counts) - len(known)
        for key in keys:
            if key in self.counts:
                continue
            if len(self.counts) >= self.capacity:
                if droppable == 0:
                    continue
                self.counts.popitem(last=False)
                droppable -= 1
            self.counts[key] = 1

    def offers(self, key: bytes) -> int:
        """Return how often `key` was offered while it was remembered."""
        return self.counts.get(key, 0)
