"""Random verbs with good and bad arguments: only documented exceptions, never a broken invariant.

A small model of its own keeps what holds whatever a policy decides: which keys may be resident,
which slots are held, and that nobody is given a slot that somebody else still uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import kvferry
from kvferry import LookupResult, OffloadingManager, Pin, PinRefused, StoreRejected

KEY_BYTES = 12
DOCUMENTED = (TypeError, ValueError, kvferry.KvferryError)

# Few keys, so that they meet; of several lengths, in two groups, one the prefix of another.
POOL = [b"%02d" % i + bytes([0, 0, 0, i % 2]) for i in range(12)] + [b"1", b"1\0", b"x" * KEY_BYTES]

one_key = st.sampled_from(POOL)
key_lists = st.lists(one_key, max_size=8)


def as_rows(keys: list[bytes]) -> Any:
    """Keys as an array, if all have one length."""
    if len({len(key) for key in keys}) != 1:
        return keys
    return np.array([list(key) for key in keys], np.uint8)


good_keys = st.one_of(
    key_lists,
    key_lists.map(tuple),
    key_lists.map(as_rows),
    key_lists.map(iter),
)

bad_keys: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), min_size=1, max_size=3),
    st.builds(
        lambda keys, bad: [*keys, bad], key_lists, st.sampled_from([b"", b"y" * 13, None, 5])
    ),
    st.sampled_from(
        [
            np.zeros((2, 13), np.uint8),
            np.zeros((2, 0), np.uint8),
            np.zeros(4, np.uint8),
            np.zeros((3, 6), np.uint8).T,
            np.zeros((6, 6), np.uint8, order="F"),
            np.zeros((6, 6), np.uint8)[:, ::2],
            np.zeros((2, 6), np.int8),
            np.zeros((2, 6)),
            np.array([b"ab"]),
            np.array([b"ab"], object),
        ]
    ),
)

any_value: st.SearchStrategy[Any] = st.one_of(
    bad_keys, st.floats(), st.booleans(), st.sampled_from(["drain", "fenced", object(), 2**70])
)

VERBS_OF_KEYS = ("lookup_prefix", "lookup_each", "touch", "drop_keys", "prepare_store")
VERBS_OF_KEYS += ("prepare_load", "complete_store", "complete_load")
VERBS_OF_ANYTHING = (*VERBS_OF_KEYS, "lookup", "cancel_store", "finish_request", "reset_cache")
VERBS_OF_ANYTHING += ("expire_pending", "advance_to", "begin_request")


class Verbs(RuleBasedStateMachine):
    """Stores, loads and pins that are under way, and which slots they hold."""

    stores = Bundle("stores")
    loads = Bundle("loads")
    pins = Bundle("pins")
    accesses = Bundle("accesses")

    def __init__(self) -> None:
        super().__init__()
        self.manager = OffloadingManager(1)
        self.epoch = 0
        # Slots of stores and loads of this epoch that have not been given back.
        self.writing: dict[int, set[int]] = {}
        self.reading: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.by_key = False

    @initialize(
        capacity=st.integers(1, 8),
        policy=st.sampled_from(["lru", "arc"]),
        threshold=st.sampled_from([0, 1, 2]),
        events=st.booleans(),
        timeout=st.sampled_from([None, 0, 5]),
        uniform=st.booleans(),
        warm=st.lists(one_key, max_size=8, unique=True),
    )
    def build(  # noqa: PLR0917 - hypothesis passes them by name
        self,
        capacity: int,
        policy: str,
        threshold: int,
        events: bool,
        timeout: int | None,
        uniform: bool,
        warm: list[bytes],
    ) -> None:
        self.manager = OffloadingManager(
            capacity,
            policy,
            key_bytes=KEY_BYTES,
            store_threshold=threshold,
            max_tracker_size=4,
            enable_events=events,
            max_event_keys=6,
            touch_log_capacity=3,
            pending_timeout_us=timeout,
            uniform_keys=uniform,
        )
        self.reader = self.manager.reader()
        for _ in range(2):
            self.store_at_once(warm[:capacity], None)
        self.other = OffloadingManager(2)
        self.other.complete_store(self.other.prepare_store([b"1"]))

    @rule(target=accesses, now=st.integers(0, 30), keys=key_lists, told=st.booleans())
    def begin(self, now: int, keys: list[bytes], told: bool) -> kvferry.RequestAccess:
        if told:
            return self.manager.begin_request(now, keys, range(len(keys)))
        return self.manager.begin_request(now)

    @rule(access=accesses, keys=key_lists)
    def tell(self, access: kvferry.RequestAccess, keys: list[bytes]) -> None:
        try:
            access.set_positions(keys, range(len(keys)))
        except kvferry.StateError:
            assert access.finished

    @rule(access=accesses, tokens=st.sampled_from([None, 0, 7]))
    def finish(self, access: kvferry.RequestAccess, tokens: int | None) -> None:
        self.manager.finish_request(access, tokens)
        assert access.finished

    @rule(target=stores, keys=good_keys, access=st.one_of(st.none(), accesses))
    def store(self, keys: Any, access: kvferry.RequestAccess | None) -> Any:
        keys = keys if isinstance(keys, np.ndarray) else list(keys)
        named = [bytes(key) for key in keys]
        try:
            output = self.manager.prepare_store(keys, access)
        except kvferry.StateError:
            assert access is not None
            assert access.finished
            return multiple()
        if output is None:
            assert self.manager.last_rejection in StoreRejected
            return multiple()
        assert self.manager.last_rejection is None
        stored, slots = output.keys_to_store, output.block_ids.tolist()
        assert stored == [named[i] for i in output.indices]
        assert len(set(stored)) == len(stored)
        assert not set(output.evicted_keys) & set(named)
        assert all(self.manager.lookup(key) is LookupResult.HIT_PENDING for key in stored)
        assert len(set(slots)) == len(slots)
        if not self.by_key:
            busy = set().union(*self.writing.values(), *self.reading.values())
            assert not busy & set(slots)
        self.writing[id(output)] = set(slots)
        return output

    @rule(keys=st.lists(one_key, min_size=1, max_size=8), access=st.one_of(st.none(), accesses))
    def store_at_once(self, keys: list[bytes], access: kvferry.RequestAccess | None) -> None:
        if access is not None and access.finished:
            return
        output = self.manager.prepare_store(keys, access)
        if output is not None:
            assert self.manager.complete_store(output).applied == len(output.ticket)
            assert self.manager.lookup_each(output.keys_to_store).tolist() == [1] * len(
                output.ticket
            )

    @rule(output=stores, success=st.booleans(), form=st.sampled_from(["output", "ticket"]))
    def complete_store(self, output: kvferry.PrepareStoreOutput, success: bool, form: str) -> None:
        given: Any = output if form == "output" else output.ticket
        done = self.manager.complete_store(given, success)
        assert done.applied + done.late == len(output.ticket)
        if id(output) in self.ended:
            assert done.applied == 0
        self.ended.add(id(output))
        self.writing.pop(id(output), None)

    @rule(output=stores)
    def cancel(self, output: kvferry.PrepareStoreOutput) -> None:
        done = self.manager.cancel_store(output)
        assert done.applied + done.late == len(output.ticket)

    @rule(keys=key_lists, success=st.booleans())
    def complete_store_by_key(self, keys: list[bytes], success: bool) -> None:
        # Whoever ends the stores of others has no right to expect that their slots stay theirs.
        self.by_key = True
        self.manager.complete_store(keys, success)

    @rule(target=loads, keys=good_keys, access=st.one_of(st.none(), accesses))
    def load(self, keys: Any, access: kvferry.RequestAccess | None) -> Any:
        keys = keys if isinstance(keys, np.ndarray) else list(keys)
        named = [bytes(key) for key in keys]
        ready, _ = self.manager.lookup_prefix(named)
        try:
            output = self.manager.prepare_load(keys, access)
        except kvferry.StateError as error:
            refused = ready < len(named) or (access is not None and access.finished)
            assert refused, error  # noqa: PT017 - only a part of the errors are right
            return multiple()
        assert ready == len(named)
        slots = output.block_ids.tolist()
        assert [self.manager._debug_key(slot) for slot in slots] == named
        self.reading[id(output)] = slots
        return output

    @rule(output=loads, form=st.sampled_from(["output", "ticket"]))
    def complete_load(self, output: kvferry.PrepareLoadOutput, form: str) -> None:
        given: Any = output if form == "output" else output.ticket
        done = self.manager.complete_load(given)
        assert done.applied + done.late == len(output.ticket)
        if id(output) in self.ended:
            assert done.applied == 0
        self.ended.add(id(output))
        self.reading.pop(id(output), None)

    @rule(
        target=loads,
        picks=st.lists(st.integers(0, len(POOL)), min_size=1, max_size=6),
        access=st.one_of(st.none(), accesses),
    )
    def load_ready(self, picks: list[int], access: kvferry.RequestAccess | None) -> Any:
        ready = self.ready()
        return self.load([ready[i % len(ready)] for i in picks] if ready else [], access)

    def ready(self) -> list[bytes]:
        return [key for key in POOL if self.manager.lookup(key) is LookupResult.HIT]

    @rule(keys=key_lists)
    def complete_load_by_key(self, keys: list[bytes]) -> None:
        try:
            self.manager.complete_load(keys)
        except (kvferry.NotPinnedError, kvferry.NotResidentError):
            return
        # As above.
        self.by_key = self.by_key or bool(keys)

    @rule(target=pins, key=one_key)
    def pin(self, key: bytes) -> Any:
        pin = self.reader.try_pin(key)
        if isinstance(pin, PinRefused):
            found = self.manager.lookup(key)
            assert (pin is PinRefused.MISS) == (found is LookupResult.MISS)
            assert (pin is PinRefused.PENDING) == (found is LookupResult.HIT_PENDING)
            return multiple()
        assert self.manager._debug_key(pin.slot) == key
        return (pin, key, self.manager.stats().epoch)

    @rule(target=pins, pick=st.integers(0, len(POOL)))
    def pin_ready(self, pick: int) -> Any:
        ready = self.ready()
        return self.pin(ready[pick % len(ready)]) if ready else multiple()

    @rule(held=consumes(pins), by_reader=st.booleans())
    def unpin(self, held: tuple[Pin, bytes, int], by_reader: bool) -> None:
        pin, key, epoch = held
        if epoch == self.manager.stats().epoch:
            assert self.manager._debug_key(pin.slot) == key
        valid = self.reader.unpin(pin) if by_reader else pin.unpin()
        assert valid or epoch < self.manager.stats().epoch
        try:
            pin.unpin()
        except kvferry.StateError:
            return
        raise AssertionError("a pin was given back twice")

    @rule(keys=good_keys, verb=st.sampled_from(["touch", "reader.touch", "drop_keys"]))
    def touch_or_drop(self, keys: Any, verb: str) -> None:
        verbs = {
            "touch": self.manager.touch,
            "reader.touch": self.reader.touch,
            "drop_keys": self.manager.drop_keys,
        }
        verbs[verb](keys)

    @rule(now=st.integers(0, 40))
    def expire(self, now: int) -> None:
        self.manager.expire_pending(now)

    # Most histories are to have one epoch or two.
    @precondition(lambda self: self.manager.stats().epoch < 2)
    @rule(mode=st.sampled_from(["drain", "fenced"]))
    def reset(self, mode: Any) -> None:
        draining = self.manager.reset_cache(mode)
        assert self.manager.lookup_prefix(POOL) == (0, 0)
        assert not any(self.manager.lookup_each(POOL))
        assert draining == self.manager.stats().draining
        if mode == "fenced":
            assert draining == 0
            self.writing.clear()
            self.reading.clear()

    @rule()
    def take_events(self) -> None:
        for event in self.manager.take_events():
            assert bool(event.keys) == (event.kind in ("stored", "removed"))

    @rule(verb=st.sampled_from(VERBS_OF_KEYS), keys=bad_keys)
    def refuse_keys(self, verb: str, keys: Any) -> None:
        before = self.manager._debug_digest(), self.manager.stats()
        try:
            getattr(self.manager, verb)(keys)
        except (TypeError, ValueError) as error:
            assert str(error).startswith("keys")  # noqa: PT017 - beside what must not change
            assert (self.manager._debug_digest(), self.manager.stats()) == before
            return
        raise AssertionError(f"{verb} took {keys!r}")

    @rule(verb=st.sampled_from(VERBS_OF_ANYTHING), values=st.lists(any_value, max_size=3))
    def call_with_anything(self, verb: str, values: list[Any]) -> None:
        try:
            getattr(self.manager, verb)(*values)
        except DOCUMENTED:
            return
        if verb == "reset_cache":
            self.writing.clear()
            self.reading.clear()
        if verb in ("complete_store", "complete_load"):
            self.by_key = True

    @rule(store=stores, load=loads)
    def give_to_another_manager(
        self, store: kvferry.PrepareStoreOutput, load: kvferry.PrepareLoadOutput
    ) -> None:
        for use in (
            lambda: self.other.complete_store(store),
            lambda: self.other.cancel_store(store.ticket),
            lambda: self.other.complete_load(load),
        ):
            try:
                use()
            except ValueError:
                continue
            raise AssertionError("another manager's ticket was taken")

    @invariant()
    def every_invariant_of_the_engine_holds(self) -> None:
        self.manager._check_invariants()

    @invariant()
    def the_numbers_add_up(self) -> None:
        stats = self.manager.stats()
        assert stats.free + stats.resident + stats.draining == stats.capacity
        assert stats.pinned <= stats.ready
        assert stats.epoch >= self.epoch
        self.epoch = stats.epoch
        results = self.manager.lookup_each(POOL).tolist()
        assert results == [self.reader.lookup(key) for key in POOL]
        assert sum(result != 0 for result in results) <= stats.resident

    @invariant()
    def what_is_being_read_stays_where_it_is(self) -> None:
        stats = self.manager.stats()
        if not self.by_key and stats.epoch == 0:
            held = {slot for slots in self.reading.values() for slot in slots}
            assert stats.pinned >= len(held)


TestVerbs = Verbs.TestCase
TestVerbs.settings = settings(stateful_step_count=40)
