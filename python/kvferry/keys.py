"""Keys of chunks: the engine's block hash, and the KV-cache group as the last four bytes.

kvferry never hashes tokens: a key is whatever identifies a chunk in the engine that it serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "GROUP_BYTES",
    "Keys",
    "OffloadKey",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "make_offload_key",
]

OffloadKey = NewType("OffloadKey", bytes)

Keys: TypeAlias = Iterable[bytes] | npt.NDArray[np.uint8]
"""The keys of one call, in prefix order: bytes, or a C-contiguous array of shape (n, width)."""

GROUP_BYTES = 4
"""Length of the group at the end of a key, big-endian."""


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """The key of a chunk.

    Args:
        block_hash: The engine's hash of the chunk and its prefix.
        group_idx: The KV-cache group, 0 to 2**32 - 1.

    Raises:
        ValueError: The hash is empty, or the group is out of range.
    """
    if not block_hash:
        raise ValueError("block_hash: must not be empty")
    if not 0 <= group_idx < 1 << 8 * GROUP_BYTES:
        raise ValueError(f"group_idx: {group_idx} is out of range")
    return OffloadKey(block_hash + group_idx.to_bytes(GROUP_BYTES, "big"))


def get_offload_block_hash(key: bytes) -> bytes:
    """The block hash of a key.

    Raises:
        ValueError: The key is too short to have a group.
    """
    _check_length(key)
    return key[:-GROUP_BYTES]


def get_offload_group_idx(key: bytes) -> int:
    """The KV-cache group of a key.

    Raises:
        ValueError: The key is too short to have a group.
    """
    _check_length(key)
    return int.from_bytes(key[-GROUP_BYTES:], "big")


def _check_length(key: bytes) -> None:
    if len(key) <= GROUP_BYTES:
        raise ValueError(f"key: {len(key)} bytes hold no hash and group")
