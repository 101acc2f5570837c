"""Where the reference goes beyond vLLM: tickets, draining, duplicates, errors without effect."""

from __future__ import annotations

from typing import Literal

import pytest

from reference import (
    HIT,
    HIT_PENDING,
    MISS,
    Event,
    NotPinnedError,
    NotReadyError,
    ReferenceManager,
    StoreOutput,
)

A, B, C, D = (letter.encode() + bytes(4) for letter in "abcd")
POLICIES = pytest.mark.parametrize("policy", ["lru", "arc"])


def filled(
    policy: str, capacity: int, *keys: bytes, enable_events: bool = False
) -> ReferenceManager:
    manager = ReferenceManager(capacity, policy, enable_events=enable_events)
    if keys:
        manager.complete_store(started(manager, *keys).ticket)
    manager.take_events()
    return manager


def started(manager: ReferenceManager, *keys: bytes) -> StoreOutput:
    output = manager.prepare_store(keys)
    assert output is not None
    assert output.keys_to_store == list(keys)
    return output


@POLICIES
def test_a_missing_key_twice_in_a_store_gets_one_slot(policy: str) -> None:
    manager = filled(policy, 3)
    output = manager.prepare_store([A, B, A])
    assert output is not None
    assert output.keys_to_store == [A, B]
    assert len(set(output.block_ids)) == 2
    assert len(manager.slots.free) == 1


@POLICIES
def test_a_load_with_a_missing_or_pending_key_pins_nothing(policy: str) -> None:
    manager = filled(policy, 3, A, B)
    started(manager, C)
    for keys in ([A, D], [A, C]):
        with pytest.raises(NotReadyError):
            manager.prepare_load(keys)
    output = manager.prepare_store([D])
    assert output is not None
    assert output.evicted_keys == [A]


@POLICIES
def test_a_refused_load_is_not_recorded(policy: str) -> None:
    manager = filled(policy, 2, A, B)
    access = manager.begin_request()
    with pytest.raises(NotReadyError):
        manager.prepare_load([A, C], access)
    manager.finish_request(access)
    assert manager.lists()["t1"] == [A, B]


@POLICIES
def test_unpinning_more_than_is_pinned_changes_nothing(policy: str) -> None:
    manager = filled(policy, 2, A, B)
    manager.prepare_load([A, B])
    for keys in ([A, B, A], [A, C]):
        with pytest.raises(NotPinnedError):
            manager.complete_load(keys)
    assert manager.prepare_store([C]) is None
    manager.complete_load([B, A])
    assert manager.prepare_store([C]) is not None


@POLICIES
def test_a_ticket_is_good_for_one_completion(policy: str) -> None:
    manager = filled(policy, 1, A)
    first, second = manager.prepare_load([A]), manager.prepare_load([A])
    manager.complete_load(first.ticket)
    manager.complete_load(first.ticket)
    assert manager.late_completions == 1
    assert manager.prepare_store([B]) is None
    manager.complete_load(second.ticket)
    assert manager.prepare_store([B]) is not None


@POLICIES
def test_a_late_store_does_not_end_a_later_store_of_the_same_key(policy: str) -> None:
    manager = filled(policy, 1)
    first = started(manager, A)
    manager.complete_store(first.ticket, success=False)
    started(manager, A)
    manager.complete_store(first.ticket)
    assert manager.lookup(A) == HIT_PENDING
    assert manager.late_completions == 1


@POLICIES
def test_a_store_from_before_a_reset_does_not_end_one_from_after(policy: str) -> None:
    manager = filled(policy, 1)
    before = started(manager, A)
    manager.reset_cache("fenced")
    after = started(manager, A)
    manager.complete_store(before.ticket)
    assert manager.lookup(A) == HIT_PENDING
    manager.complete_store(after.ticket)
    assert manager.lookup(A) == HIT


@POLICIES
def test_a_cancelled_store_is_a_miss_and_its_slot_drains_until_the_transfer_ends(
    policy: str,
) -> None:
    manager = filled(policy, 2, enable_events=True)
    store = started(manager, A)
    manager.cancel_store(store.ticket)
    assert manager.lookup(A) == MISS
    again = started(manager, A)
    assert again.block_ids != store.block_ids
    assert manager.prepare_store([B]) is None
    manager.complete_store(store.ticket)
    assert manager.lookup(A) == HIT_PENDING
    assert manager.prepare_store([B]) is not None
    assert manager.take_events() == []


@POLICIES
def test_a_cancelled_store_leaves_ready_chunks_alone(policy: str) -> None:
    manager = filled(policy, 1)
    store = started(manager, A)
    manager.complete_store([A])
    manager.cancel_store(store.ticket)
    assert manager.lookup(A) == HIT


@POLICIES
def test_dropped_chunks_leave_as_soon_as_nobody_holds_them(policy: str) -> None:
    manager = filled(policy, 4, A, B, enable_events=True)
    load = manager.prepare_load([A, A])
    pending = started(manager, C)
    manager.take_events()
    manager.drop_keys([A, B, B, C, D])
    assert manager.take_events() == [Event("removed", (B,))]
    assert manager.lookup_each([A, B, C]) == [HIT, MISS, HIT_PENDING]
    manager.complete_store(pending.ticket)
    assert manager.take_events() == []
    manager.complete_load(load.ticket)
    assert manager.take_events() == [Event("removed", (A,))]
    assert manager.lists() == {"t1": [], "t2": [], "b1": [], "b2": []}


