"""Drives `kvferry.OffloadingManager`, the engine under test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import kvferry
from differential.driver import Driver, Keys, StoreResult
from differential.workload import Workload


class KvferryDriver(Driver):
    """The native engine through its Python binding."""

    name = "kvferry"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.dropping = False
        self.manager = kvferry.OffloadingManager(
            workload.capacity,
            policy=workload.policy,
            store_threshold=workload.store_threshold,
            max_tracker_size=workload.max_tracker_size,
            enable_events=workload.events,
            hash_seed=workload.seed,
        )
        self.accesses: dict[int, kvferry.RequestAccess] = {}
        self.stores: dict[int, kvferry.PrepareStoreOutput] = {}
        self.loads: dict[int, kvferry.PrepareLoadOutput] = {}
        # Ghosts have no key any more; their fingerprints name them.
        self._named: dict[bytes, bytes] = {}
        self._digest_at: int | None = None
        self._digest = 0

    def begin(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        self.accesses[request] = self.manager.begin_request(
            keys=list(keys), positions=list(positions)
        )

    def extend(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        self.accesses[request].set_positions(list(keys), list(positions))

    def finish(self, request: int) -> None:
        self.manager.finish_request(self.accesses.pop(request))

    def forget(self, request: int) -> None:
        del self.accesses[request]

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        if len(keys) > 2:
            return self.manager.lookup_each(keys).tolist()
        return [self.manager.lookup(key) for key in keys]

    def prepare_store(self, request: int | None, job: int, keys: Keys) -> StoreResult:
        output = self.manager.prepare_store(list(keys), self._access(request))
        if output is None:
            return None
        self.stores[job] = output
        stored, evicted = tuple(output.keys_to_store), tuple(output.evicted_keys)
        self.ledger.stored(job, stored, output.block_ids.tolist(), evicted)
        self._name(stored)
        return stored, evicted

    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        if self.workload.by_ticket:
            self.manager.complete_store(self.stores[job].ticket, success)
        else:
            self.manager.complete_store(list(keys), success)
        self.ledger.ended(job)
        if not success or self.dropping:
            self._let_go(keys)

    def complete_store_keys(self, keys: Keys, success: bool) -> None:
        self.manager.complete_store(list(keys), success)
        if not success:
            self._let_go(keys)

    def cancel(self, job: int, keys: Keys) -> None:
        self.manager.cancel_store(self.stores[job].ticket)
        self.ledger.cancelled(job, keys)

    def drop(self, keys: Keys) -> None:
        self.dropping = True
        self.manager.drop_keys(list(keys))
        self._let_go(keys)

    def prepare_load(self, request: int | None, job: int, keys: Keys) -> str:
        try:
            output = self.manager.prepare_load(list(keys), self._access(request))
        except (kvferry.NotResidentError, kvferry.NotReadyError):
            return "refused"
        self.loads[job] = output
        self.ledger.loaded(job, keys, output.block_ids.tolist())
        return "pinned"

    def complete_load(self, job: int, keys: Keys) -> None:
        if self.workload.by_ticket:
            self.manager.complete_load(self.loads[job].ticket)
        else:
            self.manager.complete_load(list(keys))
        self.ledger.ended(job)
        if self.dropping:
            self._let_go(keys)

    def complete_load_keys(self, keys: Keys) -> str:
        try:
            self.manager.complete_load(list(keys))
        except (kvferry.NotResidentError, kvferry.NotPinnedError):
            return "refused"
        return "unpinned"

    def touch(self, keys: Keys) -> None:
        self.manager.touch(list(keys))

    def reset(self, in_flight: str) -> None:
        self.manager.reset_cache(in_flight)
        self.ledger.reset(in_flight)

    def late_store(self, job: int) -> None:
        self.manager.complete_store(self.stores[job].ticket)
        self.ledger.ended(job)

    def late_load(self, job: int) -> None:
        self.manager.complete_load(self.loads[job].ticket)
        self.ledger.ended(job)

    def take_events(self) -> list[tuple[str, Keys]]:
        return [(event.kind, tuple(event.keys)) for event in self.manager.take_events()]

    def target(self) -> float:
        return self.manager.target_t1_size

    def lists(self) -> tuple[Keys, Keys, Keys, Keys]:
        lists = self.manager._debug_lists()
        named = self._named
        b1, b2 = (tuple(named[ghost] for ghost in lists[name]) for name in ("b1", "b2"))
        return tuple(lists["t1"]), tuple(lists["t2"]), b1, b2

    def digest(self) -> int:
        # Fetching the lists is the dear part, and most operations leave them as they are. If the
        # engine's own digest fails to move with them, the stale hash is a difference that shows.
        at = self.manager._debug_digest()
        if at != self._digest_at:
            self._digest_at = at
            self._digest = hash(self.lists())
        return self._digest

    def check(self) -> None:
        self.manager._check_invariants()

    def _access(self, request: int | None) -> kvferry.RequestAccess | None:
        return None if request is None else self.accesses[request]

    def _name(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._named[self.manager._debug_fingerprint(key)] = key

    def _let_go(self, keys: Keys) -> None:
        """Tell the ledger which of `keys` have left, as their store failed or they were dropped."""
        known = [key for key in dict.fromkeys(keys) if key in self.ledger.slot_of]
        self.ledger.freed([k for k, r in zip(known, self.lookup(known), strict=True) if r == 0])
