"""kvferry's bookkeeping behind vLLM's `OffloadingManager`.

Nothing tells which request a call is for, and a request's stores are completed together once it has
ended: there is no deadline for them. Each `touch` is an access.
"""

from collections.abc import Iterable
from typing import Any

from vllm.v1.kv_offload.abstract import OffloadingEvent, OffloadingManager, PrepareStoreOutput
from vllm.v1.kv_offload.mediums import CPULoadStoreSpec

from kvferry._core import PrepareStoreOutput as EngineOutput
from kvferry.integrations.vllm.scheduler_side import SchedulerSide
from kvferry.integrations.vllm.tier import Tier

__all__ = ["KvferryManager", "UnavailableSlots"]


class UnavailableSlots(CPULoadStoreSpec):
    """What a load of chunks that are not there gets: the worker fails the job."""

    def __init__(self) -> None:
        super().__init__([])


class KvferryManager(SchedulerSide, OffloadingManager):
    """The scheduler's side of the host tier."""

    SLOTS = CPULoadStoreSpec
    UNAVAILABLE = UnavailableSlots
    RESULTS = (0, 1, 0)

    def __init__(self, tier: Tier, tokens_per_chunk: int) -> None:
        super().__init__(tier)
        self._tokens_per_chunk = tokens_per_chunk

    def lookup(self, block_hashes: Iterable[Any], req_context: Any = None) -> int:
        """How many leading chunks can be loaded."""
        return self.tier.manager.lookup_prefix(block_hashes)[0]

    def prepare_load(self, block_hashes: Iterable[Any], req_context: Any = None) -> Any:
        """Pins chunks and says where they are."""
        # What these releases hand over can be read once.
        return super().prepare_load(list(block_hashes))

    def complete_load(self, block_hashes: Iterable[Any], req_context: Any = None) -> None:
        """Ends a load."""
        super().complete_load(list(block_hashes))

    def prepare_store(self, block_hashes: Iterable[Any], req_context: Any = None) -> Any:
        """Makes room for the chunks that are missing; None if they do not fit."""
        return super().prepare_store(list(block_hashes))

    def complete_store(  # type: ignore[override] # the second is `success` in these releases
        self, block_hashes: Iterable[Any], success: bool = True, req_context: Any = None
    ) -> None:
        """Ends stores: their chunks are loadable from now on, or gone."""
        super().complete_store(list(block_hashes), success=success)

    def _output(self, output: EngineOutput) -> PrepareStoreOutput:
        return PrepareStoreOutput(
            block_hashes_to_store=output.keys_to_store,
            store_spec=CPULoadStoreSpec(output.block_ids),
            block_hashes_evicted=output.evicted_keys,
        )

    def _event(self, keys: list[bytes], removed: bool) -> OffloadingEvent:
        return OffloadingEvent(
            block_hashes=keys,
            block_size=self._tokens_per_chunk,
            medium=CPULoadStoreSpec.medium(),
            removed=removed,
        )
