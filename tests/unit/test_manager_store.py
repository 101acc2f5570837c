"""Storing: what is stored where, what leaves for it, and how a store ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvferry
from kvferry import Completion, LookupResult, OffloadingManager, PrepareStoreOutput, StoreRejected

MISS, HIT, HIT_PENDING = LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING
POLICIES = pytest.mark.parametrize("policy", ["lru", "arc"])


def key(i: int) -> bytes:
    return b"%036d" % i


def keys(*numbers: int) -> list[bytes]:
    return [key(i) for i in numbers]


def begun(manager: OffloadingManager, *numbers: int) -> PrepareStoreOutput:
    output = manager.prepare_store(keys(*numbers))
    assert output is not None
    return output


def filled(policy: str, capacity: int, *numbers: int, **options: Any) -> OffloadingManager:
    manager = OffloadingManager(capacity, policy, **options)
    if numbers:
        manager.complete_store(begun(manager, *numbers))
    return manager


@POLICIES
def test_a_store_gives_each_missing_key_a_slot(policy: str) -> None:
    manager = filled(policy, 8, 1, 3)
    output = begun(manager, 1, 2, 3, 4, 2)
    assert output.keys_to_store == keys(2, 4)
    assert output.indices.tolist() == [1, 3]
    assert output.evicted_keys == []
    assert output.block_ids.dtype == output.indices.dtype == np.int64
    assert len(set(output.block_ids.tolist())) == 2
    assert set(output.block_ids.tolist()) <= set(range(8))
    assert len(output.ticket) == 2
    assert repr(output) == "<PrepareStoreOutput 2 to store, 0 evicted>"
    manager._check_invariants()


@POLICIES
def test_what_an_output_gives_is_made_once(policy: str) -> None:
    output = begun(OffloadingManager(8, policy), 1, 2)
    for name in (
        *("keys_to_store", "evicted_keys", "block_ids", "indices", "store_spec", "ticket"),
    ):
        assert getattr(output, name) is getattr(output, name)
    assert output.block_hashes_to_store is output.keys_to_store
    assert output.block_hashes_evicted is output.evicted_keys
    assert isinstance(output.store_spec, kvferry.CPULoadStoreSpec)
    assert output.store_spec.block_ids.tolist() == output.block_ids.tolist()


@POLICIES
def test_an_output_can_be_read_after_its_store_has_ended(policy: str) -> None:
    manager = OffloadingManager(8, policy)
    output = begun(manager, 1, 2)
    manager.complete_store(output)
    assert output.block_ids.tolist() == [0, 1]
    assert output.keys_to_store == keys(1, 2)


@POLICIES
def test_a_key_is_pending_until_its_store_completes(policy: str) -> None:
    manager = OffloadingManager(8, policy)
    output = begun(manager, 1, 2)
    assert manager.lookup(key(1)) is HIT_PENDING
    assert manager.lookup_prefix(keys(1, 2, 3)) == (0, 2)
    assert manager.lookup_each(keys(3, 1)).tolist() == [MISS, HIT_PENDING]
    assert manager.complete_store(output).applied == 2
    assert manager.lookup(key(1)) is HIT
    assert manager.lookup_prefix(keys(1, 2, 3)) == (2, 2)
    assert manager.lookup_each(keys(3, 1)).dtype == np.uint8


@POLICIES
@pytest.mark.parametrize("form", ["output", "ticket", "keys", "array"])
@pytest.mark.parametrize("success", [True, False])
def test_a_store_ends_in_every_form(policy: str, form: str, success: bool) -> None:
    manager = OffloadingManager(8, policy)
    output = begun(manager, 1, 2)
    forms: dict[str, Any] = {
        "output": output,
        "ticket": output.ticket,
        "keys": output.keys_to_store,
        "array": np.array([list(k) for k in output.keys_to_store], np.uint8),
    }
    done = manager.complete_store(forms[form], success)
    assert (done.applied, done.late) == (2, 0)
    assert manager.lookup(key(1)) is (HIT if success else MISS)
    stats = manager.stats()
    assert (stats.stored, stats.failed) == ((2, 0) if success else (0, 2))
    assert stats.free == (6 if success else 8)
    manager._check_invariants()


@POLICIES
def test_a_ticket_that_comes_twice_is_late(policy: str) -> None:
    manager = OffloadingManager(8, policy)
    output = begun(manager, 1, 2)
    assert repr(output.ticket) == "<StoreTicket 2 chunks>"
    manager.complete_store(output.ticket)
    assert repr(output.ticket) == "<StoreTicket 2 chunks, given back>"
    done = manager.complete_store(output.ticket, False)
    assert (done.applied, done.late) == (0, 2)
    assert manager.cancel_store(output.ticket).late == 2
    assert manager.stats().late == 4
    assert manager.lookup(key(1)) is HIT


@POLICIES
def test_a_ticket_after_a_reset_does_not_complete_another_store(policy: str) -> None:
    manager = OffloadingManager(1, policy)
    old = begun(manager, 1)
    manager.reset_cache("fenced")
    young = begun(manager, 1)
    assert old.block_ids.tolist() == young.block_ids.tolist()
    assert manager.complete_store(old).late == 1
    assert manager.lookup(key(1)) is HIT_PENDING
    assert manager.complete_store(young).applied == 1
    assert manager.lookup(key(1)) is HIT


@POLICIES
def test_by_key_ready_keys_are_left_alone_and_unknown_ones_are_late(policy: str) -> None:
    manager = filled(policy, 8, 1)
    for success in (True, False):
        done = manager.complete_store(keys(1, 2), success=success)
        assert (done.applied, done.late) == (0, 1)
    assert manager.lookup(key(1)) is HIT


@POLICIES
def test_a_full_tier_evicts_the_oldest_and_never_a_key_of_the_call(policy: str) -> None:
    manager = filled(policy, 4, 1, 2, 3, 4)
    output = begun(manager, 1, 2, 5, 6)
    assert output.keys_to_store == keys(5, 6)
    assert output.evicted_keys == keys(3, 4)
    assert manager.stats().evicted == 2
    assert manager.last_rejection is None
    manager._check_invariants()


@POLICIES
def test_what_does_not_fit_is_none_and_says_why(policy: str) -> None:
    manager = filled(policy, 4, 1, 2, 3, enable_events=True)
    assert manager.last_rejection is None
    load = manager.prepare_load(keys(1, 2))
    manager.take_events()
    digest, before = manager._debug_digest(), manager.stats()
    assert manager.prepare_store(keys(5, 6, 7)) is None
    assert manager.last_rejection is StoreRejected.FULL
    assert manager._debug_digest() == digest
    assert manager.take_events() == []
    assert manager.stats().declined_full == before.declined_full + 1
    assert manager.prepare_store(keys(5, 6)) is not None
    assert manager.last_rejection is None
    manager.complete_load(load)
    manager._check_invariants()


@POLICIES
def test_more_keys_than_the_tier_holds_do_not_fit(policy: str) -> None:
    manager = OffloadingManager(2, policy)
    assert manager.prepare_store(keys(1, 2, 3)) is None
    assert manager.last_rejection is StoreRejected.FULL
    assert manager.prepare_store(keys(1, 2, 2, 1)) is not None


def test_keys_that_collide_are_rejected_by_the_index() -> None:
    # Uniform keys are hashed by their ends alone: these share two buckets of eight.
    collide = [b"headhead" + b"%020d" % i + b"tailtail" for i in range(17)]
    manager = OffloadingManager(1000, uniform_keys=True)
    assert manager.prepare_store(collide) is None
    assert manager.last_rejection is StoreRejected.INDEX_FULL
    assert manager.stats().declined_index == 1
    assert manager.stats().free == 1000
    output = manager.prepare_store(collide[:16])
    assert output is not None
    manager.complete_store(output)
    assert manager.lookup_prefix(collide) == (16, 16)
    manager._check_invariants()


@POLICIES
def test_a_cancelled_store_is_a_miss_and_drains_until_its_transfer_ends(policy: str) -> None:
    manager = OffloadingManager(2, policy)
    output = begun(manager, 1, 2)
    done = manager.cancel_store(output)
    assert (done.applied, done.late) == (2, 0)
    assert manager.lookup_each(keys(1, 2)).tolist() == [MISS, MISS]
    assert manager.stats().draining == 2
    assert manager.prepare_store(keys(3)) is None
    assert manager.complete_store(output).applied == 2
    assert manager.stats().draining == 0
    assert manager.lookup(key(1)) is MISS
    assert begun(manager, 3).keys_to_store == keys(3)


@POLICIES
def test_a_pending_store_expires_at_its_time_and_not_before(policy: str) -> None:
    manager = OffloadingManager(8, policy, pending_timeout_us=1_000)
    manager.advance_to(5_000)
    output = begun(manager, 1, 2)
    assert manager.expire_pending(5_999) == 0
    assert manager.stats().longest_pending_us <= 999
    assert manager.expire_pending(7_000) == 2
    assert manager.lookup(key(1)) is MISS
    assert manager.stats().cancelled == 2
    assert manager.complete_store(output).applied == 2
    assert manager.stats().draining == 0


def test_without_a_timeout_nothing_expires() -> None:
    manager = OffloadingManager(8)
    begun(manager, 1)
    assert manager.expire_pending(2**63) == 0
    assert manager.lookup(key(1)) is HIT_PENDING


@POLICIES
def test_a_key_is_stored_once_it_has_been_offered_often_enough(policy: str) -> None:
    manager = OffloadingManager(8, policy, store_threshold=2)
    assert begun(manager, 1, 2).keys_to_store == []
    assert begun(manager, 2, 3).keys_to_store == keys(2)
    assert manager.stats().declined_threshold == 3


def test_tickets_of_another_manager_and_of_a_load_are_refused() -> None:
    manager, other = filled("lru", 8, 1), filled("lru", 8, 1)
    store, load = begun(other, 2), other.prepare_load(keys(1))
    for ticket in (store, store.ticket):
        with pytest.raises(ValueError, match=r"^ticket: made by another manager"):
            manager.complete_store(ticket)
        with pytest.raises(ValueError, match=r"^ticket: made by another manager"):
            manager.cancel_store(ticket)
    for ticket in (load, load.ticket):
        with pytest.raises(TypeError, match=r"^keys: expected .*StoreTicket, got"):
            manager.complete_store(ticket)
        with pytest.raises(TypeError, match=r"^ticket: expected .*StoreTicket, got"):
            manager.cancel_store(ticket)
    with pytest.raises(TypeError, match=r"^ticket: expected .*StoreTicket, got list"):
        manager.cancel_store(keys(1))
    assert other.complete_store(store).applied == 1


@pytest.mark.parametrize("success", [1, None, "yes"])
def test_success_is_a_bool(success: Any) -> None:
    manager = OffloadingManager(8)
    output = begun(manager, 1)
    if success is None:
        assert manager.complete_store(output, success).applied == 1
        return
    with pytest.raises(TypeError, match=r"^success: expected a bool"):
        manager.complete_store(output, success)
    assert manager.complete_store(output, np.bool_(False)).applied == 1
    assert manager.lookup(key(1)) is MISS


def test_a_completion_compares_and_prints() -> None:
    manager = OffloadingManager(8)
    done = manager.complete_store(begun(manager, 1))
    assert repr(done) == "Completion(applied=1, late=0)"
    assert done == manager.complete_store(begun(manager, 2))
    assert done != manager.complete_store(keys(9))
    assert len({done, manager.complete_store(begun(manager, 3))}) == 1
    assert isinstance(done, Completion)
