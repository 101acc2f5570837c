"""Keys at the boundary: what may be passed, and what is refused by name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvferry

KEYS = [b"%036d" % i for i in range(5)]
MISS, HIT = kvferry.LookupResult.MISS, kvferry.LookupResult.HIT


def rows(keys: list[bytes] = KEYS) -> np.ndarray:
    return np.array([list(key) for key in keys], dtype=np.uint8)


@pytest.fixture
def manager() -> kvferry.OffloadingManager:
    manager = kvferry.OffloadingManager(16)
    manager.complete_store(manager.prepare_store(KEYS))
    return manager


FORMS: dict[str, Callable[[], Any]] = {
    "list": lambda: KEYS,
    "tuple": lambda: tuple(KEYS),
    "generator": lambda: (key for key in KEYS),
    "dict view": lambda: dict.fromkeys(KEYS).keys(),
    "deque": lambda: deque(KEYS),
    "array": rows,
    "read-only array": lambda: read_only(rows()),
    "contiguous rows of a larger array": lambda: np.vstack([rows(), rows()])[:5],
    "bytes of a subclass": lambda: [type("Key", (bytes,), {})(key) for key in KEYS],
}


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("form", FORMS)
def test_every_form_names_the_same_keys(manager: kvferry.OffloadingManager, form: str) -> None:
    make = FORMS[form]
    assert manager.lookup_prefix(make()) == (5, 5)
    assert manager.lookup_each(make()).tolist() == [HIT] * 5
    output = manager.prepare_load(make())
    assert output.block_ids.tolist() == [0, 1, 2, 3, 4]
    assert manager.complete_load(make()).applied == 5
    assert manager.stats().pinned == 0


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_stored(form: str) -> None:
    manager = kvferry.OffloadingManager(16)
    output = manager.prepare_store(FORMS[form]())
    assert output is not None
    assert output.keys_to_store == KEYS
    assert {type(key) for key in output.keys_to_store} == {bytes}


def test_keys_of_different_lengths_are_different_keys() -> None:
    keys = [b"1", b"1\0", b"1\0\0", b"\0", b"x" * 36, b"1\0\0\0\0\0\0\0"]
    manager = kvferry.OffloadingManager(16)
    output = manager.prepare_store(keys)
    assert output is not None
    assert output.keys_to_store == keys
    manager.complete_store(output)
    assert manager.lookup_prefix(keys) == (6, 6)
    assert manager.lookup(b"\0\0") == MISS
    assert manager.lookup(b"1\0\0\0") == MISS


def test_no_keys_are_a_call_without_effect(manager: kvferry.OffloadingManager) -> None:
    for none in ([], (), iter([]), np.empty((0, 36), np.uint8)):
        assert manager.lookup_prefix(none) == (0, 0)
    assert manager.lookup_each([]).tolist() == []
    output = manager.prepare_store([])
    assert output is not None
    assert (output.keys_to_store, output.evicted_keys) == ([], [])
    assert output.block_ids.tolist() == []
    assert manager.complete_store(output) == manager.complete_store([])
    assert manager.prepare_load([]).block_ids.dtype == np.int64


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "None": (None, TypeError, r"^keys: expected an iterable of bytes .* got NoneType"),
    "int": (7, TypeError, r"^keys: .* got int"),
    "one key": (KEYS[0], TypeError, r"^keys: .* got bytes"),
    "bytearray": (bytearray(KEYS[0]), TypeError, r"^keys: .* got bytearray"),
    "memoryview": (memoryview(KEYS[0]), TypeError, r"^keys: .* got memoryview"),
    "str": ("abc", TypeError, r"^keys: .* got str"),
    "an int among bytes": ([KEYS[0], 3], TypeError, r"^keys\[1\]: expected bytes, got int"),
    "a str among bytes": ((*KEYS, "x"), TypeError, r"^keys\[5\]: expected bytes, got str"),
    "a list of arrays": (list(rows()), TypeError, r"^keys\[0\]: expected bytes, got ndarray"),
    "empty key": ([KEYS[0], b""], ValueError, r"^keys\[1\]: .*empty"),
    "long key": ([b"x" * 37], ValueError, r"^keys\[0\]: .*37 bytes.* 36"),
    "long key after others": ([*KEYS, b"x" * 50], ValueError, r"^keys\[5\]: .*50 bytes"),
    "wide rows": (np.zeros((2, 37), np.uint8), ValueError, r"^keys: .*37 bytes"),
    "rows of no width": (np.zeros((2, 0), np.uint8), ValueError, r"^keys: .*0 bytes"),
    "one row": (rows()[0], ValueError, r"^keys: .*shape \[36\]"),
    "three dimensions": (rows()[None], ValueError, r"^keys: .*shape \[1, 5, 36\]"),
    "no dimension": (np.array(7, np.uint8), ValueError, r"^keys: .*uint8.*\(n, width\)"),
    "int8": (rows().view(np.int8), ValueError, r"^keys: .*int8"),
    "bool": (rows() > 0, ValueError, r"^keys: .*bool"),
    "float": (rows().astype(float), ValueError, r"^keys: .*float64"),
    "strings, which numpy strips": (np.array(KEYS), ValueError, r"^keys: .*S36"),
    "objects": (np.array(KEYS, object), ValueError, r"^keys: .*object"),
    "transposed": (np.zeros((36, 5), np.uint8).T, ValueError, r"^keys: .*not C-contiguous"),
    "square, transposed": (np.zeros((36, 36), np.uint8).T, ValueError, r"^keys: .*C-contig"),
    "Fortran order": (np.asfortranarray(rows()), ValueError, r"^keys: .*not C-contiguous"),
    "every second row": (rows()[::2], ValueError, r"^keys: .*not C-contiguous"),
    "backwards": (rows()[::-1], ValueError, r"^keys: .*not C-contiguous"),
    "columns": (rows()[:, :8], ValueError, r"^keys: .*not C-contiguous"),
    "broadcast": (np.broadcast_to(rows()[:1], (5, 36)), ValueError, r"^keys: .*not C-contig"),
}

VERBS: dict[str, Callable[[kvferry.OffloadingManager, Any], object]] = {
    "lookup_prefix": lambda m, keys: m.lookup_prefix(keys),
    "lookup_each": lambda m, keys: m.lookup_each(keys),
    "touch": lambda m, keys: m.touch(keys),
    "prepare_store": lambda m, keys: m.prepare_store(keys),
    "complete_store": lambda m, keys: m.complete_store(keys),
    "prepare_load": lambda m, keys: m.prepare_load(keys),
    "complete_load": lambda m, keys: m.complete_load(keys),
    "drop_keys": lambda m, keys: m.drop_keys(keys),
    "begin_request": lambda m, keys: m.begin_request(keys=keys, positions=[]),
    "set_positions": lambda m, keys: m.begin_request().set_positions(keys, []),
    "reader.lookup_prefix": lambda m, keys: m.reader().lookup_prefix(keys),
    "reader.lookup_each": lambda m, keys: m.reader().lookup_each(keys),
    "reader.touch": lambda m, keys: m.reader().touch(keys),
}


# None says that `begin_request` is told no keys yet.
PAIRS = [(v, r) for v in VERBS for r in REFUSED if (v, r) != ("begin_request", "None")]


@pytest.mark.parametrize(("verb", "refused"), PAIRS)
def test_other_arguments_are_refused_by_name_and_change_nothing(
    manager: kvferry.OffloadingManager, verb: str, refused: str
) -> None:
    argument, error, message = REFUSED[refused]
    before, stats = manager._debug_digest(), manager.stats()
    with pytest.raises(error, match=message):
        VERBS[verb](manager, argument)
    assert manager._debug_digest() == before
    assert manager.stats() == stats


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("x", TypeError, r"^key: expected bytes, got str"),
        (None, TypeError, r"^key: expected bytes, got NoneType"),
        ([b"x"], TypeError, r"^key: expected bytes, got list"),
        (bytearray(b"x"), TypeError, r"^key: expected bytes, got bytearray"),
        (b"", ValueError, r"^key: .*empty"),
        (b"x" * 37, ValueError, r"^key: .*37 bytes.* 36"),
    ],
)
def test_one_key_is_checked_like_many(
    manager: kvferry.OffloadingManager, key: Any, error: type[Exception], message: str
) -> None:
    reader = manager.reader()
    for verb in (manager.lookup, reader.lookup, reader.try_pin):
        with pytest.raises(error, match=message):
            verb(key)


def test_an_exception_in_an_iterable_passes_through(manager: kvferry.OffloadingManager) -> None:
    def keys() -> Any:
        yield KEYS[0]
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        manager.prepare_store(keys())
    assert manager.stats().pending == 0


def test_an_iterable_may_use_the_manager(manager: kvferry.OffloadingManager) -> None:
    def keys() -> Any:
        for key in KEYS:
            manager.touch([key])
            yield key

    assert manager.prepare_load(keys()).block_ids.tolist() == [0, 1, 2, 3, 4]


def test_a_list_that_changes_after_the_call_does_not_change_its_output() -> None:
    manager = kvferry.OffloadingManager(16)
    keys = list(KEYS)
    output = manager.prepare_store(keys)
    keys.clear()
    assert output is not None
    assert output.keys_to_store == KEYS


def test_an_array_that_changes_after_the_call_does_not_change_its_output() -> None:
    manager = kvferry.OffloadingManager(16)
    keys = rows()
    output = manager.prepare_store(keys)
    keys[:] = 0
    assert output is not None
    assert output.keys_to_store == KEYS


@pytest.mark.parametrize("key_bytes", [1, 8, 36, 40, 41, 1024])
def test_keys_of_every_length_up_to_the_limit_are_held(key_bytes: int) -> None:
    manager = kvferry.OffloadingManager(8, key_bytes=key_bytes, group_bytes=0)
    keys = [b"a" * key_bytes, b"b" * max(1, key_bytes // 2)]
    output = manager.prepare_store(keys)
    assert output is not None
    manager.complete_store(output)
    assert manager.lookup_prefix(keys) == (2, 2)
    assert manager._debug_lists()["t1"] == keys
    with pytest.raises(ValueError, match=f"at most {key_bytes}"):
        manager.lookup(b"x" * (key_bytes + 1))


def test_a_key_is_a_hash_and_a_group() -> None:
    key = kvferry.make_offload_key(b"hash", 7)
    assert key == b"hash\x00\x00\x00\x07"
    assert kvferry.get_offload_block_hash(key) == b"hash"
    assert kvferry.get_offload_group_idx(key) == 7
    largest = kvferry.make_offload_key(b"h", 2**32 - 1)
    assert kvferry.get_offload_group_idx(largest) == 2**32 - 1


def test_impossible_parts_of_a_key_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^block_hash: "):
        kvferry.make_offload_key(b"", 0)
    for group in (-1, 2**32):
        with pytest.raises(ValueError, match=r"^group_idx: "):
            kvferry.make_offload_key(b"h", group)
    for short in (b"", b"1234"):
        with pytest.raises(ValueError, match=r"^key: "):
            kvferry.get_offload_block_hash(short)
        with pytest.raises(ValueError, match=r"^key: "):
            kvferry.get_offload_group_idx(short)
