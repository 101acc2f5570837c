"""Requests: what they saw is applied once, when they finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvferry
from kvferry import OffloadingManager, RequestAccess

POLICIES = pytest.mark.parametrize("policy", ["lru", "arc"])


def keys(*numbers: int) -> list[bytes]:
    return [b"%032d" % i + bytes(4) for i in numbers]


def filled(policy: str, capacity: int, *numbers: int) -> OffloadingManager:
    manager = OffloadingManager(capacity, policy)
    manager.complete_store(manager.prepare_store(keys(*numbers)))
    return manager


def order(manager: OffloadingManager) -> list[bytes]:
    lists = manager._debug_lists()
    return lists["t1"] + lists["t2"]


def test_a_request_is_one_access_however_often_it_uses_a_chunk() -> None:
    manager = filled("arc", 8, 1, 2)
    access = manager.begin_request()
    for _ in range(3):
        manager.complete_load(manager.prepare_load(keys(1), access))
    assert manager._debug_lists()["t1"] == keys(1, 2)
    assert access.seen == 1
    assert manager.stats().hits == 1
    manager.finish_request(access)
    assert manager._debug_lists()["t2"] == keys(1)


def test_a_chunk_that_the_request_stored_itself_is_no_hit() -> None:
    manager = OffloadingManager(8, "arc")
    access = manager.begin_request()
    manager.complete_store(manager.prepare_store(keys(1, 2), access))
    manager.prepare_store(keys(1, 2, 3), access)
    manager.finish_request(access)
    assert manager._debug_lists()["t2"] == []
    assert manager._debug_lists()["t1"] == keys(3, 2, 1)
    assert (manager.stats().hits, manager.stats().misses) == (0, 3)


@POLICIES
def test_chunks_are_applied_in_the_order_of_their_positions(policy: str) -> None:
    manager = filled(policy, 8, 1, 2, 3)
    access = manager.begin_request(keys=keys(3, 1), positions=[16, 32])
    access.set_positions(keys(2), np.array([48]))
    manager.complete_load(manager.prepare_load(keys(1, 2, 3), access))
    manager.finish_request(access)
    assert order(manager) == keys(2, 1, 3)


@POLICIES
def test_without_positions_the_order_of_the_calls_counts(policy: str) -> None:
    manager = filled(policy, 8, 1, 2, 3)
    access = manager.begin_request()
    for number in (2, 3, 1):
        manager.complete_load(manager.prepare_load(keys(number), access))
    manager.finish_request(access)
    assert order(manager) == keys(1, 3, 2)


@POLICIES
def test_an_access_that_is_dropped_applies_nothing(policy: str) -> None:
    manager = filled(policy, 8, 1, 2)
    before = manager._debug_digest()
    access = manager.begin_request()
    manager.complete_load(manager.prepare_load(keys(1), access))
    del access
    assert manager._debug_digest() == before


@POLICIES
def test_finishing_twice_applies_once(policy: str) -> None:
    manager = filled(policy, 8, 1, 2)
    access = manager.begin_request()
    manager.complete_load(manager.prepare_load(keys(1), access))
    manager.finish_request(access, output_tokens=100)
    assert access.finished
    digest = manager._debug_digest()
    manager.finish_request(access)
    assert manager._debug_digest() == digest


def test_a_finished_request_stores_and_loads_nothing_more() -> None:
    manager = filled("lru", 8, 1)
    access = manager.begin_request()
    manager.finish_request(access)
    uses: list[Callable[[], object]] = [
        lambda: manager.prepare_store(keys(2), access),
        lambda: manager.prepare_load(keys(1), access),
        lambda: access.set_positions(keys(1), [0]),
    ]
    for use in uses:
        with pytest.raises(kvferry.StateError, match="has finished"):
            use()
    assert manager.stats().pending == manager.stats().pinned == 0
    assert (access.seen, access.memory_bytes()) == (0, 0)


def test_an_access_of_another_manager_is_refused_and_stays_usable() -> None:
    manager, other = filled("lru", 8, 1), filled("lru", 8, 1)
    access = other.begin_request()
    uses: list[Callable[[], object]] = [
        lambda: manager.prepare_store(keys(2), access),
        lambda: manager.prepare_load(keys(1), access),
        lambda: manager.finish_request(access),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"^access: begun by another manager"):
            use()
    other.prepare_load(keys(1), access)
    assert access.seen == 1
    other.finish_request(access)


def test_a_reset_empties_an_access_and_it_goes_on() -> None:
    manager = filled("lru", 8, 1, 2)
    access = manager.begin_request()
    manager.prepare_load(keys(1), access)
    manager.reset_cache("fenced")
    manager.complete_store(manager.prepare_store(keys(3), access))
    assert access.seen == 1
    manager.finish_request(access)


@POLICIES
def test_a_store_that_does_not_fit_is_seen_once(policy: str) -> None:
    manager = filled(policy, 2, 1, 2)
    manager.prepare_load(keys(1, 2))
    access = manager.begin_request()
    for _ in range(3):
        assert manager.prepare_store(keys(3), access) is None
    assert manager.stats().misses == 2 + 1
    assert access.seen == 1


@pytest.mark.parametrize("wrong", [3, "access", object(), [1]])
def test_what_is_no_access_is_refused_by_name(wrong: Any) -> None:
    manager = filled("lru", 8, 1)
    with pytest.raises(TypeError, match=r"^access: expected RequestAccess, got"):
        manager.prepare_store(keys(2), wrong)
    with pytest.raises(TypeError, match=r"^access: expected RequestAccess, got"):
        manager.prepare_load(keys(1), access=wrong)
    with pytest.raises(TypeError, match=r"^access: expected RequestAccess, got"):
        manager.finish_request(wrong)


POSITIONS: dict[str, tuple[Any, type[Exception], str]] = {
    "fewer": ([0], ValueError, "^positions: 1 positions for 2 keys"),
    "more": ([0, 1, 2], ValueError, "^positions: 3 positions for 2 keys"),
    "negative": ([0, -1], ValueError, r"^positions\[1\]: -1 is out of range"),
    "the largest": ([0, 2**32 - 1], ValueError, r"^positions\[1\]: .*out of range"),
    "huge": ([2**70, 0], ValueError, r"^positions\[0\]: .*out of range"),
    "fractional": ([0.5, 1.0], TypeError, r"^positions\[0\]: expected an int, got float"),
    "floats": (np.zeros(2), TypeError, r"^positions\[0\]: expected an int"),
    "text": ("ab", TypeError, r"^positions\[0\]: expected an int, got str"),
    "one": (5, TypeError, "^positions: expected an iterable of int, got int"),
    "negative in an array": (np.array([-1, 0]), ValueError, r"^positions\[0\]: -1 is out"),
}


@pytest.mark.parametrize("wrong", POSITIONS)
def test_impossible_positions_are_refused_by_name(wrong: str) -> None:
    positions, error, message = POSITIONS[wrong]
    manager = filled("lru", 8, 1, 2)
    with pytest.raises(error, match=message):
        manager.begin_request(keys=keys(1, 2), positions=positions)
    access = manager.begin_request()
    with pytest.raises(error, match=message):
        access.set_positions(keys(1, 2), positions)
    access.set_positions(keys(1, 2), (2**32 - 2, 0))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint32, np.uint8])
def test_positions_may_be_an_array_of_any_integers(dtype: type) -> None:
    manager = filled("lru", 8, 1, 2)
    access = manager.begin_request(keys=keys(1, 2), positions=np.array([9, 4], dtype))
    manager.complete_load(manager.prepare_load(keys(1, 2), access))
    manager.finish_request(access)
    assert order(manager) == keys(1, 2)


def test_keys_and_positions_come_together() -> None:
    manager = OffloadingManager(8)
    with pytest.raises(ValueError, match=r"^positions: needed with keys"):
        manager.begin_request(keys=keys(1))
    with pytest.raises(ValueError, match=r"^keys: needed with positions"):
        manager.begin_request(positions=[1])


@pytest.mark.parametrize("name", ["now_us", "gpu_hit"])
def test_the_numbers_of_a_request_are_checked(name: str) -> None:
    manager = OffloadingManager(8)
    with pytest.raises(ValueError, match=rf"^{name}: -1 is out of range"):
        manager.begin_request(**{name: -1})
    with pytest.raises(TypeError, match=rf"^{name}: expected an int"):
        manager.begin_request(**{name: "soon"})


def test_output_tokens_are_checked_and_the_request_goes_on() -> None:
    manager = OffloadingManager(8)
    access = manager.begin_request()
    with pytest.raises(ValueError, match=r"^output_tokens: -1 is out of range"):
        manager.finish_request(access, -1)
    assert not access.finished


def test_a_request_tells_what_it_knows() -> None:
    manager = filled("lru", 8, 1)
    access = manager.begin_request(5, gpu_hit=3)
    assert isinstance(access, RequestAccess)
    assert (access.gpu_hit, access.seen, access.finished) == (3, 0, False)
    assert repr(access) == "<RequestAccess 0 keys seen>"
    manager.prepare_load(keys(1), access)
    assert repr(access) == "<RequestAccess 1 keys seen>"
    manager.finish_request(access)
    assert repr(access) == "<RequestAccess finished>"


def test_a_long_request_takes_at_most_64_bytes_a_key() -> None:
    manager = OffloadingManager(1 << 14)
    access = manager.begin_request()
    for start in range(0, 1 << 14, 512):
        manager.prepare_store(keys(*range(start, start + 512)), access)
    assert access.seen == 1 << 14
    assert access.memory_bytes() <= 64 * (1 << 14) + 1024
