"""Where a transfer reads or writes: lists of block ids in one medium."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["BlockIDsLoadStoreSpec", "CPULoadStoreSpec", "GPULoadStoreSpec", "LoadStoreSpec"]


class LoadStoreSpec(ABC):
    """What one side of a transfer needs to find its blocks."""

    @staticmethod
    @abstractmethod
    def medium() -> str:
        """The medium that this side is in."""


class BlockIDsLoadStoreSpec(LoadStoreSpec, ABC):
    """Blocks by their numbers.

    Attributes:
        block_ids: `int64[n]`.
    """

    def __init__(self, block_ids: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """Takes a copy of the ids, or, of an int64 array, the array itself.

        Raises:
            ValueError: The ids are not one-dimensional, or one is negative or too large.
            TypeError: They are no integers.
        """
        self.block_ids: npt.NDArray[np.int64] = _block_ids(block_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids.tolist()})"


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Slots of the host tier."""

    @staticmethod
    def medium() -> str:
        """`CPU`."""
        return "CPU"


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks of the accelerator, ordered by KV-cache group.

    Attributes:
        group_sizes: How many of the blocks belong to each group. One group by default.
        block_indices: Where the first block of each group stands in its request. A chunk may be
            longer than a block: this tells how far into its first chunk a transfer begins. 0 by
            default.
    """

    def __init__(
        self,
        block_ids: Sequence[int] | npt.NDArray[np.integer],
        group_sizes: Sequence[int] | None = None,
        block_indices: Sequence[int] | None = None,
    ) -> None:
        """Checks the groups against the ids.

        Raises:
            ValueError: The sizes do not add up to the number of ids, or there are not as many
                indices as sizes, or a number is negative.
            TypeError: The ids are no integers.
        """
        super().__init__(block_ids)
        self.group_sizes: Sequence[int] = (
            [len(self.block_ids)] if group_sizes is None else group_sizes
        )
        self.block_indices: Sequence[int] = (
            [0] * len(self.group_sizes) if block_indices is None else block_indices
        )
        if any(size < 0 for size in self.group_sizes):
            raise ValueError("group_sizes: a size is negative")
        if sum(self.group_sizes) != len(self.block_ids):
            raise ValueError(
                f"group_sizes: {sum(self.group_sizes)} blocks in groups, "
                f"{len(self.block_ids)} block_ids"
            )
        if len(self.block_indices) != len(self.group_sizes):
            raise ValueError(
                f"block_indices: {len(self.block_indices)} for {len(self.group_sizes)} groups"
            )
        if any(index < 0 for index in self.block_indices):
            raise ValueError("block_indices: an index is negative")

    @staticmethod
    def medium() -> str:
        """`GPU`."""
        return "GPU"


def _block_ids(block_ids: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    ids = np.asarray(block_ids)
    if ids.ndim != 1:
        raise ValueError(f"block_ids: expected one dimension, got shape {ids.shape}")
    if not len(ids):
        return np.empty(0, dtype=np.int64)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"block_ids: expected integers, got {ids.dtype}")
    if ids.min() < 0:
        raise ValueError("block_ids: an id is negative")
    if ids.dtype == np.uint64 and ids.max() > np.iinfo(np.int64).max:
        raise ValueError("block_ids: an id is out of range")
    return ids.astype(np.int64, copy=False)
