"""kvferry's bookkeeping behind vLLM's `OffloadingManager`.

These releases have no notion of a request's access: each `touch` is one, as their own managers have
it. With `store_threshold` kvferry counts offers, as later releases do, where theirs count look-ups:
those stop at the first miss, so that the chunks behind it would never be stored.
"""

from typing import Any

from kvferry._core import PrepareStoreOutput as EngineOutput
from kvferry.integrations.vllm.scheduler_side import SchedulerSide
from kvferry.integrations.vllm.v020 import interface

__all__ = ["HostSlots", "KvferryManager", "UnavailableSlots"]


class HostSlots(interface.BlockIDsLoadStoreSpec):
    """Slots of the host tier, one chunk each."""

    @staticmethod
    def medium() -> str:
        """`CPU`."""
        return "CPU"


class UnavailableSlots(HostSlots):
    """What a load of chunks that are not there gets: the worker fails the job."""

    def __init__(self) -> None:
        super().__init__([])


class KvferryManager(SchedulerSide, interface.OffloadingManager):
    """The scheduler's side of the host tier."""

    # None has the scheduler ask again in a later step.
    RESULTS = (False, True, None)
    SLOTS = HostSlots
    UNAVAILABLE = UnavailableSlots

    def on_new_request(self, req_context: Any) -> Any:
        """Sees a request."""
        self._record(req_context)
        return interface.RequestOffloadingContext()

    def get_stats(self) -> Any:
        """Gauges, and what the counters have gained since the last call. Asked for since 0.24."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import metrics

        return self.report_to(metrics.OffloadingConnectorStats())

    def _output(self, output: EngineOutput) -> Any:
        return interface.PrepareStoreOutput(
            keys_to_store=output.keys_to_store,
            store_spec=HostSlots(output.block_ids),
            evicted_keys=output.evicted_keys,
        )

    def _event(self, keys: list[bytes], removed: bool) -> Any:
        return interface.OffloadingEvent(keys=keys, medium="CPU", removed=removed)
