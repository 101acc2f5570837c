"""kvferry's `OffloadingSpec`: what vLLM makes from its configuration, in every process."""

from typing import Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from kvferry.integrations.vllm.config import ConfigError, Settings
from kvferry.integrations.vllm.host import Member, make_transfers
from kvferry.integrations.vllm.log import logger
from kvferry.integrations.vllm.metrics import METRICS, Metric
from kvferry.integrations.vllm.report import start_line
from kvferry.integrations.vllm.support import installed_release
from kvferry.integrations.vllm.tier import Tier
from kvferry.integrations.vllm.v026.manager import BY_REQUEST, KvferryManager
from kvferry.integrations.vllm.v026.worker import KvferryWorker

__all__ = ["KvferrySpec"]


class KvferrySpec(OffloadingSpec):
    """The offloading spec `kvferry`.

    Attributes:
        settings: What the user set.
        host_tier: What that comes to for this engine.
    """

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """What `KvferryManager.get_stats` reports."""
        return {name: _definition(metric) for name, metric in METRICS.items()}

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.settings = Settings.read(config.extra_config)
        self.offload_prompt_only = self.settings.offload_prompt_only
        _check_parallelism(config)
        # Ranks with equal bytes keep them once: that they share a region is proven when they meet.
        self.replicated_layout = bool(getattr(config, "replicated_layout", False))
        self.host_tier = self.settings.host_tier(
            config.worker_kv_bytes_per_block * self.blocks_per_chunk,
            1 if self.replicated_layout else config.parallel.world_size,
        )
        self._manager: KvferryManager | None = None
        self._worker: KvferryWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's side."""
        if self._manager is None:
            events = self.config.enable_kv_cache_events
            self._manager = KvferryManager(
                Tier(self.host_tier.chunks, self.settings, events=events, by_request=BY_REQUEST)
            )
            tokens = [count * self.blocks_per_chunk for count in self.tokens_per_block]
            prompts = self.offload_prompt_only
            line = start_line(self.settings, self.host_tier, tokens, prompts_only=prompts)
            logger.info("%s", line)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker's side."""
        if self._worker is None:
            member = Member(
                engine=self.config.engine_id,
                rank=self.config.parallel.rank,
                ranks=self.config.parallel.world_size,
                shared=self.replicated_layout,
                fingerprint=(
                    self.config.model.name,
                    self.config.model.dtype,
                    str(getattr(self.config, "kv_cache_layout", None)),
                    installed_release() or "",
                ),
            )
            transfers = make_transfers(
                kv_caches, self.blocks_per_chunk, self.host_tier, self.settings, member
            )
            self._worker = KvferryWorker(transfers)
        return self._worker


def _check_parallelism(config: OffloadingConfig) -> None:
    parallel = config.parallel
    if parallel.world_size != parallel.tp_size or parallel.dcp_size != 1:
        raise ConfigError(
            f"kvferry serves tensor parallelism alone: of {parallel.world_size} ranks only "
            f"{parallel.tp_size} are tensor parallel (pipeline {parallel.pp_size}, prefill context "
            f"{parallel.pcp_size}, decode context {parallel.dcp_size})"
        )


def _definition(metric: Metric) -> OffloadingMetricMetadata:
    if metric.kind == "histogram":
        return OffloadingHistogramMetadata(documentation=metric.text, buckets=metric.buckets)
    kinds = {"counter": OffloadingCounterMetadata, "gauge": OffloadingGaugeMetadata}
    return kinds[metric.kind](documentation=metric.text)
