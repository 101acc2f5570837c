"""kvferry's `OffloadingSpec`: what vLLM makes from its configuration, in every process."""

from collections.abc import Iterator
from typing import Any

from vllm.v1.kv_offload.worker.worker import OffloadingHandler, TransferResult

from kvferry.integrations.vllm.config import Settings
from kvferry.integrations.vllm.geometry import bytes_per_block, check_parallelism, member_of
from kvferry.integrations.vllm.handler_side import HandlerSide
from kvferry.integrations.vllm.host import make_transfers
from kvferry.integrations.vllm.log import logger
from kvferry.integrations.vllm.metrics import METRICS, Metric
from kvferry.integrations.vllm.report import start_line
from kvferry.integrations.vllm.tier import Tier
from kvferry.integrations.vllm.transfers import Ended
from kvferry.integrations.vllm.v020 import interface
from kvferry.integrations.vllm.v020.manager import HostSlots, KvferryManager, UnavailableSlots

__all__ = ["KvferrySpec"]


class KvferryHandler(HandlerSide, OffloadingHandler):
    """The worker's side of the host tier."""

    SLOTS = HostSlots
    UNAVAILABLE = UnavailableSlots

    def _result(self, job: Ended, media: tuple[str, str]) -> TransferResult:
        return TransferResult(
            job_id=job.job_id,
            success=job.success,
            transfer_size=job.bytes,
            transfer_time=job.seconds,
            transfer_type=media,
        )


class KvferrySpec(interface.OffloadingSpec):
    """The offloading spec `kvferry`.

    Attributes:
        settings: What the user set.
        host_tier: What that comes to for this engine.
    """

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """What `KvferryManager.get_stats` reports. Asked for since 0.24."""
        from vllm.v1.kv_offload import base

        kinds = {"counter": base.OffloadingCounterMetadata, "gauge": base.OffloadingGaugeMetadata}

        def definition(metric: Metric) -> Any:
            if metric.kind == "histogram":
                histogram = base.OffloadingHistogramMetadata
                return histogram(documentation=metric.text, buckets=metric.buckets)
            return kinds[metric.kind](documentation=metric.text)

        return {name: definition(metric) for name, metric in METRICS.items()}

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self.settings = Settings.read(self.extra_config)
        check_parallelism(vllm_config.parallel_config)
        if hasattr(self, "offload_prompt_only"):
            self.offload_prompt_only = self.settings.offload_prompt_only
        # Each group has blocks of its own size, and a chunk of as many of them.
        self.block_size_factor = self.settings.chunk_blocks(self.gpu_block_size[0])
        self.host_tier = self.settings.host_tier(
            bytes_per_block(kv_cache_config) * self.block_size_factor,
            vllm_config.parallel_config.world_size,
        )
        self._manager: KvferryManager | None = None
        self._handler: KvferryHandler | None = None

    def get_manager(self) -> Any:
        """The scheduler's side."""
        if self._manager is None:
            publishing = self.vllm_config.kv_events_config
            self._manager = KvferryManager(
                Tier(
                    self.host_tier.chunks,
                    self.settings,
                    events=publishing is not None and publishing.enable_kv_cache_events,
                    by_request=False,
                )
            )
            tokens = [size * self.block_size_factor for size in self.gpu_block_size]
            prompts = getattr(self, "offload_prompt_only", False)
            line = start_line(self.settings, self.host_tier, tokens, prompts_only=prompts)
            logger.info("%s", line)
        return self._manager

    def get_handlers(self, kv_caches: Any) -> Iterator[tuple[type, type, OffloadingHandler]]:
        """A worker's side, for each direction."""
        if self._handler is None:
            transfers = make_transfers(
                kv_caches,
                self.block_size_factor,
                self.host_tier,
                self.settings,
                member_of(self.vllm_config),
            )
            self._handler = KvferryHandler(transfers)
        yield interface.GPULoadStoreSpec, HostSlots, self._handler
        yield HostSlots, interface.GPULoadStoreSpec, self._handler
