"""Threads: one owner, any number of readers, and the interpreter's lock."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import kvferry
from kvferry import ConcurrentUseError, OffloadingManager, Pin

# A call of so many keys releases the interpreter's lock, and lasts some tenths of a second.
MANY = 1_000_000


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 36), dtype=np.uint8)


@contextmanager
def during(call: Callable[[], object]) -> Iterator[threading.Event]:
    """Runs a call in another thread; the event is set once it has returned."""
    begin, ended = threading.Barrier(2), threading.Event()

    def run() -> object:
        begin.wait()
        try:
            return call()
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        begin.wait()
        yield ended
        future.result()


@pytest.fixture(scope="module")
def big() -> OffloadingManager:
    """A manager whose calls of `MANY` keys are long."""
    manager = OffloadingManager(2 * MANY)
    manager.complete_store(manager.prepare_store(rows(MANY)))
    return manager


def refused_while(manager: OffloadingManager, long_call: Callable[[], object]) -> int:
    """How often the owner's verbs refused this thread while another one was in `long_call`."""
    verbs: list[Callable[[], object]] = [
        lambda: manager.touch([b"x"]),
        lambda: manager.prepare_store([b"x"]),
        lambda: manager.complete_store([b"x"]),
        lambda: manager.prepare_load([]),
        lambda: manager.complete_load([]),
        lambda: manager.drop_keys([b"x"]),
        lambda: manager.advance_to(0),
        lambda: manager.expire_pending(0),
        manager.begin_request,
        manager.take_events,
        manager.memory_bytes,
    ]
    refused = Counter[int]()
    with during(long_call) as ended:
        while not ended.is_set():
            for i, verb in enumerate(verbs):
                try:
                    verb()
                except ConcurrentUseError:
                    refused[i] += 1
    return min(refused[i] for i in range(len(verbs)))


def test_a_second_thread_is_refused_by_every_verb_of_the_owner(big: OffloadingManager) -> None:
    keys = rows(MANY)
    # The other thread may be too late for a call: then it tries during the next.
    tries = (refused_while(big, lambda: big.touch(keys)) for _ in range(50))
    assert any(tries)
    big._check_invariants()


def wait_until_busy(manager: OffloadingManager, ended: threading.Event) -> bool:
    """Returns once another thread is inside the manager; False if it had ended before."""
    while not ended.is_set():
        try:
            manager.advance_to(0)
        except ConcurrentUseError:
            return True
    return False


def test_what_a_refused_call_was_given_can_be_given_again(big: OffloadingManager) -> None:
    keys, refused = rows(MANY), Counter[str]()
    for attempt in range(50):
        access = big.begin_request()
        store = big.prepare_store([b"%d" % attempt], access)
        assert store is not None
        refused.clear()
        with during(lambda: big.touch(keys)) as ended:
            if wait_until_busy(big, ended):
                for name, give in (
                    ("store", lambda store=store: big.complete_store(store)),
                    ("access", lambda access=access: big.finish_request(access)),
                ):
                    try:
                        give()
                    except ConcurrentUseError:
                        refused[name] += 1
        if refused.total() == 2:
            break
    assert refused.total() == 2
    assert big.complete_store(store).applied == 1
    assert not access.finished
    big.finish_request(access)
    assert access.finished


def test_numbers_and_lookups_work_while_the_owner_is_busy(big: OffloadingManager) -> None:
    keys = rows(MANY)
    resident = [keys[i].tobytes() for i in range(100)]
    answered = 0
    for _ in range(50):
        with during(lambda: big.touch(keys)) as ended:
            while not ended.is_set():
                assert big.stats().capacity == 2 * MANY
                assert "chunks" in repr(big)
                assert (big.capacity, big.policy, big.key_bytes) == (2 * MANY, "lru", 36)
                assert big.target_t1_size == 0.0
                assert big.last_rejection is None
                assert big.lookup(resident[0]) is kvferry.LookupResult.HIT
                assert big.lookup_prefix(resident) == (100, 100)
                assert big.reader().lookup_each(resident).all()
                answered += 1
        if answered:
            break
    assert answered


def ran_during(call: Callable[[], object]) -> bool:
    """Whether this thread ran before `call`, in another thread, had ended."""
    began, ended = threading.Event(), threading.Event()

    def run() -> None:
        began.set()
        call()
        ended.set()

    interval = sys.getswitchinterval()
    # Nobody is made to give the interpreter's lock away: only who does so lets another thread in.
    sys.setswitchinterval(1_000)
    try:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(run)
            began.wait()
            ran = not ended.is_set()
            future.result()
    finally:
        sys.setswitchinterval(interval)
    return ran


LONG_CALLS: dict[str, Callable[[OffloadingManager, np.ndarray], object]] = {
    "lookup_prefix": lambda manager, keys: manager.lookup_prefix(keys),
    "lookup_each": lambda manager, keys: manager.lookup_each(keys),
    "touch": lambda manager, keys: manager.touch(keys),
    "drop_keys": lambda manager, keys: manager.drop_keys(keys),
    "reset_cache": lambda manager, _: manager.reset_cache(),
    "reader.lookup_prefix": lambda manager, keys: manager.reader().lookup_prefix(keys),
    "reader.touch": lambda manager, keys: manager.reader().touch(keys),
}


