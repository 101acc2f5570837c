"""The KV-cache tensors of a model as runs of blocks.

These releases hand over each layer's tensor as its attention has it: blocks first, or keys and
values first and then blocks. A backend is asked for the shape of a cache with sizes that tell the
dimensions apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.caches import KVCacheRef, KVCaches, KVCacheTensor
from kvferry.integrations.vllm.config import ConfigError

__all__ = ["canonical"]

# No two of these are equal, and none is 2, the number of keys and values.
_BLOCKS, _TOKENS, _HEADS, _DIM = 1234, 16, 8, 256


@dataclass(frozen=True)
class Blocks:
    """A tensor of blocks, byte by byte: what `kvferry.caches.Tensor` asks for.

    Attributes:
        owner: What keeps the memory.
        address: Of the first block.
        count: How many blocks.
        distance: Bytes from one block to the next.
        size: Bytes of a block.
    """

    owner: Any
    address: int
    count: int
    distance: int
    size: int

    @property
    def shape(self) -> Sequence[int]:
        """Blocks and bytes."""
        return (self.count, self.size)

    @property
    def device(self) -> Any:
        """Where it lies."""
        return self.owner.device

    def stride(self) -> Sequence[int]:
        """In bytes."""
        return (self.distance, 1)

    def element_size(self) -> int:
        """One byte."""
        return 1

    def data_ptr(self) -> int:
        """The address of the first block."""
        return self.address


def canonical(
    kv_caches: Mapping[str, Any], attn_backends: Mapping[str, Any], block_size: int
) -> KVCaches:
    """All tensors of one KV-cache group.

    Args:
        kv_caches: Layer by layer, or one tensor for all layers.
        attn_backends: The backend of each.
        block_size: Tokens of the engine's block.

    Raises:
        ConfigError: A layer's layout is none that can be copied block by block.
    """
    found: dict[tuple[int, int], Blocks] = {}
    for layer, tensor in kv_caches.items():
        for blocks in _blocks(layer, tensor, attn_backends[layer], block_size):
            # Layers may share their KV.
            found[blocks.address, blocks.distance] = blocks
    tensors = [KVCacheTensor(blocks, blocks.size) for blocks in found.values()]
    refs = [KVCacheRef(index, entry.page_size_bytes) for index, entry in enumerate(tensors)]
    return KVCaches(tensors, [refs])


def _blocks(layer: str, tensor: Any, backend: Any, block_size: int) -> list[Blocks]:
    shape = tuple(
        backend.get_kv_cache_shape(
            num_blocks=_BLOCKS, block_size=_TOKENS, num_kv_heads=_HEADS, head_size=_DIM
        )
    )
    all_layers = tensor.dim() == len(shape) + 1
    if all_layers:
        # The dimension of layers comes first in shape, and the blocks come first in memory.
        shape = (80, *shape)
    order = _order(backend, len(shape), all_layers)
    logical = tuple(shape[index] for index in order) if all_layers else shape
    if tensor.dim() != len(logical) or logical.count(_BLOCKS) != 1:
        raise ConfigError(f"the KV cache of {layer} has a shape that kvferry does not know")
    dimension = logical.index(_BLOCKS)
    if dimension == 0:
        parts = [tensor]
    elif dimension == 1 and logical[0] == 2 and tensor.shape[0] == 2:
        parts = [tensor[0], tensor[1]]
    else:
        raise ConfigError(f"the KV cache of {layer} has its blocks in dimension {dimension}")
    # The tokens' dimension tells whether the kernel's blocks are smaller than the engine's.
    kernel_tokens = int(tensor.shape[logical.index(_TOKENS)])
    if block_size % kernel_tokens:
        raise ConfigError(
            f"the KV cache of {layer} has blocks of {kernel_tokens} tokens, the engine of "
            f"{block_size}"
        )
    return [_runs(layer, part, block_size // kernel_tokens) for part in parts]


def _order(backend: Any, dimensions: int, all_layers: bool) -> tuple[int, ...]:
    try:
        order = tuple(backend.get_kv_cache_stride_order(include_num_layers_dimension=all_layers))
    except (AttributeError, NotImplementedError, TypeError):
        return tuple(range(dimensions))
    return order if len(order) == dimensions else tuple(range(dimensions))


def _runs(layer: str, part: Any, kernel_blocks: int) -> Blocks:
    """One tensor `(blocks, …)`, `kernel_blocks` of which are a block of the engine."""
    element = part.element_size()
    expected = 1
    inner = sorted(zip(part.stride()[1:], part.shape[1:], strict=True))
    for stride, length in inner:
        if length > 1 and stride != expected:
            raise ConfigError(f"the bytes of a block of {layer} do not lie together")
        expected *= length
    size, distance = expected * element, part.stride()[0] * element
    if kernel_blocks > 1 and distance != size:
        raise ConfigError(f"the blocks of {layer} do not lie one after the other")
    return Blocks(
        owner=part,
        address=part.data_ptr(),
        count=part.shape[0] // kernel_blocks,
        distance=distance * kernel_blocks,
        size=size * kernel_blocks,
    )
