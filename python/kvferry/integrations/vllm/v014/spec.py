"""kvferry's `OffloadingSpec`: what vLLM makes from its configuration, in every process."""

from collections.abc import Iterator
from typing import Any

import vllm.v1.kv_offload.worker.worker as interface
from vllm.v1.kv_offload.abstract import OffloadingManager
from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec
from vllm.v1.kv_offload.spec import OffloadingSpec
from vllm.v1.kv_offload.worker.worker import OffloadingHandler

from kvferry.integrations.vllm.config import ConfigError, Settings
from kvferry.integrations.vllm.geometry import bytes_per_block, check_parallelism, member_of
from kvferry.integrations.vllm.handler_side import HandlerSide
from kvferry.integrations.vllm.host import make_transfers
from kvferry.integrations.vllm.log import logger
from kvferry.integrations.vllm.report import start_line
from kvferry.integrations.vllm.tier import Tier
from kvferry.integrations.vllm.transfers import Ended
from kvferry.integrations.vllm.v014.layout import canonical
from kvferry.integrations.vllm.v014.manager import KvferryManager, UnavailableSlots

__all__ = ["KvferrySpec"]

# A class since 0.16, a pair before.
_RESULT: Any = interface.TransferResult if isinstance(interface.TransferResult, type) else None


class KvferryHandler(HandlerSide, OffloadingHandler):
    """The worker's side of the host tier."""

    SLOTS = CPULoadStoreSpec
    UNAVAILABLE = UnavailableSlots

    def _result(self, job: Ended, media: tuple[str, str]) -> Any:
        if _RESULT is None:
            return job.job_id, job.success
        return _RESULT(
            job_id=job.job_id,
            success=job.success,
            transfer_size=job.bytes,
            transfer_time=job.seconds,
            transfer_type=media,
        )


class KvferrySpec(OffloadingSpec):
    """The offloading spec `kvferry`.

    Attributes:
        settings: What the user set.
        host_tier: What that comes to for this engine.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self.settings = Settings.read(self.extra_config)
        check_parallelism(vllm_config.parallel_config)
        if kv_cache_config is None or len(kv_cache_config.kv_cache_groups) != 1:
            groups = 0 if kv_cache_config is None else len(kv_cache_config.kv_cache_groups)
            raise ConfigError(
                f"this release of vLLM offloads one KV-cache group, and the model has {groups}: "
                "use --disable-hybrid-kv-cache-manager, or vLLM 0.20 or later"
            )
        sizes = self.gpu_block_size
        self._block_tokens: int = sizes[0] if isinstance(sizes, tuple) else sizes
        # Two names for it: 0.14 to 0.15 in tokens, 0.16 to 0.18 in blocks.
        self.block_size_factor = self.settings.chunk_blocks(self._block_tokens)
        self.offloaded_block_size = self._block_tokens * self.block_size_factor
        self.host_tier = self.settings.host_tier(
            bytes_per_block(kv_cache_config) * self.block_size_factor,
            vllm_config.parallel_config.world_size,
        )
        self._manager: KvferryManager | None = None
        self._handler: KvferryHandler | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's side."""
        if self._manager is None:
            publishing = self.vllm_config.kv_events_config
            tier = Tier(
                self.host_tier.chunks,
                self.settings,
                events=publishing is not None and publishing.enable_kv_cache_events,
                by_request=False,
                # Keys are block hashes alone.
                group_bytes=0,
            )
            self._manager = KvferryManager(tier, self.offloaded_block_size)
            tokens = [self.offloaded_block_size]
            line = start_line(self.settings, self.host_tier, tokens, prompts_only=False)
            logger.info("%s", line)
        return self._manager

    def get_handlers(
        self, kv_caches: dict[str, Any], attn_backends: dict[str, Any]
    ) -> Iterator[tuple[type, type, OffloadingHandler]]:
        """A worker's side, for each direction."""
        if self._handler is None:
            caches = canonical(kv_caches, attn_backends, self._block_tokens)
            transfers = make_transfers(
                caches,
                self.block_size_factor,
                self.host_tier,
                self.settings,
                member_of(self.vllm_config),
            )
            self._handler = KvferryHandler(transfers)
        yield GPULoadStoreSpec, CPULoadStoreSpec, self._handler
        yield CPULoadStoreSpec, GPULoadStoreSpec, self._handler
