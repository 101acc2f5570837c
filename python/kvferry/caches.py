"""The KV-cache tensors of an inference engine, seen as runs of blocks.

Nothing here imports torch: a tensor is whatever answers like one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

__all__ = ["KVCacheRef", "KVCacheTensor", "KVCaches", "Tensor"]


class Device(Protocol):
    """Where a tensor lies."""

    @property
    def type(self) -> str:
        """Such as `cpu` or `cuda`."""


class Tensor(Protocol):
    """What kvferry asks of a tensor. `torch.Tensor` has it."""

    @property
    def shape(self) -> Sequence[int]:
        """The size of each dimension."""

    @property
    def device(self) -> Device:
        """Where it lies."""

    def stride(self) -> Sequence[int]:
        """The stride of each dimension, in elements."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def data_ptr(self) -> int:
        """The address of its first element."""


@dataclass(frozen=True)
class KVCacheTensor:
    """One tensor of blocks.

    Attributes:
        tensor: `(num_blocks, …)`, any dtype. Blocks may lie at any distance; the bytes of one block
            lie together.
        page_size_bytes: bytes of a block that hold KV, at most all of them.
    """

    tensor: Tensor
    page_size_bytes: int


@dataclass(frozen=True)
class KVCacheRef:
    """The part of a tensor that a layer, or several layers, of one group use.

    Attributes:
        tensor_idx: which of the tensors.
        page_size_bytes: bytes of a block that the group uses, from the block's beginning on.
    """

    tensor_idx: int
    page_size_bytes: int


@dataclass(frozen=True)
class KVCaches:
    """All KV-cache tensors of an engine, and which KV-cache group uses which.

    Groups may share tensors: a block belongs to one of them at a time.

    Attributes:
        tensors: the tensors, each once.
        group_data_refs: for each KV-cache group, what it uses.
    """

    tensors: Sequence[KVCacheTensor]
    group_data_refs: Sequence[Sequence[KVCacheRef]]

    @classmethod
    def of(cls, kv_caches: "KVCaches | Mapping[str, Tensor] | Sequence[Tensor]") -> "KVCaches":
        """The argument itself, or tensors as one group that uses all of each.

        An object with the same attributes, such as vLLM's `CanonicalKVCaches`, is taken as it is.
        """
        if isinstance(kv_caches, KVCaches) or hasattr(kv_caches, "group_data_refs"):
            return kv_caches  # type: ignore[return-value] # by its attributes
        given = list(kv_caches.values() if isinstance(kv_caches, Mapping) else kv_caches)
        tensors = [KVCacheTensor(tensor, block_bytes(tensor)) for tensor in given]
        refs = [KVCacheRef(i, entry.page_size_bytes) for i, entry in enumerate(tensors)]
        return cls(tensors, [refs])


def block_bytes(tensor: Tensor) -> int:
    """Bytes of a block of a tensor `(num_blocks, …)`."""
    return prod(tensor.shape[1:]) * tensor.element_size()


def device_type(kv_caches: KVCaches) -> str:
    """Where the tensors lie: `cpu`, `cuda`, ….

    Raises:
        ValueError: There is no tensor, or they lie in different places.
    """
    types = {entry.tensor.device.type for entry in kv_caches.tensors}
    if len(types) != 1:
        raise ValueError(
            f"kv_caches: expected tensors of one device, got {sorted(types) or 'none'}"
        )
    return types.pop()


def address_table(kv_caches: KVCaches) -> list[tuple[int, int, int, int]]:
    """Each tensor as address, block stride, page size (bytes) and number of blocks.

    Raises:
        ValueError: A tensor has no blocks, its page is larger than its block, or the bytes of a
            block do not lie together.
    """
    table = []
    for i, entry in enumerate(kv_caches.tensors):
        tensor, size = entry.tensor, entry.tensor.element_size()
        if not tensor.shape or not all(tensor.shape):
            raise ValueError(f"kv_caches: tensor {i} has shape {tuple(tensor.shape)}: no blocks")
        strides = tensor.stride()
        # The elements of a block may be in any order, as long as there is no gap between them.
        expected = 1
        for stride, length in sorted(zip(strides[1:], tensor.shape[1:], strict=True)):
            if length > 1 and stride != expected:
                raise ValueError(
                    f"kv_caches: tensor {i}, shape {tuple(tensor.shape)}, strides "
                    f"{tuple(strides)}: the bytes of a block do not lie together"
                )
            expected *= length
        if entry.page_size_bytes > block_bytes(tensor):
            raise ValueError(
                f"kv_caches: tensor {i} has pages of {entry.page_size_bytes} bytes "
                f"in blocks of {block_bytes(tensor)}"
            )
        # With one block, torch may report any stride.
        stride = strides[0] * size if tensor.shape[0] > 1 else block_bytes(tensor)
        table.append((tensor.data_ptr(), stride, entry.page_size_bytes, tensor.shape[0]))
    return table
