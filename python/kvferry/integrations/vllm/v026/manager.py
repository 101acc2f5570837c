"""kvferry's bookkeeping behind vLLM's `OffloadingManager`.

Look-ups go key by key to the engine: measured, that costs less than a dictionary's `get`, so that
no answer is remembered and none can be out of date. `KvferryConnector` asks for a whole prompt in
one call.
"""

from collections.abc import Mapping
from typing import Any

import vllm.v1.kv_offload.base as interface
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)

from kvferry._core import PrepareStoreOutput as EngineOutput
from kvferry.integrations.vllm.scheduler_side import SchedulerSide

__all__ = ["BY_REQUEST", "HostSlots", "KvferryManager", "UnavailableSlots"]

# 0.26 names a medium by its text.
_MEDIUM: Any = interface.Medium.CPU if hasattr(interface, "Medium") else "CPU"

BY_REQUEST = hasattr(ReqContext, "get_offload_key_position")
"""Whether a request is one access. Before 0.31 each `touch` is one, which the connector calls."""


class HostSlots(BlockIDsLoadStoreSpec):
    """Slots of the host tier, one chunk each."""


class UnavailableSlots(HostSlots):
    """What a load of chunks that are not there gets: the worker fails the job."""

    def __init__(self) -> None:
        super().__init__([])


class KvferryManager(SchedulerSide, OffloadingManager):
    """The scheduler's side of the host tier."""

    RESULTS = (LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING)
    SLOTS = HostSlots
    UNAVAILABLE = UnavailableSlots

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Sees a request."""
        self._record(req_context)
        return RequestOffloadingContext()

    def get_stats(self) -> OffloadingConnectorStats:
        """Gauges, and what the counters have gained since the last call."""
        return self.report_to(OffloadingConnectorStats())

    if hasattr(OffloadingManager, "get_load_source"):

        def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> Any:
            """Where a hit came from."""
            from vllm.v1.metrics.cache_hit_source import CacheHitSource

            return CacheHitSource.HOST

    def _output(self, output: EngineOutput) -> PrepareStoreOutput:
        return PrepareStoreOutput(
            keys_to_store=output.keys_to_store,
            store_spec=HostSlots(output.block_ids),
            evicted_keys=output.evicted_keys,
        )

    def _event(self, keys: list[bytes], removed: bool) -> OffloadingEvent:
        return OffloadingEvent(keys=keys, medium=_MEDIUM, removed=removed)

    def _positions(self, req_context: ReqContext) -> Mapping[bytes, int] | None:
        # The public way answers for one key a call.
        return getattr(req_context, "_offload_key_positions", None)
