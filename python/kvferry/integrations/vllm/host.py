"""Makes the worker's transfers, and the host memory that they go to.

All ranks of an engine on one node share one region of host memory, rank by rank, or one area for
all where their bytes are equal. They meet when they make it: whoever does not come, or comes with
other numbers, is an error at start.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.integrations.vllm.config import ConfigError, HostTier, Settings, human_bytes
from kvferry.integrations.vllm.log import logger
from kvferry.integrations.vllm.transfers import Transfers

__all__ = ["Member", "make_transfers"]

_LONGEST_NAME = 150
"""Characters of an engine's name that are kept: it becomes the name of a file."""


@dataclass(frozen=True)
class Member:
    """One rank of an engine.

    Attributes:
        engine: The engine's name. No other engine of the machine has it.
        rank: Which rank.
        ranks: How many there are.
        shared: Whether all hold equal bytes, which are kept once.
        fingerprint: What else has to be equal: model, dtype, release.
    """

    engine: str
    rank: int
    ranks: int
    shared: bool = False
    fingerprint: Sequence[str] = ()


def make_transfers(
    kv_caches: Any, blocks_per_chunk: int, host_tier: HostTier, settings: Settings, member: Member
) -> Transfers:
    """Makes a rank's part of the host tier.

    Args:
        kv_caches: vLLM's canonical KV caches.
        blocks_per_chunk: Blocks of a chunk.
        host_tier: The tier in numbers.
        settings: The user's.
        member: The rank.

    Raises:
        ConfigError: The KV cache lies where kvferry does not copy from, its blocks are larger than
            the engine said, or there is no memory.
        RegionError: The ranks did not come together; the message says why.
    """
    from kvferry import PinnedRegion
    from kvferry._core import TransferConflictError
    from kvferry.caches import KVCaches, device_type
    from kvferry.worker import CpuGpuOffloadingHandlers

    caches = KVCaches.of(kv_caches)
    where = device_type(caches)
    if where != "cpu":
        raise ConfigError(f"the KV cache lies on {where}: this build of kvferry copies from cpu")
    slot_bytes = CpuGpuOffloadingHandlers.slot_bytes(caches, blocks_per_chunk)
    if slot_bytes > host_tier.bytes_per_rank:
        raise ConfigError(
            f"a chunk has {human_bytes(slot_bytes)} in a rank, the engine's configuration says "
            f"{human_bytes(host_tier.bytes_per_rank)}: kvferry does not know this layout"
        )
    memory: dict[str, Any] = {"huge_pages": settings.huge_pages}
    if isinstance(settings.numa, int):
        memory["numa_node"] = settings.numa
    try:
        if member.ranks == 1:
            region = PinnedRegion.private(slot_bytes * host_tier.chunks, host_tier.chunks, **memory)
        else:
            region = PinnedRegion.open(
                re.sub(r"[^A-Za-z0-9._-]", "-", member.engine)[:_LONGEST_NAME],
                rank=member.rank,
                ranks=member.ranks,
                slots=host_tier.chunks,
                slot_bytes=slot_bytes,
                shared=member.shared,
                fingerprint=member.fingerprint,
                **memory,
            )
    except MemoryError as error:
        raise ConfigError(
            f"size: {human_bytes(host_tier.bytes)} of host memory are not to be had: {error}"
        ) from error
    logger.info("kvferry: host memory of rank %d: %s", member.rank, region.report)
    handlers = CpuGpuOffloadingHandlers(
        caches,
        blocks_per_chunk,
        host_tier.chunks,
        # On the CPU a step has ended when its transfers are submitted.
        compute_stream=None,
        threads=settings.threads,
        region=region,
        rank=member.rank,
    )
    return Transfers(
        handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler, TransferConflictError
    )
