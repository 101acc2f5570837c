"""Everything around stores and loads: construction, resets, drops, events, numbers, names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvferry
from kvferry import LookupResult, OffloadingEvent, OffloadingManager

MISS, HIT = LookupResult.MISS, LookupResult.HIT
POLICIES = pytest.mark.parametrize("policy", ["lru", "arc"])


def keys(*numbers: int) -> list[bytes]:
    return [b"%036d" % i for i in numbers]


def filled(policy: str, capacity: int, *numbers: int, **options: Any) -> OffloadingManager:
    manager = OffloadingManager(capacity, policy, **options)
    manager.complete_store(manager.prepare_store(keys(*numbers)))
    return manager


def kinds(manager: OffloadingManager) -> list[tuple[str, list[bytes]]]:
    return [(event.kind, event.keys) for event in manager.take_events()]


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no chunks": ({"capacity": 0}, ValueError, "^capacity 0 is not between 1 and"),
    "too many chunks": ({"capacity": 2**40}, ValueError, "^capacity .* is not between"),
    "far too many": ({"capacity": 2**200}, ValueError, "^capacity: .* out of range"),
    "negative": ({"capacity": -1}, ValueError, "^capacity: -1 is out of range"),
    "fractional": ({"capacity": 1.5}, TypeError, "^capacity: expected an int, got float"),
    "text": ({"capacity": "8"}, TypeError, "^capacity: expected an int, got str"),
    "policy": ({"policy": "fifo"}, ValueError, '^policy: unknown policy "fifo": .*lru, arc'),
    "policy type": ({"policy": 3}, TypeError, "^policy: expected a str, got int"),
    "policy text": ({"policy": "\ud800"}, ValueError, "^policy: .*Unicode"),
    "no key": ({"key_bytes": 0}, ValueError, "^key_bytes 0 is not between 1 and 1024"),
    "long key": ({"key_bytes": 1025}, ValueError, "^key_bytes 1025 is not"),
    "group": ({"group_bytes": 3}, ValueError, "^group_bytes 3 is neither 0 nor 4"),
    "threshold": ({"store_threshold": -1}, ValueError, "^store_threshold: -1 is out"),
    "tracker": ({"store_threshold": 2, "max_tracker_size": 0}, ValueError, "^max_tracker_size 0"),
    "events": ({"enable_events": 1}, TypeError, "^enable_events: expected a bool, got int"),
    "event keys": ({"max_event_keys": "many"}, TypeError, "^max_event_keys: expected an int"),
    "touch log": ({"touch_log_capacity": 0}, ValueError, "^touch_log_capacity must be above"),
    "timeout": ({"pending_timeout_us": -5}, ValueError, "^pending_timeout_us: -5 is out"),
    "seed": ({"hash_seed": 2**64}, ValueError, "^hash_seed: .*out of range"),
    "two ways to hash": ({"hash_seed": 1, "uniform_keys": True}, ValueError, "^hash_seed: "),
    "uniform": ({"uniform_keys": "yes"}, TypeError, "^uniform_keys: expected a bool"),
    "unknown": ({"polycy": "arc"}, TypeError, 'no argument "polycy"'),
    "unknown, None": ({"polycy": None}, TypeError, 'no argument "polycy"'),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_an_impossible_configuration_is_refused_by_name(refused: str) -> None:
    arguments, error, message = REFUSED[refused]
    with pytest.raises(error, match=message):
        OffloadingManager(**{"capacity": 8, **arguments})


def test_the_capacity_is_required() -> None:
    with pytest.raises(TypeError, match="capacity"):
        OffloadingManager()  # type: ignore[call-arg]


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        OffloadingManager(8, "lru", 36)  # type: ignore[misc]


def test_the_defaults_are_those_that_the_signature_states() -> None:
    manager = OffloadingManager(capacity=np.int64(8))
    assert (manager.capacity, manager.policy, manager.key_bytes) == (8, "lru", 36)
    assert manager.stats().as_dict()["capacity"] == 8
    assert manager.target_t1_size == 0.0
    assert OffloadingManager(8, policy=None, key_bytes=None).key_bytes == 36  # type: ignore[arg-type]


def test_a_manager_is_printed_for_a_person() -> None:
    manager = filled("arc", 4096, 1, 2, 3)
    manager.prepare_load(keys(1, 2))
    assert repr(manager) == "<OffloadingManager arc 3/4096 chunks, 2 pinned>"
    assert repr(manager.reader()) == "<Reader of 3/4096 chunks, 2 pinned>"
    assert repr(manager.stats()).startswith("<Stats capacity=4096 free=4093 ready=3 pinned=2 ")


def test_a_subclass_may_have_its_own_init_and_keeps_the_native_verbs() -> None:
    class Sized(OffloadingManager):
        def __init__(self, gigabytes: int) -> None:
            super().__init__(gigabytes * 4, "arc")
            self.gigabytes = gigabytes

    manager = Sized(2)
    assert manager.capacity == 8
    assert manager.gigabytes == 2
    assert Sized.lookup is OffloadingManager.lookup
    assert repr(manager) == "<Sized arc 0/8 chunks, 0 pinned>"


def test_a_subclass_that_forgets_to_call_init_is_told() -> None:
    class Empty(OffloadingManager):
        def __init__(self) -> None:
            pass

    manager = Empty()
    assert repr(manager) == "<Empty without an engine>"
    for use in (lambda: manager.lookup(b"x"), manager.stats, lambda: manager.capacity):
        with pytest.raises(kvferry.StateError, match="__init__ was not called"):
            use()


def test_init_works_once() -> None:
    manager = filled("lru", 8, 1)
    with pytest.raises(kvferry.StateError, match="called twice"):
        manager.__init__(16)  # type: ignore[misc]
    assert manager.capacity == 8
    assert manager.lookup(keys(1)[0]) is HIT


@POLICIES
def test_a_reset_hides_every_key_and_clears_the_ghosts(policy: str) -> None:
    manager = filled(policy, 2, 1, 2)
    manager.complete_store(manager.prepare_store(keys(3)))
    assert manager.reset_cache() == 0
    assert manager.lookup_each(keys(1, 2, 3)).tolist() == [MISS] * 3
    stats = manager.stats()
    assert (stats.free, stats.ghosts, stats.epoch) == (2, 0, 1)
    assert manager._debug_lists() == {"t1": [], "t2": [], "b1": [], "b2": []}


@POLICIES
def test_a_draining_reset_waits_for_the_tickets(policy: str) -> None:
    manager = filled(policy, 3, 1)
    load, store = manager.prepare_load(keys(1)), manager.prepare_store(keys(2))
    assert manager.reset_cache("drain") == 2
    assert manager.prepare_store(keys(5, 6)) is None
    assert manager.complete_store(store).applied == 1
    assert manager.complete_load(load).applied == 1
    assert manager.stats().draining == 0
    assert manager.prepare_store(keys(5, 6, 7)) is not None
    manager._check_invariants()


@POLICIES
def test_a_fenced_reset_returns_every_slot_at_once(policy: str) -> None:
    manager = filled(policy, 2, 1)
    manager.prepare_load(keys(1))
    manager.prepare_store(keys(2))
    assert manager.reset_cache("fenced") == 0
    assert manager.stats().free == 2


@pytest.mark.parametrize(
    ("mode", "error"), [("soft", ValueError), (3, TypeError), ("", ValueError)]
)
def test_another_way_to_reset_is_refused(mode: Any, error: type[Exception]) -> None:
    manager = filled("lru", 2, 1)
    with pytest.raises(error, match=r"^mode: "):
        manager.reset_cache(mode)
    assert manager.lookup(keys(1)[0]) is HIT


@POLICIES
def test_dropped_keys_leave_as_soon_as_nobody_holds_them(policy: str) -> None:
    manager = filled(policy, 8, 1, 2, 3, enable_events=True)
    load = manager.prepare_load(keys(1))
    manager.take_events()
    assert manager.drop_keys(keys(1, 2, 9, 2)) == 1
    assert manager.lookup_each(keys(1, 2, 3)).tolist() == [HIT, MISS, HIT]
    assert kinds(manager) == [("removed", keys(2))]
    manager.complete_load(load)
    assert manager.lookup(keys(1)[0]) is MISS
    assert kinds(manager) == [("removed", keys(1))]
    assert manager.stats().dropped == 2
    assert manager.stats().ghosts == 0


@POLICIES
def test_events_come_in_causal_order(policy: str) -> None:
    manager = filled(policy, 2, 1, 2, enable_events=True)
    manager.complete_store(manager.prepare_store(keys(3)))
    manager.reset_cache()
    assert kinds(manager) == [
        ("stored", keys(1, 2)),
        ("removed", keys(1)),
        ("stored", keys(3)),
        ("cleared", []),
    ]
    assert manager.take_events() == []


def test_an_event_is_a_value() -> None:
    manager = filled("lru", 2, 1, enable_events=True)
    (event,) = manager.take_events()
    assert event == OffloadingEvent(keys=keys(1), kind="stored", medium="CPU")
    assert not event.removed
    assert OffloadingEvent([], "cleared").removed
    with pytest.raises(AttributeError):
        event.kind = "removed"  # type: ignore[misc]


def test_without_events_there_are_none() -> None:
    assert filled("lru", 2, 1).take_events() == []


def test_events_that_do_not_fit_are_counted_and_told() -> None:
    manager = filled("lru", 8, 1, 2, enable_events=True, max_event_keys=3)
    for number in range(3, 7):
        manager.complete_store(manager.prepare_store(keys(number)))
    assert kinds(manager) == [("stored", keys(1, 2)), ("stored", keys(3)), ("lost", [])]
    assert manager.stats().events_lost == 3
    manager.complete_store(manager.prepare_store(keys(7)))
    assert kinds(manager) == [("stored", keys(7))]


@POLICIES
def test_the_numbers_add_up(policy: str) -> None:
    manager = filled(policy, 8, 1, 2, 3)
    manager.prepare_store(keys(4))
    manager.prepare_load(keys(1))
    stats = manager.stats()
    assert (stats.ready, stats.pending, stats.resident, stats.free) == (3, 1, 4, 4)
    assert (stats.pinned, stats.evictable, stats.draining) == (1, 2, 0)
    assert stats == manager.stats()
    assert stats == manager.reader().stats()
    manager.touch(keys(1))
    manager.prepare_store(keys(5))
    assert stats != manager.stats()


def test_the_numbers_by_name_are_the_attributes() -> None:
    stats = filled("arc", 8, 1).stats()
    by_name = stats.as_dict()
    attributes = {name for name in dir(stats) if not name.startswith("_")} - {"as_dict"}
    assert set(by_name) == attributes
    for name, number in by_name.items():
        assert getattr(stats, name) == number


def test_memory_is_what_the_design_allows() -> None:
    capacity = 50_000
    for policy, most in (("lru", 112), ("arc", 176)):
        manager = OffloadingManager(capacity, policy)
        touch_log = 16_384 * 16
        assert manager.memory_bytes() - touch_log <= most * capacity


def test_time_never_goes_back() -> None:
    manager = OffloadingManager(8, pending_timeout_us=1_000_000)
    manager.advance_to(10_000_000)
    manager.advance_to(0)
    manager.prepare_store(keys(1))
    assert manager.expire_pending(10_500_000) == 0
    assert manager.expire_pending(11_100_000) == 1


@pytest.mark.parametrize("verb", ["advance_to", "expire_pending"])
@pytest.mark.parametrize(
    ("now", "error"), [(-1, ValueError), (2**64, ValueError), (1.0, TypeError), ("0", TypeError)]
)
def test_an_impossible_time_is_refused(verb: str, now: Any, error: type[Exception]) -> None:
    manager = OffloadingManager(8)
    with pytest.raises(error, match=r"^now_us: "):
        getattr(manager, verb)(now)
    getattr(manager, verb)(2**64 - 1)


def test_ghosts_move_arcs_target() -> None:
    manager = filled("arc", 2, 1, 2)
    manager.complete_store(manager.prepare_store(keys(3)))
    assert manager._debug_lists()["b1"] == [manager._debug_fingerprint(keys(1)[0])]
    manager.touch(keys(1))
    assert manager.target_t1_size == 1.0
    assert manager.stats().target_t1_size == 1.0


def test_equal_seeds_give_equal_ghosts() -> None:
    first, second = (OffloadingManager(2, "arc", hash_seed=7) for _ in range(2))
    other = OffloadingManager(2, "arc", hash_seed=8)
    assert first._debug_fingerprint(b"k") == second._debug_fingerprint(b"k")
    assert first._debug_fingerprint(b"k") != other._debug_fingerprint(b"k")


def test_the_digest_follows_every_change_of_the_lists() -> None:
    manager = filled("arc", 3, 1, 2, 3)
    digests = [manager._debug_digest()]
    for change in (
        lambda: manager.touch(keys(1)),
        lambda: manager.touch(keys(2)),
        lambda: manager.prepare_store(keys(4)),
        manager.reset_cache,
    ):
        change()
        digests.append(manager._debug_digest())
    assert len(set(digests)) == len(digests)
    assert manager._debug_digest() == digests[-1]
