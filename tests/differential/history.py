"""A seeded stream of operations, each chosen by looking at what is resident.

The stream holds the preconditions that vLLM asserts: only ready keys are loaded, only pinned ones
are released, a request that finished asks for nothing more, no completion of a transfer from
before a reset. A key comes twice in a store only if it is resident: vLLM gives a missing key two
slots and loses one of them. A rough history (see `Workload`) keeps none of these.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from differential.workload import Workload

Operation = tuple[Any, ...]
PENDING = -1
TOKENS_PER_CHUNK = 16
REMEMBERED_COMPLETIONS = 8
# Entries in the table of choices for a weight of 1; the least weight is one entry.
TABLE_SHARE = 20


@dataclass(slots=True)
class Request:
    """One request in flight: its chunks head first, each with its keys, and how far it stored."""

    number: int
    chunks: list[tuple[bytes, ...]]
    cursor: int = 0

    def all_keys(self) -> list[bytes]:
        return [key for chunk in self.chunks for key in chunk]


@dataclass(slots=True)
class Transfer:
    """A store or a load that has not ended, by the driver's job number."""

    job: int
    keys: tuple[bytes, ...]


@dataclass(slots=True)
class Shadow:
    """What has to be resident: `PENDING`, or how many loads hold the key."""

    state: dict[bytes, int] = field(default_factory=dict)
    # Held keys that leave once nobody holds them.
    dropped: set[bytes] = field(default_factory=set)
    pinned: int = 0

    def ready(self, key: bytes) -> bool:
        return self.state.get(key, PENDING) >= 0

    def pin(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.pinned += self.state[key] == 0
            self.state[key] += 1

    def unpin(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.state[key] -= 1
            if self.state[key] == 0:
                self.pinned -= 1
                self.leave_if_dropped(key)

    def stored(self, keys: Sequence[bytes], *, success: bool) -> None:
        for key in keys:
            if self.state.get(key) != PENDING:
                continue
            if success and key not in self.dropped:
                self.state[key] = 0
            else:
                self.remove(key)

    def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            if key in self.state:
                self.dropped.add(key)
                self.leave_if_dropped(key)

    def leave_if_dropped(self, key: bytes) -> None:
        if key in self.dropped and self.state[key] == 0:
            self.remove(key)

    def remove(self, key: bytes) -> None:
        del self.state[key]
        self.dropped.discard(key)

    def clear(self) -> None:
        self.state.clear()
        self.dropped.clear()
        self.pinned = 0


class History:
    """Yields operations by `next_operation` and learns their outcome by `observe`."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.rng = random.Random(workload.seed)
        self.shadow = Shadow()
        self.chunk_keys: list[tuple[bytes, ...]] = []
        self.documents = self._write_documents()
        self.requests: list[Request] = []
        self.stores: list[Transfer] = []
        self.loads: list[Transfer] = []
        self.ended: deque[Transfer] = deque(maxlen=REMEMBERED_COMPLETIONS)
        self.stale: list[tuple[str, Transfer]] = []
        self._storing: tuple[Request, int] | None = None
        self._next_request = 0
        self._next_job = 0
        choices = [
            (self._begin, 6.0),
            (self._store, 24.0),
            (self._load, 12.0),
            (self._complete_store, 18.0),
            (self._complete_load, 10.0),
            (self._finish, 6.0),
            (self._forget, 0.3),
            (self._lookup, 4.0),
            (self._touch, workload.touches),
            (self._complete_again, 1.0),
            (self._complete_some, 1.0),
            (self._extend, 1.0),
            (self._take_events, 2.0),
            (self._reset, workload.resets),
            (self._late, 3.0 if workload.by_ticket else 0.0),
            (self._cancel, 0.7 if workload.rough else 0.0),
            (self._drop, 1.0 if workload.rough else 0.0),
            (self._refused_load, 1.0 if workload.rough else 0.0),
            (self._refused_unpin, 0.5 if workload.rough else 0.0),
        ]
        # A table instead of `Random.choices`, which costs more than most makers.
        self._makers = [
            maker for maker, weight in choices for _ in range(round(weight * TABLE_SHARE))
        ]

    # What the caller sees.

    def next_operation(self) -> Operation:
        """Return the next operation, which is always possible in the present state."""
        if self.shadow.pinned > self.workload.pinned_share * self.workload.capacity:
            operation = self._complete_load()
            if operation is not None:
                return operation
        while True:
            operation = self._makers[int(self.rng.random() * len(self._makers))]()
            if operation is not None:
                return operation

    def observe(self, operation: Operation, result: Any) -> None:
        """Learn what the operation did; both managers are known to agree on it."""
        verb = operation[0]
        if verb == "prepare_store":
            self._observe_store(operation, result)
        elif verb == "prepare_load" and result != "refused":
            _, _, job, keys = operation
            self.shadow.pin(keys)
            self.loads.append(Transfer(job, keys))

    def sample(self) -> list[bytes]:
        """Return a few keys whose state is worth comparing now."""
        chunks, random = self.chunk_keys, self.rng.random
        return [
            chunks[int(random() * len(chunks))][0],
            chunks[int(random() * len(chunks))][-1],
        ]

    def expected(self, keys: Sequence[bytes]) -> list[int]:
        """Return what a lookup of `keys` has to answer: 0 missing, 1 ready, 2 pending."""
        state = self.shadow.state
        return [0 if key not in state else 2 if state[key] == PENDING else 1 for key in keys]

    # Keys.

    def _write_documents(self) -> list[list[int]]:
        rng, workload = self.rng, self.workload
        documents: list[list[int]] = []
        while len(self.chunk_keys) < workload.universe:
            shared: list[int] = []
            if documents and rng.random() < 0.7:
                other = rng.choice(documents)
                shared = other[: rng.randint(0, len(other))]
            tail = rng.randint(1, workload.longest_tail)
            documents.append(shared + [self._new_chunk() for _ in range(tail)])
        return documents

    def _new_chunk(self) -> int:
        number = len(self.chunk_keys)
        length = self.workload.hash_bytes[number % len(self.workload.hash_bytes)]
        digest = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=32).digest()
        # A hash of one byte would collide; its number is its identity instead.
        name = digest[:length] if length >= 8 else number.to_bytes(3, "big")
        self.chunk_keys.append(
            tuple(name + group.to_bytes(4, "big") for group in self.workload.groups)
        )
        return number

    def _chunks_of(self, numbers: Sequence[int]) -> list[tuple[bytes, ...]]:
        """Return the keys of a prefix; groups with a window have only the tail of it."""
        whole = [self.chunk_keys[number] for number in numbers]
        window = self.workload.window
        if not window:
            return whole
        head = max(0, len(whole) - window)
        return [keys[:1] for keys in whole[:head]] + whole[head:]

    def _positions_of(
        self, chunks: Sequence[tuple[bytes, ...]], first: int
    ) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
        mode, rng = self.workload.positions, self.rng
        keys, positions = [], []
        for index, chunk in enumerate(chunks, first + 1):
            for group, key in enumerate(chunk):
                if (
                    mode == "all"
                    or (mode == "some" and rng.random() < 0.9)
                    or (mode == "group" and group > 0)
                ):
                    keys.append(key)
                    positions.append(index * TOKENS_PER_CHUNK)
        return tuple(keys), tuple(positions)

    # Requests.

    def _begin(self) -> Operation | None:
        rng = self.rng
        if len(self.requests) >= self.workload.most_requests:
            return None
        document = self.documents[int(rng.random() ** self.workload.skew * len(self.documents))]
        if rng.random() < 0.4:
            document = document[: rng.randint(1, len(document))]
        if rng.random() < 0.2:
            document = document + [self._new_chunk() for _ in range(rng.randint(1, 3))]
        request = Request(self._next_request, self._chunks_of(document))
        self._next_request += 1
        self.requests.append(request)
        return ("begin", request.number, *self._positions_of(request.chunks, 0))

    def _extend(self) -> Operation | None:
        request = self._any_request()
        if request is None:
            return None
        grown = [self.chunk_keys[self._new_chunk()]]
        positions = self._positions_of(grown, len(request.chunks))
        request.chunks.extend(grown)
        return ("extend", request.number, *positions)

    def _finish(self) -> Operation | None:
        request = self._any_request()
        if request is None:
            return None
        # A request that is finished before its end was aborted: its transfers end later.
        if request.cursor < len(request.chunks) and self.rng.random() < 0.7:
            return None
        self.requests.remove(request)
        return ("finish", request.number)

    def _forget(self) -> Operation | None:
        request = self._any_request()
        if request is None:
            return None
        self.requests.remove(request)
        return ("forget", request.number)

    def _any_request(self) -> Request | None:
        if not self.requests:
            return None
        return self.requests[int(self.rng.random() * len(self.requests))]

    def _caller(self, request: Request) -> int | None:
        """Return the request's number, or sometimes nobody's."""
        return None if self.workload.rough and self.rng.random() < 0.1 else request.number

    # Stores.

    def _store(self) -> Operation | None:
        request, rng = self._any_request(), self.rng
        if request is None:
            return None
        start = request.cursor
        if start >= len(request.chunks) or rng.random() < 0.1:
            if rng.random() < 0.5:
                return None
            start = int(rng.random() * len(request.chunks))
        end = start + 1 + int(rng.random() * self.workload.most_in_call)
        keys = [key for chunk in request.chunks[start:end] for key in chunk]
        if len(keys) > self.workload.capacity and rng.random() < 0.7:
            # In full it could only be declined.
            keys = keys[: rng.randint(1, self.workload.capacity)]
        if rng.random() < 0.05:
            rng.shuffle(keys)
        self._repeat_some(keys)
        job = self._new_job()
        self._storing = (request, end)
        return ("prepare_store", self._caller(request), job, tuple(keys))

    def _repeat_some(self, keys: list[bytes]) -> None:
        rough, rng = self.workload.rough, self.rng
        if rng.random() < self.workload.duplicates:
            keys.extend(
                key
                for key in keys[: rng.randint(1, len(keys))]
                if rough or key in self.shadow.state
            )

    def _observe_store(self, operation: Operation, result: Any) -> None:
        assert self._storing is not None
        request, end = self._storing
        self.shadow.dropped.difference_update(operation[3])
        if result is None:
            # Half of the callers try again, the others go on without.
            if self.rng.random() < 0.5:
                request.cursor = max(request.cursor, end)
            return
        request.cursor = max(request.cursor, end)
        keys_to_store, evicted = result
        for key in evicted:
            del self.shadow.state[key]
        for key in keys_to_store:
            self.shadow.state[key] = PENDING
        if keys_to_store:
            self.stores.append(Transfer(operation[2], keys_to_store))

    def _complete_store(self) -> Operation | None:
        if not self.stores:
            return None
        transfer = self._take(self.stores)
        success = self.rng.random() >= self.workload.failures
        self.shadow.stored(transfer.keys, success=success)
        self.ended.append(transfer)
        return ("complete_store", transfer.job, transfer.keys, success)

    def _complete_some(self) -> Operation | None:
        """End a part of a store, by keys; the rest of it ends with its job."""
        if not self.stores or self.workload.by_ticket:
            return None
        transfer, rng = self.rng.choice(self.stores), self.rng
        keys = tuple(key for key in transfer.keys if rng.random() < 0.5)
        if not keys:
            return None
        success = rng.random() >= self.workload.failures
        self.shadow.stored(keys, success=success)
        # A failed key may be stored again by another job before this one ends.
        transfer.keys = tuple(key for key in transfer.keys if key not in keys)
        return ("complete_store_keys", keys, success)

    def _cancel(self) -> Operation | None:
        if not self.stores:
            return None
        transfer = self._take(self.stores)
        self.stale.append(("late_store", transfer))
        for key in transfer.keys:
            self.shadow.remove(key)
        return ("cancel", transfer.job, transfer.keys)

    # Loads.

    def _load(self) -> Operation | None:
        request, rng = self._any_request(), self.rng
        if request is None:
            return None
        style, ready = rng.random(), self.shadow.ready
        if style < 0.6:
            keys = []
            for key in request.all_keys():
                if not ready(key):
                    break
                keys.append(key)
            keys = keys[: rng.randint(1, 16)]
        elif style < 0.9:
            keys = [key for key in request.all_keys() if ready(key) and rng.random() < 0.5]
        else:
            keys = [key for key in self.sample() if ready(key)]
            keys = list(dict.fromkeys(keys))
        if not keys:
            return None
        if rng.random() < self.workload.duplicates:
            keys = keys + keys[: rng.randint(1, len(keys))]
        return ("prepare_load", self._caller(request), self._new_job(), tuple(keys))

    def _complete_load(self) -> Operation | None:
        if not self.loads:
            return None
        transfer = self._take(self.loads)
        self.shadow.unpin(transfer.keys)
        if self.workload.by_ticket and self.rng.random() < 0.05:
            self.stale.append(("late_load", transfer))
        return ("complete_load", transfer.job, transfer.keys)

    def _refused_load(self) -> Operation | None:
        request = self._any_request()
        if request is None:
            return None
        keys = request.all_keys()
        if all(map(self.shadow.ready, keys)):
            return None
        return ("prepare_load", request.number, self._new_job(), tuple(keys))

    def _refused_unpin(self) -> Operation | None:
        request = self._any_request()
        if request is None:
            return None
        keys = tuple(request.all_keys())
        pins = Counter(keys)
        if all(self.shadow.state.get(key, 0) >= times for key, times in pins.items()):
            return None
        return ("complete_load_keys", keys)

    # Everything else.

    def _lookup(self) -> Operation:
        return ("lookup", self._some_run())

    def _drop(self) -> Operation:
        keys = self._some_run()
        self.shadow.drop(keys)
        return ("drop", keys)

    def _touch(self) -> Operation:
        keys = self._some_run()
        if self.rng.random() < self.workload.duplicates:
            keys = keys + keys[:2]
        return ("touch", keys)

    def _some_run(self) -> tuple[bytes, ...]:
        rng = self.rng
        document = rng.choice(self.documents)
        start = int(rng.random() * len(document))
        numbers = document[start : start + rng.randint(1, 8)]
        return tuple(key for number in numbers for key in self.chunk_keys[number])

    def _take_events(self) -> Operation | None:
        return None if self.workload.eager_events else ("take_events",)

    def _complete_again(self) -> Operation | None:
        """Complete a store a second time."""
        if not self.ended:
            return None
        transfer = self.rng.choice(self.ended)
        if not self.workload.rough and any(
            self.shadow.state.get(key) == PENDING for key in transfer.keys
        ):
            # By key it would end somebody else's store: the caller's duty, in vLLM as in kvferry.
            return None
        return ("complete_store", transfer.job, transfer.keys, self.rng.random() < 0.5)

    def _late(self) -> Operation | None:
        """End a transfer that is no more: cancelled, from before a reset, or ended already."""
        if not self.stale:
            return None
        verb, transfer = self.stale.pop(int(self.rng.random() * len(self.stale)))
        return (verb, transfer.job)

    def _reset(self) -> Operation:
        self.shadow.clear()
        self.ended.clear()
        if self.workload.by_ticket:
            self.stale += [("late_store", transfer) for transfer in self.stores]
            self.stale += [("late_load", transfer) for transfer in self.loads]
        self.stores.clear()
        self.loads.clear()
        drain = self.workload.rough and self.rng.random() < 0.7
        return ("reset", "drain" if drain else "fenced")

    def _new_job(self) -> int:
        self._next_job += 1
        return self._next_job

    def _take(self, transfers: list[Transfer]) -> Transfer:
        if self.workload.newest_first:
            return transfers.pop()
        index = int(self.rng.random() * len(transfers))
        transfers[index], transfers[-1] = transfers[-1], transfers[index]
        return transfers.pop()
