"""Random histories for managers with vLLM 0.14's interface, compared with `reference.by_key`.

Requests look up, touch and load the prefix that is ready, then touch and store what they computed,
as that release's connector does. Nothing here meets the faults that `reference.by_key` names:
pending keys are touched only under LRU, whose stores never name a key twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from differential.driver import SlotLedger
from reference.by_key import ByKeyArc, ByKeyLru

LONGEST_PREFIX = 12


class ByKeyHistory:
    """One history in the reference and in a manager with the interface of 0.14's."""

    def __init__(self, policy: str, capacity: int, seed: int, manager: Any) -> None:
        self.policy = policy
        self.rng = random.Random(f"{policy} {capacity} {seed}")
        self.reference = (ByKeyLru if policy == "lru" else ByKeyArc)(capacity)
        self.manager = manager
        self.ledger = SlotLedger(capacity)
        self.counts: Counter[str] = Counter()
        self.prefixes = self._write_prefixes(capacity)
        self.stores: list[list[bytes]] = []
        self.loads: list[list[bytes]] = []

    def run(self, steps: int) -> None:
        """Run `steps` operations, comparing after each.

        Raises:
            AssertionError: at the first difference.
        """
        operations = (self._lookup, self._touch, self._load, self._store)
        operations += (self._complete_store, self._complete_load)
        for step in range(steps):
            operation = self.rng.choice(operations)
            name = operation.__name__.strip("_")
            where = f"{self.policy}, step {step}, {name}"
            self.counts[name] += 1
            operation(where)
            self._compare_events(where)
            sample = self.rng.choice(self.prefixes)
            assert self.manager.lookup(sample) == self.reference.lookup(sample), where
            if self.policy == "arc":
                target = self.manager.target_t1_size
                assert target == self.reference.target_t1_size, where

    def _write_prefixes(self, capacity: int) -> list[list[bytes]]:
        rng = self.rng
        prefixes: list[list[bytes]] = []
        number = 0
        while number < 3 + capacity * rng.choice([2, 3]):
            shared: list[bytes] = []
            if prefixes:
                other = rng.choice(prefixes)
                shared = other[: rng.randint(0, len(other))]
            added = rng.randint(1, max(1, min(LONGEST_PREFIX, capacity)))
            prefixes.append([*shared, *(b"%09d" % n for n in range(number, number + added))])
            number += added
        return prefixes

    def _some_keys(self) -> list[bytes]:
        prefix = self.rng.choice(self.prefixes)
        start = self.rng.randrange(len(prefix))
        return prefix[start : start + self.rng.randint(1, LONGEST_PREFIX)]

    def _lookup(self, where: str) -> None:
        keys = self._some_keys()
        assert self.manager.lookup(keys) == self.reference.lookup(keys), where

    def _touch(self, where: str) -> None:
        del where
        keys = self._some_keys()
        if self.policy == "arc":
            keys = [key for key in keys if self.reference.pins.get(key) != -1]
        self.manager.touch(keys)
        self.reference.touch(keys)

    def _load(self, where: str) -> None:
        keys = self._some_keys()
        keys = keys[: self.reference.lookup(keys)]
        spec = self.manager.prepare_load(keys)
        self.reference.prepare_load(keys)
        expected = [self.ledger.slot_of[key] for key in keys]
        assert spec.block_ids.tolist() == expected, where
        self.loads.append(keys)

    def _complete_load(self, where: str) -> None:
        del where
        if self.loads:
            keys = self.loads.pop(self.rng.randrange(len(self.loads)))
            self.manager.complete_load(keys)
            self.reference.complete_load(keys)

    def _store(self, where: str) -> None:
        keys = self._some_keys()
        if self.reference.meets_fault(keys):
            self.counts["store left out"] += 1
            return
        output, expected = self.manager.prepare_store(keys), self.reference.prepare_store(keys)
        if expected is None:
            assert output is None, where
            self.counts["store declined"] += 1
            return
        to_store, evicted = expected
        assert output is not None, where
        assert list(output.block_hashes_to_store) == to_store, where
        assert list(output.block_hashes_evicted) == evicted, where
        slots = output.store_spec.block_ids.tolist()
        self.ledger.stored(0, to_store, slots, tuple(evicted))
        self.counts["evicted"] += len(evicted)
        if to_store:
            self.stores.append(to_store)

    def _complete_store(self, where: str) -> None:
        del where
        if not self.stores:
            return
        keys = self.stores.pop(self.rng.randrange(len(self.stores)))
        success = self.rng.random() < 0.9
        self.manager.complete_store(keys, success)
        self.reference.complete_store(keys, success=success)
        if not success:
            self.ledger.freed(keys)

    def _compare_events(self, where: str) -> None:
        taken = [
            (tuple(event.block_hashes), event.removed, event.medium)
            for event in self.manager.take_events()
        ]
        expected = [(event.keys, event.removed, "CPU") for event in self.reference.take_events()]
        assert taken == expected, where


def run_by_key(
    policy: str, make_manager: Any, operations: int, capacities: Sequence[int] = range(1, 41)
) -> Counter[str]:
    """Run one history per capacity, `operations` in all, and return what they met.

    `make_manager(capacity)` makes a manager with 0.14's interface.
    """
    counts: Counter[str] = Counter()
    for capacity in capacities:
        history = ByKeyHistory(policy, capacity, 1, make_manager(capacity))
        history.run(operations // len(capacities))
        counts += history.counts
    return counts
