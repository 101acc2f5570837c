"""Makes the worker's transfers for the place where the KV cache lies."""

from typing import Any

from kvferry.integrations.vllm.config import ConfigError, HostTier, Settings
from kvferry.integrations.vllm.transfers import Transfers

__all__ = ["make_transfers"]


def make_transfers(
    kv_caches: Any, blocks_per_chunk: int, host_tier: HostTier, settings: Settings
) -> Transfers:
    """Allocates a worker's part of the host tier.

    Args:
        kv_caches: vLLM's canonical KV caches.
        blocks_per_chunk: Blocks of a chunk.
        host_tier: The tier in numbers.
        settings: The user's.

    Raises:
        ConfigError: The KV cache lies where kvferry does not copy from, or there is no memory.
    """
    from kvferry._core import TransferConflictError
    from kvferry.caches import KVCaches, device_type
    from kvferry.worker import CpuGpuOffloadingHandlers

    caches = KVCaches.of(kv_caches)
    where = device_type(caches)
    if where != "cpu":
        raise ConfigError(f"the KV cache lies on {where}: this build of kvferry copies from cpu")
    try:
        handlers = CpuGpuOffloadingHandlers(
            caches,
            blocks_per_chunk,
            host_tier.chunks,
            # On the CPU a step has ended when its transfers are submitted.
            compute_stream=None,
            threads=settings.threads,
        )
    except MemoryError as error:
        raise ConfigError(
            f"size: {host_tier.bytes} bytes of host memory are not to be had: {error}"
        ) from error
    return Transfers(
        handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler, TransferConflictError
    )
