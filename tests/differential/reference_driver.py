"""Drives the plain-Python managers of `tests/reference`."""

from __future__ import annotations

from collections.abc import Sequence

from differential.driver import Driver, Keys, StoreResult
from differential.workload import Workload
from reference import LoadOutput, NotPinnedError, NotReadyError, ReferenceManager, StoreOutput
from reference.access import Access


class ReferenceDriver(Driver):
    """kvferry's contract, as `tests/reference` states it."""

    name = "reference"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.dropping = False
        self.manager = ReferenceManager(
            workload.capacity,
            workload.policy,
            store_threshold=workload.store_threshold,
            max_tracker_size=workload.max_tracker_size,
            enable_events=workload.events,
        )
        self.accesses: dict[int, Access] = {}
        self.stores: dict[int, StoreOutput] = {}
        self.loads: dict[int, LoadOutput] = {}

    def begin(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        self.accesses[request] = self.manager.begin_request(keys, positions)

    def extend(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        self.accesses[request].positions.update(zip(keys, positions, strict=True))

    def finish(self, request: int) -> None:
        self.manager.finish_request(self.accesses.pop(request))

    def forget(self, request: int) -> None:
        del self.accesses[request]

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        return self.manager.lookup_each(keys)

    def prepare_store(self, request: int | None, job: int, keys: Keys) -> StoreResult:
        output = self.manager.prepare_store(keys, self._access(request))
        if output is None:
            return None
        self.stores[job] = output
        stored, evicted = tuple(output.keys_to_store), tuple(output.evicted_keys)
        self.ledger.stored(job, stored, output.block_ids, evicted)
        return stored, evicted

    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        self.manager.complete_store(
            self.stores[job].ticket if self.workload.by_ticket else keys, success
        )
        self.ledger.ended(job)
        if not success or self.dropping:
            self._let_go(keys)

    def complete_store_keys(self, keys: Keys, success: bool) -> None:
        self.manager.complete_store(keys, success)
        if not success:
            self._let_go(keys)

    def cancel(self, job: int, keys: Keys) -> None:
        self.manager.cancel_store(self.stores[job].ticket)
        self.ledger.cancelled(job, keys)

    def drop(self, keys: Keys) -> None:
        self.dropping = True
        self.manager.drop_keys(keys)
        self._let_go(keys)

    def prepare_load(self, request: int | None, job: int, keys: Keys) -> str:
        try:
            output = self.manager.prepare_load(keys, self._access(request))
        except NotReadyError:
            return "refused"
        self.loads[job] = output
        self.ledger.loaded(job, keys, output.block_ids)
        return "pinned"

    def complete_load(self, job: int, keys: Keys) -> None:
        self.manager.complete_load(self.loads[job].ticket if self.workload.by_ticket else keys)
        self.ledger.ended(job)
        if self.dropping:
            self._let_go(keys)

    def complete_load_keys(self, keys: Keys) -> str:
        try:
            self.manager.complete_load(keys)
        except NotPinnedError:
            return "refused"
        return "unpinned"

    def touch(self, keys: Keys) -> None:
        self.manager.touch(keys)

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
        return [(event.kind, event.keys) for event in self.manager.take_events()]

    def target(self) -> float:
        return self.manager.target_t1_size

    def lists(self) -> tuple[Keys, Keys, Keys, Keys]:
        lists = self.manager.lists()
        return tuple(lists["t1"]), tuple(lists["t2"]), tuple(lists["b1"]), tuple(lists["b2"])

    def check(self) -> None:
        slots = self.manager.slots
        resident = len(self.manager.policy.chunks())
        assert resident + len(slots.free) + len(slots.draining) == self.workload.capacity

    def _access(self, request: int | None) -> Access | None:
        return None if request is None else self.accesses[request]

    def _let_go(self, keys: Keys) -> None:
        """Tell the ledger which of `keys` have left, as their store failed or they were dropped."""
        known = [key for key in dict.fromkeys(keys) if key in self.ledger.slot_of]
        self.ledger.freed([k for k, r in zip(known, self.lookup(known), strict=True) if r == 0])
