"""Where transfers read and write."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from kvferry import BlockIDsLoadStoreSpec, CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec


@pytest.mark.parametrize(("spec", "medium"), [(CPULoadStoreSpec, "CPU"), (GPULoadStoreSpec, "GPU")])
def test_a_spec_is_of_its_medium(spec: type[LoadStoreSpec], medium: str) -> None:
    assert spec.medium() == medium
    assert issubclass(spec, BlockIDsLoadStoreSpec)
    assert issubclass(spec, LoadStoreSpec)


@pytest.mark.parametrize("ids", [[3, 1], (3, 1), range(3, 0, -2), np.array([3, 1], np.uint8)])
def test_block_ids_are_int64(ids: Any) -> None:
    spec = CPULoadStoreSpec(ids)
    assert spec.block_ids.dtype == np.int64
    assert spec.block_ids.tolist() == [3, 1]
    assert repr(spec) == "CPULoadStoreSpec([3, 1])"


def test_there_may_be_no_blocks() -> None:
    assert CPULoadStoreSpec([]).block_ids.dtype == np.int64
    assert GPULoadStoreSpec([]).group_sizes == [0]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1.5], TypeError, r"^block_ids: expected integers"),
        (["a"], TypeError, r"^block_ids: expected integers"),
        ([True], TypeError, r"^block_ids: expected integers"),
        ([[1, 2]], ValueError, r"^block_ids: expected one dimension"),
        (7, ValueError, r"^block_ids: expected one dimension"),
        ([0, -1], ValueError, r"^block_ids: an id is negative"),
        (np.array([2**63], np.uint64), ValueError, r"^block_ids: .*out of range"),
    ],
)
def test_impossible_ids_are_refused_by_name(ids: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CPULoadStoreSpec(ids)


def test_one_group_is_the_default() -> None:
    spec = GPULoadStoreSpec([4, 5, 6])
    assert list(spec.group_sizes) == [3]
    assert list(spec.block_indices) == [0]


def test_groups_share_the_blocks_out() -> None:
    spec = GPULoadStoreSpec([4, 5, 6], group_sizes=[1, 0, 2], block_indices=[77, 0, 3])
    assert list(spec.group_sizes) == [1, 0, 2]
    assert list(spec.block_indices) == [77, 0, 3]


@pytest.mark.parametrize(
    ("sizes", "indices", "message"),
    [
        ([1, 1], [0, 0], r"^group_sizes: 2 blocks in groups, 3 block_ids"),
        ([4, -1], [0, 0], r"^group_sizes: a size is negative"),
        ([3], [0, 0], r"^block_indices: 2 for 1 groups"),
        ([1, 2], [0], r"^block_indices: 1 for 2 groups"),
        ([3], [-1], r"^block_indices: an index is negative"),
    ],
)
def test_groups_that_do_not_fit_are_refused_by_name(
    sizes: list[int], indices: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GPULoadStoreSpec([4, 5, 6], sizes, indices)


def test_a_spec_without_a_medium_cannot_be_made() -> None:
    incomplete: Any = BlockIDsLoadStoreSpec
    with pytest.raises(TypeError, match="abstract"):
        incomplete([1])


def test_a_spec_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(GPULoadStoreSpec([1, 2], [1, 1], [5, 6])))  # noqa: S301 - its own bytes
    assert copy.block_ids.tolist() == [1, 2]
    assert list(copy.block_indices) == [5, 6]