@pytest.mark.parametrize("call", LONG_CALLS)
def test_a_long_call_lets_other_python_threads_run(call: str) -> None:
    manager, keys = OffloadingManager(MANY), rows(MANY, seed=5)
    # The scheduler of the system may be late once, not every time.
    assert any(ran_during(lambda: LONG_CALLS[call](manager, keys)) for _ in range(50))


def test_the_whole_of_a_long_request_lets_other_python_threads_run() -> None:
    manager, keys = OffloadingManager(MANY), rows(MANY, seed=6)

    def served() -> dict[str, bool]:
        manager.reset_cache()
        access, made = manager.begin_request(), []
        return {
            "prepare_store": ran_during(lambda: made.append(manager.prepare_store(keys, access))),
            "complete_store": ran_during(lambda: manager.complete_store(made[0])),
            "prepare_load": ran_during(lambda: made.append(manager.prepare_load(keys, access))),
            "complete_load": ran_during(lambda: manager.complete_load(made[1])),
            "finish_request": ran_during(lambda: manager.finish_request(access)),
        }

    ran = Counter[str]()
    for _ in range(20):
        ran.update(verb for verb, ran_so in served().items() if ran_so)
        if len(ran) == 5:
            break
    assert len(ran) == 5, ran


def test_a_call_that_keeps_the_lock_lets_no_other_python_thread_run() -> None:
    assert not any(ran_during(lambda: sum(range(1_000_000))) for _ in range(5))


def test_four_readers_hold_what_they_pinned_while_the_owner_replaces_it() -> None:
    capacity, readers, pins_each = 64, 4, 300
    manager = OffloadingManager(capacity, "arc")
    groups = [[b"%04d %04d" % (group, i) for i in range(16)] for group in range(12)]
    everything = [key for group in groups for key in group]
    begin, stop = threading.Barrier(readers + 1), threading.Event()
    pinned, missed = [0] * readers, [0] * readers

    def read(me: int) -> None:
        reader, rng = manager.reader(), np.random.default_rng(me)
        begin.wait()
        while not stop.is_set():
            key = everything[rng.integers(len(everything))]
            pin = reader.try_pin(key)
            if not isinstance(pin, Pin):
                missed[me] += 1
                continue
            with pin:
                for _ in range(3):
                    # The slot still belongs to the key: who asks for the key again is given the
                    # same life of the same slot.
                    again = reader.try_pin(key)
                    assert isinstance(again, Pin), again
                    assert (again.slot, again.generation) == (pin.slot, pin.generation)
                    assert reader.unpin(again)
            reader.touch([key])
            pinned[me] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(readers) as pool:
            futures = [pool.submit(read, me) for me in range(readers)]
            begin.wait()
            turn = 0
            while min(pinned) < pins_each and not any(future.done() for future in futures):
                output = manager.prepare_store(groups[turn % len(groups)])
                if output is not None:
                    manager.complete_store(output)
                manager.touch(groups[turn * 5 % len(groups)])
                turn += 1
            stop.set()
            for future in futures:
                future.result()
    finally:
        stop.set()
        sys.setswitchinterval(interval)
    assert manager.stats().evicted > capacity
    assert sum(missed) > 0
    # Every pin is back: the tier can be replaced as a whole.
    output = manager.prepare_store([b"%d" % i for i in range(capacity)])
    assert output is not None
    manager.complete_store(output)
    assert manager.stats().ready == capacity
    manager._check_invariants()


def test_readers_run_beside_an_owner_that_has_given_the_lock_away() -> None:
    manager = OffloadingManager(MANY)
    keys = rows(MANY, seed=1)
    manager.complete_store(manager.prepare_store(keys))
    hot = [keys[i].tobytes() for i in range(0, MANY, MANY // 64)]
    begin, stop = threading.Barrier(5), threading.Event()

    def read() -> int:
        reader, pinned = manager.reader(), 0
        begin.wait()
        while not stop.is_set():
            for key in hot:
                pin = reader.try_pin(key)
                if isinstance(pin, Pin):
                    assert manager.lookup(key) is kvferry.LookupResult.HIT
                    with pin:
                        pinned += 1
        return pinned

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(read) for _ in range(4)]
        try:
            begin.wait()
            for seed in range(2, 5):
                output = manager.prepare_store(rows(MANY // 2, seed=seed))
                if output is not None:
                    manager.complete_store(output)
        finally:
            stop.set()
        assert sum(future.result() for future in futures) > 0
    manager.touch([])
    manager._check_invariants()


def test_a_pin_is_released_once_however_many_threads_give_it_back() -> None:
    manager = OffloadingManager(2)
    manager.complete_store(manager.prepare_store([b"a", b"b"]))
    reader = manager.reader()
    for _ in range(200):
        pin = reader.try_pin(b"a")
        assert isinstance(pin, Pin)
        begin = threading.Barrier(3)

        def give_back(pin: Pin = pin, begin: threading.Barrier = begin) -> bool:
            begin.wait()
            try:
                return pin.unpin()
            except (kvferry.StateError, ConcurrentUseError):
                return False

        with ThreadPoolExecutor(3) as pool:
            released = [f.result() for f in [pool.submit(give_back) for _ in range(3)]]
        assert sum(released) == 1
    assert manager.prepare_store([b"c", b"d"]) is not None
