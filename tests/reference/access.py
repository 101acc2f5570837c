"""What one request saw: the record behind "one request is one access"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Access:
    """Filled by `prepare_store` and `prepare_load`, applied once when the request finishes."""

    epoch: int
    positions: dict[bytes, int] = field(default_factory=dict)
    seen: dict[bytes, None] = field(default_factory=dict)
    inserted: set[bytes] = field(default_factory=set)
    reused: set[bytes] = field(default_factory=set)
    store_misses: set[bytes] = field(default_factory=set)
    finished: bool = False

    def enter(self, epoch: int) -> None:
        """Empty a record from before a reset; the positions stay true and stay.

        Raises:
            ValueError: if the request is finished.
        """
        if self.finished:
            raise ValueError("the request is finished")
        if self.epoch == epoch:
            return
        self.epoch = epoch
        self.seen.clear()
        self.inserted.clear()
        self.reused.clear()
        self.store_misses.clear()

    def record(self, keys: Iterable[bytes], reused: Iterable[bytes]) -> None:
        """Remember `keys` in the order of their first use.

        Reading what this request itself stored is no reuse, not even after another request had to
        store it again. A key that was reused first and stored later stays reused.
        """
        self.seen.update(dict.fromkeys(keys))
        self.reused.update(key for key in reused if key not in self.inserted)

    def in_prefix_order(self, group_bytes: int) -> list[bytes]:
        """Return the keys head to tail over all groups, as far as positions are known.

        A group is sorted if each of its keys has a position, and the groups are merged if every
        key has one. Both sorts are stable: equal positions keep the order of use, and the lower
        group goes first.
        """
        groups: dict[int, list[bytes]] = {}
        for key in self.seen:
            group = int.from_bytes(key[-group_bytes:], "big") if group_bytes else 0
            groups.setdefault(group, []).append(key)
        ordered = [key for group in sorted(groups) for key in self._sorted(groups[group])]
        return self._sorted(ordered)

    def _sorted(self, keys: list[bytes]) -> list[bytes]:
        if all(key in self.positions for key in keys):
            return sorted(keys, key=self.positions.__getitem__)
        return keys
