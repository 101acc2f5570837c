"""Blocks of one tensor copied to blocks of another."""

import numpy as np
import numpy.typing as npt

from kvferry import _core
from kvferry.caches import Tensor

__all__ = ["swap_blocks"]


def swap_blocks(
    src: Tensor,
    dst: Tensor,
    block_size_in_bytes: int,
    block_mapping: Tensor | npt.NDArray[np.int64],
    compute_stream: int | None,
) -> None:
    """Copies block `block_mapping[i, 0]` of `src` to block `block_mapping[i, 1]` of `dst`.

    Both tensors are contiguous, and made of blocks of `block_size_in_bytes` bytes each, whatever
    their shape. For tensors on the CPU the bytes are there when the call returns.

    Args:
        src: where to read.
        dst: where to write; it may be `src`, if no block that is written is also read.
        block_size_in_bytes: a divisor of the size of each tensor.
        block_mapping: `int64[n, 2]` on the CPU.
        compute_stream: the raw handle of the stream whose earlier work the copies wait for; None
            for tensors on the CPU.

    Raises:
        ValueError: An id is out of range, a destination is there twice or is also read, a tensor is
            not contiguous or on another device. Nothing was copied.
        TypeError: An argument has the wrong type.
    """
    if compute_stream is not None and not isinstance(compute_stream, int):
        raise TypeError(
            f"compute_stream: expected an int or None, got {type(compute_stream).__name__}"
        )
    if not isinstance(block_size_in_bytes, int):
        raise TypeError(
            f"block_size_in_bytes: expected an int, got {type(block_size_in_bytes).__name__}"
        )
    _core.swap_blocks(
        _extent("src", src), _extent("dst", dst), block_size_in_bytes, _mapping(block_mapping)
    )


def _extent(name: str, tensor: Tensor) -> tuple[int, int]:
    """The address of a contiguous tensor on the CPU, and its bytes."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"{name}: a tensor on {tensor.device.type}: this build copies those on cpu"
        )
    expected = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if length != 1 and stride != expected:
            raise ValueError(f"{name}: the tensor is not contiguous")
        expected *= length
    return tensor.data_ptr(), expected * tensor.element_size()


def _mapping(block_mapping: Tensor | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    name = "block_mapping"
    if isinstance(block_mapping, list | tuple | int | float | str) or block_mapping is None:
        raise TypeError(f"{name}: expected a tensor or array, got {type(block_mapping).__name__}")
    mapping = np.asarray(block_mapping)
    if mapping.dtype != np.int64:
        raise TypeError(f"{name}: expected int64, got {mapping.dtype}")
    if mapping.ndim != 2 or mapping.shape[1] != 2:
        raise ValueError(f"{name}: expected shape (n, 2), got {mapping.shape}")
    return np.ascontiguousarray(mapping)
