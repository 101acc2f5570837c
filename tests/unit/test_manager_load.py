"""Loading: pins, who holds them, and how a load ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvferry
from kvferry import LookupResult, OffloadingManager

POLICIES = pytest.mark.parametrize("policy", ["lru", "arc"])
MOST_PINS = 4095


def keys(*numbers: int) -> list[bytes]:
    return [b"%036d" % i for i in numbers]


def filled(policy: str, capacity: int, *numbers: int, **options: Any) -> OffloadingManager:
    manager = OffloadingManager(capacity, policy, **options)
    manager.complete_store(manager.prepare_store(keys(*numbers)))
    return manager


@POLICIES
def test_a_load_pins_its_slots_in_the_order_of_its_keys(policy: str) -> None:
    manager = filled(policy, 8, 1, 2, 3)
    load = manager.prepare_load(keys(3, 1, 3))
    assert load.block_ids.tolist() == [2, 0, 2]
    assert load.block_ids.dtype == np.int64
    assert load.block_ids is load.block_ids
    assert load.load_spec.block_ids.tolist() == [2, 0, 2]
    assert load.load_spec is load.load_spec
    assert repr(load) == "<PrepareLoadOutput 3 pinned>"
    assert len(load.ticket) == 3
    assert manager.stats().pinned == 2
    manager._check_invariants()


@POLICIES
@pytest.mark.parametrize("form", ["output", "ticket", "keys", "array"])
def test_a_load_ends_in_every_form(policy: str, form: str) -> None:
    manager = filled(policy, 8, 1, 2)
    load = manager.prepare_load(keys(1, 2, 1))
    forms: dict[str, Any] = {
        "output": load,
        "ticket": load.ticket,
        "keys": keys(1, 1, 2),
        "array": np.array([list(k) for k in keys(2, 1, 1)], np.uint8),
    }
    done = manager.complete_load(forms[form])
    assert (done.applied, done.late) == (3, 0)
    assert manager.stats().pinned == 0
    manager._check_invariants()


@POLICIES
def test_a_pinned_chunk_is_not_evicted_and_keeps_its_place(policy: str) -> None:
    manager = filled(policy, 3, 1, 2, 3)
    load = manager.prepare_load(keys(1))
    output = manager.prepare_store(keys(4))
    assert output is not None
    assert output.evicted_keys == keys(2)
    manager.complete_store(output)
    manager.complete_load(load)
    output = manager.prepare_store(keys(5))
    assert output is not None
    assert output.evicted_keys == keys(1)


@POLICIES
def test_a_missing_key_refuses_the_whole_load(policy: str) -> None:
    manager = filled(policy, 8, 1)
    with pytest.raises(kvferry.NotResidentError, match="key 1 is not resident"):
        manager.prepare_load(keys(1, 2))
    assert manager.stats().pinned == 0


@POLICIES
def test_a_pending_key_refuses_the_whole_load(policy: str) -> None:
    manager = filled(policy, 8, 1)
    manager.prepare_store(keys(2))
    with pytest.raises(kvferry.NotReadyError, match="key 1 is pending"):
        manager.prepare_load(keys(1, 2))
    assert manager.stats().pinned == 0


@POLICIES
def test_the_most_pins_of_a_slot_refuse_the_next_load(policy: str) -> None:
    manager = filled(policy, 8, 1, 2)
    held = manager.prepare_load(keys(1) * MOST_PINS)
    with pytest.raises(kvferry.StateError, match="most pins"):
        manager.prepare_load(keys(2, 1))
    assert manager.stats().pinned == 1
    assert not manager.reader().try_pin(keys(1)[0])
    assert manager.complete_load(held).applied == MOST_PINS
    manager._check_invariants()


@POLICIES
def test_a_ticket_that_comes_twice_releases_no_other_pin(policy: str) -> None:
    manager = filled(policy, 8, 1)
    first, second = manager.prepare_load(keys(1)), manager.prepare_load(keys(1))
    assert manager.complete_load(first).applied == 1
    for again in (first, first.ticket):
        done = manager.complete_load(again)
        assert (done.applied, done.late) == (0, 1)
    assert manager.stats().pinned == 1
    assert manager.stats().late == 2
    assert manager.complete_load(second).applied == 1


@POLICIES
def test_a_load_that_crosses_a_reset_is_late(policy: str) -> None:
    manager = filled(policy, 8, 1)
    load = manager.prepare_load(keys(1))
    manager.reset_cache("fenced")
    assert manager.complete_load(load).late == 1
    manager._check_invariants()


@POLICIES
def test_unpinning_by_key_what_is_not_pinned_changes_nothing(policy: str) -> None:
    manager = filled(policy, 8, 1, 2)
    load = manager.prepare_load(keys(1))
    with pytest.raises(kvferry.NotPinnedError, match="key 1 is not pinned"):
        manager.complete_load(keys(1, 2))
    with pytest.raises(kvferry.NotPinnedError, match="key 1 is not pinned"):
        manager.complete_load(keys(1, 1))
    with pytest.raises(kvferry.NotResidentError, match="key 1 is not resident"):
        manager.complete_load(keys(1, 3))
    assert manager.stats().pinned == 1
    manager.complete_load(load)


def test_a_completion_by_key_never_releases_the_pin_of_a_reader() -> None:
    manager = filled("lru", 8, 1)
    pin = manager.reader().try_pin(keys(1)[0])
    assert isinstance(pin, kvferry.Pin)
    with pytest.raises(kvferry.NotPinnedError):
        manager.complete_load(keys(1))
    assert pin.unpin()


def test_tickets_of_another_manager_and_of_a_store_are_refused() -> None:
    manager, other = filled("lru", 8, 1), filled("lru", 8, 1)
    load, store = other.prepare_load(keys(1)), other.prepare_store(keys(2))
    assert store is not None
    for ticket in (load, load.ticket):
        with pytest.raises(ValueError, match=r"^ticket: made by another manager"):
            manager.complete_load(ticket)
    for ticket in (store, store.ticket):
        with pytest.raises(TypeError, match=r"^keys: expected .*LoadTicket, got"):
            manager.complete_load(ticket)
    assert other.complete_load(load).applied == 1


def test_the_longest_pin_is_told_in_the_callers_time() -> None:
    manager = filled("lru", 8, 1, 2)
    manager.advance_to(1_000_000)
    load = manager.prepare_load(keys(1))
    manager.advance_to(3_000_000)
    assert 1_900_000 <= manager.stats().longest_pin_us <= 2_000_000
    manager.complete_load(load)
    assert manager.stats().longest_pin_us == 0


@POLICIES
def test_lookups_neither_pin_nor_touch(policy: str) -> None:
    manager = filled(policy, 3, 1, 2, 3)
    digest = manager._debug_digest()
    assert manager.lookup(keys(1)[0]) is LookupResult.HIT
    manager.lookup_prefix(keys(1, 2, 3))
    manager.lookup_each(keys(1, 2, 3))
    assert manager._debug_digest() == digest
    assert manager.stats().pinned == 0


@pytest.mark.parametrize(("policy", "evicted"), [("lru", [3, 2]), ("arc", [3, 2])])
def test_a_touch_is_applied_tail_first(policy: str, evicted: list[int]) -> None:
    manager = filled(policy, 3, 1, 2, 3)
    manager.touch(keys(1, 2, 3, 9))
    output = manager.prepare_store(keys(4, 5))
    assert output is not None
    assert output.evicted_keys == keys(*evicted)
