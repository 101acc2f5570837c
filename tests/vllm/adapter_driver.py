"""Drives kvferry's manager through the interface that vLLM's scheduler calls."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext

from differential.driver import Keys, StoreResult
from differential.kvferry_driver import KvferryDriver
from differential.workload import Workload
from kvferry.integrations.vllm.config import Settings
from kvferry.integrations.vllm.tier import Tier
from kvferry.integrations.vllm.v026.manager import KvferryManager, UnavailableSlots

RESULTS = {LookupResult.MISS: 0, LookupResult.HIT: 1, LookupResult.HIT_PENDING: 2}
END_OF_STEP = ScheduleEndContext(new_req_ids=(), preempted_req_ids=())


class AdapterDriver(KvferryDriver):
    """Called as vLLM's scheduler calls its manager, looked into as the engine itself."""

    name = "kvferry's adapter"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        settings = Settings(
            policy=workload.policy,
            store_threshold=workload.store_threshold,
            max_tracker_size=workload.max_tracker_size,
        )
        tier = Tier(workload.capacity, settings, events=workload.events)
        self.adapter = KvferryManager(tier)
        self.manager = tier.manager
        self.contexts: dict[int, ReqContext] = {}
        self.owners: dict[int, ReqContext] = {}
        self.storing: dict[bytes, ReqContext] = {}
        self.elsewhere = ReqContext("no request")
        self.events: list[tuple[str, Keys]] = []

    def begin(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        self.contexts[request] = ReqContext(str(request))
        self.extend(request, keys, positions)
        self.adapter.on_new_request(self.contexts[request])

    def extend(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        for key, position in zip(keys, positions, strict=True):
            self.contexts[request].set_offload_key_position(key, position)

    def finish(self, request: int) -> None:
        self.adapter.on_request_finished(self.contexts.pop(request))
        self.adapter.on_schedule_end(END_OF_STEP)

    def forget(self, request: int) -> None:
        del self.contexts[request]

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        return [RESULTS[self.adapter.lookup(key, self.elsewhere)] for key in keys]

    def prepare_store(self, request: int | None, job: int, keys: Keys) -> StoreResult:
        assert request is not None
        context = self.owners[job] = self.contexts[request]
        output = self.adapter.prepare_store(keys, context)
        if output is None:
            return None
        stored, evicted = tuple(output.keys_to_store), tuple(output.evicted_keys)
        self.ledger.stored(job, stored, output.store_spec.block_ids.tolist(), evicted)
        self._name(stored)
        self.storing.update(dict.fromkeys(stored, context))
        return stored, evicted

    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        self.adapter.complete_store(keys, self.owners[job], success)
        self.ledger.ended(job)
        if not success:
            self._let_go(keys)

    def complete_store_keys(self, keys: Keys, success: bool) -> None:
        context = self.storing.get(keys[0], self.elsewhere)
        self.adapter.complete_store(keys, context, success)
        if not success:
            self._let_go(keys)

    def prepare_load(self, request: int | None, job: int, keys: Keys) -> str:
        assert request is not None
        context = self.owners[job] = self.contexts[request]
        slots = self.adapter.prepare_load(keys, context)
        if isinstance(slots, UnavailableSlots):
            return "refused"
        self.ledger.loaded(job, keys, slots.block_ids.tolist())
        return "pinned"

    def complete_load(self, job: int, keys: Keys) -> None:
        self.adapter.complete_load(keys, self.owners[job])
        self.ledger.ended(job)

    def touch(self, keys: Keys) -> None:
        self.adapter.touch(keys, self.elsewhere)

    def reset(self, in_flight: str) -> None:
        assert in_flight == "fenced"
        self._drain_events()
        self.adapter.reset_cache()
        self.ledger.reset(in_flight)
        if self.workload.events:
            # vLLM tells of a reset elsewhere; a history wants it in its place.
            self.events.append(("cleared", ()))

    def late_store(self, job: int) -> None:
        """Do nothing: vLLM's scheduler keeps completions of old jobs away."""

    def late_load(self, job: int) -> None:
        """Do nothing: vLLM's scheduler keeps completions of old jobs away."""

    def take_events(self) -> list[tuple[str, Keys]]:
        self._drain_events()
        events, self.events = self.events, []
        return events

    def _drain_events(self) -> None:
        for event in self.adapter.take_events():
            self.events.append(("removed" if event.removed else "stored", tuple(event.keys)))