@POLICIES
def test_an_offer_takes_a_drop_back_even_if_it_is_declined(policy: str) -> None:
    manager = filled(policy, 1, A)
    load = manager.prepare_load([A])
    manager.drop_keys([A])
    assert manager.prepare_store([A, B]) is None
    manager.complete_load(load.ticket)
    assert manager.lookup(A) == HIT


@POLICIES
@pytest.mark.parametrize("in_flight", ["fenced", "drain"])
def test_a_reset_hides_every_key_at_once(
    policy: str, in_flight: Literal["fenced", "drain"]
) -> None:
    manager = filled(policy, 3, A, B, enable_events=True)
    manager.prepare_load([A])
    started(manager, C)
    manager.reset_cache(in_flight)
    assert manager.lookup_each([A, B, C]) == [MISS, MISS, MISS]
    assert manager.take_events() == [Event("cleared")]


@POLICIES
def test_draining_slots_come_back_when_their_last_transfer_ends(policy: str) -> None:
    manager = filled(policy, 3, A, B)
    loads = [manager.prepare_load([A, B]), manager.prepare_load([A])]
    store = started(manager, C)
    manager.reset_cache("drain")
    assert (len(manager.slots.free), len(manager.slots.draining)) == (0, 3)
    assert manager.prepare_store([D]) is None
    manager.complete_load(loads[0].ticket)
    assert (len(manager.slots.free), len(manager.slots.draining)) == (1, 2)
    manager.complete_load(loads[1].ticket)
    manager.complete_store(store.ticket)
    assert (len(manager.slots.free), len(manager.slots.draining)) == (3, 0)
    assert manager.lookup(C) == MISS


@POLICIES
def test_a_fenced_reset_returns_draining_slots_for_good(policy: str) -> None:
    manager = filled(policy, 1, A)
    load = manager.prepare_load([A])
    manager.reset_cache("drain")
    manager.reset_cache("fenced")
    assert len(manager.slots.free) == 1
    started(manager, B)
    manager.reset_cache("drain")
    manager.complete_load(load.ticket)
    assert len(manager.slots.draining) == 1


@POLICIES
def test_a_running_request_goes_on_after_a_reset(policy: str) -> None:
    manager = filled(policy, 2, A, B)
    access = manager.begin_request([A, B], [1, 2])
    manager.prepare_load([A, B], access)
    manager.reset_cache("fenced")
    output = manager.prepare_store([B, A], access)
    assert output is not None
    manager.complete_store(output.ticket)
    manager.finish_request(access)
    assert manager.lists()["t1"] == [B, A]
    assert manager.lists()["t2"] == []


@POLICIES
def test_finishing_twice_applies_once_and_a_finished_request_asks_for_nothing(policy: str) -> None:
    manager = filled(policy, 2, A, B)
    access = manager.begin_request()
    manager.prepare_load([A], access)
    manager.finish_request(access)
    manager.touch([B])
    before = manager.lists()
    manager.finish_request(access)
    assert manager.lists() == before
    with pytest.raises(ValueError, match="finished"):
        manager.prepare_load([A], access)
    with pytest.raises(ValueError, match="finished"):
        manager.prepare_store([C], access)
    assert manager.lists() == before


def test_a_store_without_a_request_leaves_ghosts_and_target_alone() -> None:
    manager = filled("arc", 1, A)
    manager.complete_store(started(manager, B).ticket)
    started(manager, A)
    assert manager.target_t1_size == 0.0
    manager.touch([B])
    assert manager.target_t1_size == 1.0


@POLICIES
def test_lookup_prefix_tells_ready_from_known(policy: str) -> None:
    manager = filled(policy, 4, A, B)
    started(manager, C)
    assert manager.lookup_prefix([A, B, C, D, A]) == (2, 3)
    assert manager.lookup_prefix([A, C, B]) == (1, 3)
    assert manager.lookup_prefix([D, A]) == (0, 0)
    assert manager.lookup_prefix([]) == (0, 0)


@POLICIES
def test_events_are_taken_once_and_only_if_enabled(policy: str) -> None:
    manager = filled(policy, 1, enable_events=True)
    manager.complete_store(started(manager, A).ticket)
    manager.complete_store(started(manager, B).ticket, success=False)
    assert manager.take_events() == [Event("stored", (A,)), Event("removed", (A,))]
    assert manager.take_events() == []
    assert filled(policy, 1, A).take_events() == []


def test_keys_without_groups_are_ordered_together() -> None:
    manager = ReferenceManager(2, group_bytes=0)
    access = manager.begin_request([b"x", b"y"], [2, 1])
    output = manager.prepare_store([b"x", b"y"], access)
    assert output is not None
    manager.finish_request(access)
    assert manager.lists()["t1"] == [b"x", b"y"]
