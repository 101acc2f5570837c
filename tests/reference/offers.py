"""Counts how often a key was offered, in a bounded table, for `store_threshold`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class OfferTracker:
    """Admits a key that was offered `threshold` times while it was remembered.

    The least recently offered key leaves first; a call never drops a key of its own.
    """

    def __init__(self, threshold: int, capacity: int) -> None:
        self.threshold = threshold
        self.capacity = capacity
        self.counts: OrderedDict[bytes, int] = OrderedDict()

    def record(self, keys: Sequence[bytes]) -> None:
        """See one offer of `keys`.

        A key that is known counts once for each time that the call names it, a new one once.
        """
        if self.threshold < 2:
            return
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

    def admits(self, key: bytes) -> bool:
        """Return whether `key` was offered often enough; this call's offer counts."""
        return self.threshold < 2 or self.counts.get(key, 0) >= self.threshold
