"""Drives vLLM's own `CPUOffloadingManager` (0.32), the oracle."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_offload.base import LookupResult, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from differential.driver import Driver, Keys, StoreResult
from differential.workload import Workload

RESULTS = {LookupResult.MISS: 0, LookupResult.HIT: 1, LookupResult.HIT_PENDING: 2}


class VllmDriver(Driver):
    """vLLM's manager. It has no tickets: what comes late is kept from it, as its scheduler does."""

    name = "vllm"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.manager = CPUOffloadingManager(
            workload.capacity,
            cache_policy=workload.policy,
            enable_events=workload.events,
            store_threshold=workload.store_threshold,
            max_tracker_size=workload.max_tracker_size,
        )
        self.arc = workload.policy == "arc"
        self.contexts: dict[int, ReqContext] = {}
        self.elsewhere = ReqContext("no request")
        self.cleared = False
        self._order: Keys = ()
        self._order_at = (-1, -1)

    def begin(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        context = self.contexts[request] = ReqContext(str(request))
        for key, position in zip(keys, positions, strict=True):
            context.set_offload_key_position(key, position)
        self.manager.on_new_request(context)

    def extend(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        for key, position in zip(keys, positions, strict=True):
            self.contexts[request].set_offload_key_position(key, position)

    def finish(self, request: int) -> None:
        self.manager.on_request_finished(self.contexts.pop(request))

    def forget(self, request: int) -> None:
        del self.contexts[request]

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        lookup, context = self.manager.lookup, self.elsewhere
        return [RESULTS[lookup(key, context)] for key in keys]

    def prepare_store(self, request: int | None, job: int, keys: Keys) -> StoreResult:
        assert request is not None
        # The manager only appends to this list; the engine empties it with its statistics.
        self.manager.allocation_sizes_in_current_batch.clear()
        output = self.manager.prepare_store(keys, self.contexts[request])
        if output is None:
            return None
        stored, evicted = tuple(output.keys_to_store), tuple(output.evicted_keys)
        self.ledger.stored(job, stored, output.store_spec.block_ids.tolist(), evicted)
        return stored, evicted

    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        self.complete_store_keys(keys, success)

    def complete_store_keys(self, keys: Keys, success: bool) -> None:
        self.manager.complete_store(keys, self.elsewhere, success)
        if not success:
            get = self.manager._policy.get
            known = [key for key in keys if key in self.ledger.slot_of]
            self.ledger.freed([key for key in known if get(key) is None])

    def cancel(self, job: int, keys: Keys) -> None:
        raise NotImplementedError("vLLM cannot give up a store")

    def drop(self, keys: Keys) -> None:
        raise NotImplementedError("vLLM cannot drop keys")

    def prepare_load(self, request: int | None, job: int, keys: Keys) -> str:
        assert request is not None
        spec = self.manager.prepare_load(keys, self.contexts[request])
        self.ledger.loaded(job, keys, spec.block_ids.tolist())
        return "pinned"

    def complete_load(self, job: int, keys: Keys) -> None:
        self.manager.complete_load(keys, self.elsewhere)

    def complete_load_keys(self, keys: Keys) -> str:
        raise NotImplementedError("vLLM asserts here after a part of the keys was unpinned")

    def touch(self, keys: Keys) -> None:
        self.manager.touch(keys, self.elsewhere)

    def reset(self, in_flight: str) -> None:
        assert in_flight == "fenced"
        self.manager.reset_cache()
        self.ledger.reset(in_flight)
        self._order_at = (-1, -1)
        if self.manager.events is not None:
            # kvferry tells of a reset in an event, which vLLM does not.
            self.manager.events.append(None)

    def late_store(self, job: int) -> None:
        """Do nothing."""

    def late_load(self, job: int) -> None:
        """Do nothing."""

    def take_events(self) -> list[tuple[str, Keys]]:
        return [
            ("cleared", ())
            if event is None
            else ("removed" if event.removed else "stored", tuple(event.keys))
            for event in self.manager.take_events()
        ]

    def target(self) -> float:
        return self.manager._policy.target_t1_size if self.arc else 0.0

    def check(self) -> None:
        """Do nothing: its own assertions are all it has."""

    def lists(self) -> tuple[Keys, Keys, Keys, Keys]:
        policy = self.manager._policy
        if self.arc:
            return tuple(policy.t1), tuple(policy.t2), tuple(policy.b1), tuple(policy.b2)
        # A chunk that joins or is used takes a new rank; one that leaves makes the table smaller.
        at = (policy._next_rank, len(policy._ranks))
        if at != self._order_at:
            self._order = tuple(sorted(policy._ranks, key=policy._ranks.__getitem__))
            self._order_at = at
        return self._order, (), (), ()
