"""The sizes that the older generations' specs are not told, from vLLM's own configuration.

Nothing here imports vLLM.
"""

from typing import Any

from kvferry.integrations.vllm.config import ConfigError
from kvferry.integrations.vllm.host import Member
from kvferry.integrations.vllm.support import installed_release

__all__ = ["bytes_per_block", "check_parallelism", "member_of"]


def bytes_per_block(kv_cache_config: Any) -> int:
    """Bytes that one block has in one rank's memory, all layers together."""
    if kv_cache_config is None or not kv_cache_config.num_blocks:
        return 0
    tensors = kv_cache_config.kv_cache_tensors
    if any(getattr(tensor, "block_stride", 0) for tensor in tensors):
        # All tensors are then views of one allocation, and each tells its whole size.
        total = int(tensors[0].size)
    else:
        total = sum(int(tensor.size) for tensor in tensors)
    return total // int(kv_cache_config.num_blocks)


def check_parallelism(parallel_config: Any) -> None:
    """Refuses what no test covers.

    Raises:
        ConfigError: The ranks are not all tensor parallel.
    """
    world, tensor = parallel_config.world_size, parallel_config.tensor_parallel_size
    if world != tensor:
        raise ConfigError(
            f"kvferry serves tensor parallelism alone: of {world} ranks only {tensor} are tensor "
            "parallel"
        )
    context = {
        name: getattr(parallel_config, name, 1)
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size")
    }
    for name, size in context.items():
        if size not in (None, 1):
            raise ConfigError(f"kvferry serves no context parallelism: {name} is {size}")


def member_of(vllm_config: Any) -> Member:
    """Which rank of which engine this process is."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return Member(
        engine=vllm_config.kv_transfer_config.engine_id,
        rank=parallel.rank,
        ranks=parallel.world_size,
        fingerprint=(str(model.model), str(model.dtype), installed_release() or ""),
    )
