"""kvferry's bookkeeping behind vLLM's `OffloadingManager`.

Look-ups go key by key to the engine: measured, that costs less than a dictionary's `get`, so that
no answer is remembered and none can be out of date. `KvferryConnector` asks for a whole prompt in
one call.
"""

from collections.abc import Collection, Iterable
from typing import Any

import vllm.v1.kv_offload.base as interface
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)

from kvferry.integrations.vllm.metrics import ALLOCATION_SIZE, Readings
from kvferry.integrations.vllm.tier import Record, Tier

__all__ = ["HostSlots", "KvferryManager", "UnavailableSlots"]

# Not in every release: 0.26 names a medium by its text and knows no source of a hit.
_MEDIUM: Any = interface.Medium.CPU if hasattr(interface, "Medium") else "CPU"
_HAS_STATE = hasattr(ReqContext, "get_state")
_POSITIONS = "_offload_key_positions"
_RECORD = "_kvferry_record"


class HostSlots(BlockIDsLoadStoreSpec):
    """Slots of the host tier, one chunk each."""


class UnavailableSlots(HostSlots):
    """What a load of chunks that are not there gets: the worker fails the job."""

    def __init__(self) -> None:
        super().__init__([])


class KvferryManager(OffloadingManager):
    """The scheduler's side of the host tier."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        # One attribute less on the way of each look-up.
        self._lookup = tier.manager.lookup
        self._results = (LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING)
        self._readings = Readings(tier)
        self._allocations: list[int] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether a chunk can be loaded."""
        return self._results[self._lookup(key)]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pins chunks and says where they are."""
        slots = self.tier.prepare_load(keys, self._record(req_context))
        return UnavailableSlots() if slots is None else HostSlots(slots)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Marks chunks as used. vLLM calls it up to 0.30."""
        self.tier.manager.touch(keys)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Ends a load."""
        self.tier.complete_load(keys, self._record(req_context))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Makes room for the chunks that are missing; None if they do not fit."""
        output = self.tier.prepare_store(keys, self._record(req_context))
        if output is None:
            missing = self.tier.manager.lookup_each(keys) == 0
            self._allocations.append(int(missing.sum()))
            return None
        stored = output.keys_to_store
        if stored:
            self._allocations.append(len(stored))
        return PrepareStoreOutput(
            keys_to_store=stored,
            store_spec=HostSlots(output.block_ids),
            evicted_keys=output.evicted_keys,
        )

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """Ends a store: its chunks are loadable from now on, or gone."""
        self.tier.complete_store(keys, self._record(req_context), success)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Sees a request."""
        self._record(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Sees a request end: all that it used counts as one access."""
        # Where each key ends in its prefix. The public way answers for one key a call.
        positions = getattr(req_context, _POSITIONS, None)
        self.tier.finish(self._record(req_context), positions)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Sees the end of a step."""
        self.tier.expire()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What was stored and removed since the last call."""
        for event in self.tier.manager.take_events():
            # A reset is told by vLLM itself, and its events know of no loss: that is a metric.
            if event.keys:
                yield OffloadingEvent(keys=event.keys, medium=_MEDIUM, removed=event.removed)

    def reset_cache(self) -> None:
        """Forgets every chunk. The scheduler has the workers end all transfers before new ones."""
        self.tier.reset()

    def get_stats(self) -> OffloadingConnectorStats:
        """Gauges, and what the counters have gained since the last call."""
        stats = OffloadingConnectorStats()
        for name, kind, value in self._readings.take():
            if kind == "gauge":
                stats.set_gauge(name, value)
            else:
                stats.increase_counter(name, value)
        for size in self._allocations:
            stats.observe_histogram(ALLOCATION_SIZE, size)
        self._allocations.clear()
        return stats

    if hasattr(OffloadingManager, "get_load_source"):

        def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> Any:
            """Where a hit came from."""
            from vllm.v1.metrics.cache_hit_source import CacheHitSource

            return CacheHitSource.HOST

    def _record(self, req_context: ReqContext) -> Record:
        if _HAS_STATE:
            record = req_context.get_state(Record)
        else:
            record = getattr(req_context, _RECORD, None)
        if record is None:
            record = self.tier.begin()
            if _HAS_STATE:
                req_context.set_state(record)
            else:
                setattr(req_context, _RECORD, record)
        return record  # type: ignore[no-any-return] # vLLM has no types here
