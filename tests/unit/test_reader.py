"""Readers: lookups, pins and touches beside the owner."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import kvferry
from kvferry import LookupResult, OffloadingManager, Pin, PinRefused, Reader

MISS, HIT, HIT_PENDING = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING


def keys(*numbers: int) -> list[bytes]:
    return [b"%036d" % i for i in numbers]


A, B, C = keys(1, 2, 3)


@pytest.fixture
def manager() -> OffloadingManager:
    manager = OffloadingManager(3)
    manager.complete_store(manager.prepare_store([A, B]))
    return manager


def pinned(reader: Reader, key: bytes) -> Pin:
    pin = reader.try_pin(key)
    assert isinstance(pin, Pin)
    return pin


def test_a_reader_sees_what_the_owner_sees(manager: OffloadingManager) -> None:
    reader = manager.reader()
    manager.prepare_store([C])
    assert [reader.lookup(key) for key in (A, C, b"x")] == [HIT, HIT_PENDING, MISS]
    assert reader.lookup(A) is HIT
    assert reader.lookup_prefix([A, B, C, b"x"]) == (2, 3)
    assert reader.lookup_each((b"x", C, A)).tolist() == [0, 2, 1]
    assert reader.stats() == manager.stats()


def test_a_pin_names_its_slot_and_keeps_it(manager: OffloadingManager) -> None:
    pin = pinned(manager.reader(), A)
    assert pin.slot == manager.prepare_load([A]).block_ids[0]
    assert manager._debug_key(pin.slot) == A
    assert pin.generation >= 0
    assert repr(pin) == f"<Pin slot {pin.slot} generation {pin.generation}>"
    manager.complete_load([A])
    output = manager.prepare_store(keys(7, 8))
    assert output is not None
    assert output.evicted_keys == [B]
    assert manager.prepare_store(keys(9, 10, 11)) is None
    assert pin.unpin()
    assert repr(pin).endswith(", given back>")
    manager._check_invariants()


def test_a_chunk_that_cannot_be_pinned_says_why(manager: OffloadingManager) -> None:
    reader = manager.reader()
    manager.prepare_store([C])
    assert reader.try_pin(b"x") is PinRefused.MISS
    assert reader.try_pin(C) is PinRefused.PENDING
    pins = [pinned(reader, A) for _ in range(4095)]
    assert reader.try_pin(A) is PinRefused.BUSY
    assert not any(PinRefused)
    assert all(pins)
    assert all(reader.unpin(pin) for pin in pins)


def test_a_pin_is_given_back_once(manager: OffloadingManager) -> None:
    reader = manager.reader()
    first, second = pinned(reader, A), pinned(reader, A)
    assert reader.unpin(first)
    for again in (first.unpin, lambda: reader.unpin(first)):
        with pytest.raises(kvferry.StateError, match="given back before"):
            again()
    assert len({first.slot, second.slot}) == 1
    assert manager.prepare_store(keys(7, 8, 9)) is None, "the second pin still holds"
    assert second.unpin()
    assert manager.prepare_store(keys(7, 8, 9)) is not None


def test_any_reader_of_the_engine_gives_a_pin_back(manager: OffloadingManager) -> None:
    pin = pinned(manager.reader(), A)
    assert manager.reader().unpin(pin)


def test_a_pin_of_another_engine_is_refused_and_stays(manager: OffloadingManager) -> None:
    other = OffloadingManager(3)
    pin = pinned(manager.reader(), A)
    with pytest.raises(ValueError, match=r"^pin: .*another manager"):
        other.reader().unpin(pin)
    assert pin.unpin()


@pytest.mark.parametrize("wrong", [None, 3, b"pin", PinRefused.MISS])
def test_what_is_no_pin_is_refused_by_name(manager: OffloadingManager, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^pin: expected Pin, got"):
        manager.reader().unpin(wrong)


def test_a_with_block_gives_its_pin_back(manager: OffloadingManager) -> None:
    reader = manager.reader()
    with pinned(reader, A) as pin:
        assert manager.prepare_store(keys(7, 8, 9)) is None
    with pytest.raises(kvferry.StateError):
        pin.unpin()
    assert manager.prepare_store(keys(7, 8, 9)) is not None


def test_a_with_block_that_gave_its_pin_back_ends_quietly(manager: OffloadingManager) -> None:
    reader = manager.reader()
    with pinned(reader, A) as pin:
        pin.unpin()
        other = pinned(reader, A)
    assert manager.prepare_store(keys(7, 8, 9)) is None
    other.unpin()


def test_an_exception_in_a_with_block_gives_the_pin_back(manager: OffloadingManager) -> None:
    with pytest.raises(LookupError, match="mine"), pinned(manager.reader(), A):
        raise LookupError("mine")
    assert manager.prepare_store(keys(7, 8, 9)) is not None


def test_a_pin_that_crossed_a_fenced_reset_is_stale(manager: OffloadingManager) -> None:
    reader = manager.reader()
    first, second = pinned(reader, A), pinned(reader, B)
    with pytest.raises(kvferry.StalePinError, match="must not be used"), first:
        manager.reset_cache("fenced")
    assert not second.unpin()
    assert manager.stats().unpins_stale == 2
    manager._check_invariants()


def test_a_stale_pin_does_not_hide_another_exception(manager: OffloadingManager) -> None:

    def read() -> None:
        with pinned(manager.reader(), A):
            manager.reset_cache("fenced")
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        read()


def test_a_draining_reset_waits_for_pins(manager: OffloadingManager) -> None:
    pin = pinned(manager.reader(), A)
    assert manager.reset_cache("drain") == 1
    assert manager.reader().lookup(A) is MISS
    assert manager.prepare_store(keys(7, 8, 9)) is None
    assert pin.unpin()
    assert manager.prepare_store(keys(7, 8, 9)) is not None
    assert manager.stats().draining == 0


def test_a_chunk_comes_back_exactly_where_its_last_touch_put_it() -> None:
    manager = OffloadingManager(4)
    manager.complete_store(manager.prepare_store(keys(1, 2, 3, 4)))
    reader = manager.reader()
    pins = [pinned(reader, key) for key in keys(1, 2)]
    output = manager.prepare_store(keys(5))
    assert output is not None
    assert output.evicted_keys == keys(3), "the older two are pinned"
    manager.complete_store(output)
    for pin in pins:
        pin.unpin()
    output = manager.prepare_store(keys(6, 7, 8))
    assert output is not None
    assert output.evicted_keys == keys(1, 2, 4)


def test_a_readers_touch_is_applied_by_the_owner(manager: OffloadingManager) -> None:
    manager.complete_store(manager.prepare_store([C]))
    manager.reader().touch([A, b"unknown"])
    output = manager.prepare_store(keys(7))
    assert output is not None
    assert output.evicted_keys == [B]


def test_touches_beyond_the_log_are_dropped_and_counted() -> None:
    manager = OffloadingManager(8, touch_log_capacity=2)
    manager.complete_store(manager.prepare_store(keys(1, 2, 3, 4)))
    manager.reader().touch(keys(1, 2, 3, 4))
    assert manager.stats().touches_dropped == 2


def test_a_reader_outlives_its_manager() -> None:
    manager = OffloadingManager(3)
    manager.complete_store(manager.prepare_store([A]))
    reader = manager.reader()
    pin = pinned(reader, A)
    del manager
    gc.collect()
    assert reader.lookup(A) is HIT
    assert pin.unpin()


@pytest.mark.parametrize(
    "name",
    [
        *("Reader", "Pin", "RequestAccess", "PrepareStoreOutput", "PrepareLoadOutput"),
        *("StoreTicket", "LoadTicket", "Completion", "Stats"),
    ],
)
def test_what_a_manager_hands_out_cannot_be_made_by_hand(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(kvferry, name)()
