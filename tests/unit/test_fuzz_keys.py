"""Random keys in every form: what is accepted means what its bytes say, the rest is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import kvferry

KEY_BYTES = 6

keys = st.lists(st.binary(min_size=1, max_size=KEY_BYTES), max_size=40)


def refused(manager: kvferry.OffloadingManager, argument: Any) -> bool:
    try:
        manager.lookup_prefix(argument)
    except (TypeError, ValueError) as error:
        assert str(error).startswith("keys")  # noqa: PT017 - accepted ones are right as well
        return True
    return False


@given(keys)
def test_keys_come_back_as_they_went_in(given_keys: list[bytes]) -> None:
    manager = kvferry.OffloadingManager(64, key_bytes=KEY_BYTES)
    output = manager.prepare_store(given_keys)
    assert output is not None
    once = list(dict.fromkeys(given_keys))
    assert output.keys_to_store == once
    assert [given_keys[i] for i in output.indices] == once
    manager.complete_store(output)
    assert manager.lookup_prefix(given_keys) == (len(given_keys), len(given_keys))
    assert manager._debug_lists()["t1"] == once
    assert [manager._debug_key(slot) for slot in output.block_ids] == once
    manager._check_invariants()


@given(keys, keys)
def test_only_what_was_stored_is_found(stored: list[bytes], asked: list[bytes]) -> None:
    manager = kvferry.OffloadingManager(64, key_bytes=KEY_BYTES)
    manager.complete_store(manager.prepare_store(stored))
    expected = [int(key in stored) for key in asked]
    assert manager.lookup_each(asked).tolist() == expected
    assert [manager.lookup(key) for key in asked] == expected
    run = [*expected, 0].index(0)
    assert manager.lookup_prefix(tuple(asked)) == (run, run)


views = st.sampled_from(
    [
        lambda array: array,
        lambda array: array.T,
        lambda array: array[::-1],
        lambda array: array[::2],
        lambda array: array[..., ::-1],
        lambda array: array[..., 1:],
        lambda array: array[1:],
        np.asfortranarray,
        np.ascontiguousarray,
    ]
)


@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.int8, np.uint16, bool, np.float32, "S3"]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=8),
        elements=None,
        fill=st.nothing(),
    )
    | hnp.arrays(np.uint8, st.tuples(st.integers(0, 8), st.integers(0, 8))),
    views,
)
@example(np.zeros((6, 6), np.uint8), lambda array: array.T)
def test_an_array_is_its_rows_or_refused(array: np.ndarray, view: Any) -> None:
    array = view(array)
    manager = kvferry.OffloadingManager(64, key_bytes=KEY_BYTES)
    if refused(manager, array):
        right = array.dtype == np.uint8 and array.ndim == 2 and array.flags.c_contiguous
        assert not (right and 1 <= array.shape[1] <= KEY_BYTES)
        return
    assert array.dtype == np.uint8
    assert array.ndim == 2
    rows = [bytes(row) for row in array]
    output = manager.prepare_store(array)
    assert output is not None
    assert output.keys_to_store == list(dict.fromkeys(rows))
    manager.complete_store(rows)
    assert manager.lookup_prefix(array) == (len(rows), len(rows))


@given(st.lists(st.one_of(st.binary(max_size=8), st.integers(), st.text(), st.none()), max_size=6))
def test_a_list_is_taken_if_each_of_its_items_is_a_key(items: list[Any]) -> None:
    manager = kvferry.OffloadingManager(64, key_bytes=KEY_BYTES)
    good = all(isinstance(item, bytes) and 1 <= len(item) <= KEY_BYTES for item in items)
    assert refused(manager, items) is not good
