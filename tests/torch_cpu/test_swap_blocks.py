"""`swap_blocks` beside plain indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvferry import swap_blocks
from torch_cpu.pools import as_bytes, random_tensor


def test_blocks_are_copied_as_the_mapping_says() -> None:
    generator = torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.uint8):
        source = random_tensor((30, 4, 8), dtype, generator)
        destination = random_tensor((20, 4, 8), dtype, generator)
        expected = as_bytes(destination).clone()
        n = int(rng.integers(0, 21))
        mapping = np.stack([rng.integers(0, 30, n), rng.permutation(20)[:n]], axis=1)
        expected[mapping[:, 1]] = as_bytes(source)[mapping[:, 0]]
        block_bytes = as_bytes(source).shape[1]
        swap_blocks(source, destination, block_bytes, torch.from_numpy(mapping), None)
        assert torch.equal(as_bytes(destination), expected)


def test_large_blocks_are_copied_too() -> None:
    generator = torch.Generator().manual_seed(1)
    source = random_tensor((8, 3 << 20), torch.uint8, generator)
    destination = torch.zeros_like(source)
    mapping = torch.tensor([[7, 0], [3, 1], [3, 7]])
    swap_blocks(source, destination, 3 << 20, mapping, None)
    assert torch.equal(destination[0], source[7])
    assert torch.equal(destination[1], source[3])
    assert torch.equal(destination[7], source[3])
    assert not destination[2:7].any()


def test_a_numpy_mapping_is_taken() -> None:
    source, destination = torch.arange(8.0), torch.zeros(8)
    swap_blocks(source, destination, 4, np.array([[3, 5]]), None)
    assert destination[5] == 3


def test_blocks_of_one_tensor_may_be_swapped_into_others_of_it() -> None:
    tensor = torch.arange(8.0)
    swap_blocks(tensor, tensor, 8, torch.tensor([[0, 3]]), None)
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


BLOCKS = torch.zeros(8, 16, dtype=torch.uint8)

REFUSED = {
    "block_mapping: int32": (torch.zeros(1, 2, dtype=torch.int32), 16, TypeError),
    "block_mapping: float": (torch.zeros(1, 2), 16, TypeError),
    "block_mapping: shape": (torch.zeros(2, 3, dtype=torch.int64), 16, ValueError),
    "block_mapping: one dimension": (torch.zeros(2, dtype=torch.int64), 16, ValueError),
    "block_mapping: a list": ([[0, 1]], 16, TypeError),
    "block_mapping: source id": (torch.tensor([[8, 0]]), 16, ValueError),
    "block_mapping: destination id": (torch.tensor([[0, 8]]), 16, ValueError),
    "block_mapping: negative": (torch.tensor([[-1, 0]]), 16, ValueError),
    "block_mapping: destination twice": (torch.tensor([[0, 3], [1, 3]]), 16, ValueError),
    "block_size_in_bytes: zero": (torch.tensor([[0, 1]]), 0, ValueError),
    "block_size_in_bytes: no divisor": (torch.tensor([[0, 1]]), 48, ValueError),
    "block_size_in_bytes: text": (torch.tensor([[0, 1]]), "16", TypeError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_argument_is_named_and_nothing_is_copied(name: str) -> None:
    mapping, block_bytes, kind = REFUSED[name]
    destination = torch.ones_like(BLOCKS)
    with pytest.raises(kind, match=name.split(":", maxsplit=1)[0]):
        swap_blocks(BLOCKS, destination, block_bytes, mapping, None)
    assert destination.all()


def test_a_block_that_is_read_and_written_is_refused() -> None:
    tensor = torch.arange(8.0)
    with pytest.raises(ValueError, match="block_mapping"):
        swap_blocks(tensor, tensor, 4, torch.tensor([[0, 1], [1, 2]]), None)
    assert tensor.tolist() == list(range(8))


def test_tensors_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="src"):
        swap_blocks(torch.zeros(8, 4)[:, :2], torch.zeros(8, 2), 8, torch.tensor([[0, 1]]), None)
