"""The verbs, on top of a policy. Slots, pins, tickets, admission, events and resets live here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from reference.access import Access
from reference.arc import ArcPolicy
from reference.lru import LruPolicy
from reference.offers import OfferTracker
from reference.policy import Chunk, Policy
from reference.values import (
    HIT,
    HIT_PENDING,
    MISS,
    Event,
    LoadOutput,
    NotPinnedError,
    NotReadyError,
    StoreOutput,
    Ticket,
)


class ReferenceManager:
    """Host-tier bookkeeping, every verb as plainly as it can be written."""

    def __init__(
        self,
        capacity: int,
        policy: str = "lru",
        *,
        group_bytes: int = 4,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        enable_events: bool = False,
    ) -> None:
        policies: dict[str, type[LruPolicy | ArcPolicy]] = {"lru": LruPolicy, "arc": ArcPolicy}
        self.policy: Policy = policies[policy](capacity)
        self.capacity = capacity
        self.group_bytes = group_bytes
        self.store_threshold = store_threshold
        self.offers = OfferTracker(max_tracker_size) if store_threshold >= 2 else None
        self.events: list[Event] | None = [] if enable_events else None
        self.late_completions = 0
        self._epoch = 0
        self._free = list(reversed(range(capacity)))
        self._generations = [0] * capacity
        # Slots of an earlier epoch that a transfer still touches: how many transfers.
        self._draining: dict[int, int] = {}

    @property
    def target_t1_size(self) -> float:
        return self.policy.target_t1_size

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def draining_slots(self) -> int:
        return len(self._draining)

    def lookup(self, key: bytes) -> int:
        chunk = self.policy.get(key)
        if chunk is None:
            return MISS
        return HIT if chunk.ready else HIT_PENDING

    def lookup_each(self, keys: Iterable[bytes]) -> list[int]:
        return [self.lookup(key) for key in keys]

    def lookup_prefix(self, keys: Iterable[bytes]) -> tuple[int, int]:
        ready, known = 0, 0
        for result in self.lookup_each(keys):
            if result == MISS:
                break
            ready += ready == known and result == HIT
            known += 1
        return ready, known

    def begin_request(self, keys: Sequence[bytes] = (), positions: Sequence[int] = ()) -> Access:
        return Access(self._epoch, dict(zip(keys, positions, strict=True)))

    def finish_request(self, access: Access) -> None:
        if access.finished:
            return
        access.enter(self._epoch)
        access.finished = True
        self.policy.on_finish(
            access.in_prefix_order(self.group_bytes),
            access.inserted - access.reused,
            access.reused,
        )

    def touch(self, keys: Sequence[bytes]) -> None:
        self.policy.touch(keys)

    def prepare_store(
        self, keys: Iterable[bytes], access: Access | None = None
    ) -> StoreOutput | None:
        keys = list(keys)
        self._check_usable(access)
        if self.offers is not None:
            self.offers.record(keys)
        # From here on a key that the call names twice is one key.
        keys = list(dict.fromkeys(keys))
        missing = [key for key in keys if self.policy.get(key) is None]
        if self.offers is not None:
            missing = [key for key in missing if self.offers.offers(key) >= self.store_threshold]
        if access is not None:
            access.enter(self._epoch)
            news = [key for key in missing if key not in access.store_misses]
            self.policy.on_store_miss(news)
            access.store_misses.update(news)
            wanted = set(missing)
            reused = [key for key in keys if self.lookup(key) == HIT]
            wanted.update(reused)
            access.record((key for key in keys if key in wanted), reused)
        evicted = self._make_room(len(missing), keys)
        if evicted is None:
            return None
        chunks = [self._take_slot() for _ in missing]
        for key, chunk in zip(missing, chunks, strict=True):
            self.policy.insert(key, chunk)
        if access is not None:
            access.inserted.update(missing)
        slots = [chunk.slot for chunk in chunks]
        return StoreOutput(missing, evicted, slots, self._issue(missing, chunks))

    def complete_store(self, done: Ticket | Iterable[bytes], success: bool = True) -> None:
        stored = []
        for key, chunk in self._landed(done):
            if chunk.ready:
                continue
            if success:
                chunk.pins = 0
                stored.append(key)
            else:
                self.policy.remove(key)
                self._release(chunk.slot)
        self._emit("stored", stored)

    def prepare_load(self, keys: Iterable[bytes], access: Access | None = None) -> LoadOutput:
        keys = list(keys)
        self._check_usable(access)
        chunks = []
        for key in keys:
            chunk = self.policy.get(key)
            if chunk is None or not chunk.ready:
                raise NotReadyError(key)
            chunks.append(chunk)
        for chunk in chunks:
            chunk.pins += 1
        if access is not None:
            access.enter(self._epoch)
            access.record(keys, keys)
        return LoadOutput([chunk.slot for chunk in chunks], self._issue(keys, chunks))

    def complete_load(self, done: Ticket | Iterable[bytes]) -> None:
        if not isinstance(done, Ticket):
            done = list(done)
            for key, times in Counter(done).items():
                chunk = self.policy.get(key)
                if chunk is None or chunk.pins < times:
                    raise NotPinnedError(key)
        for _, chunk in self._landed(done):
            if chunk.pins > 0:
                chunk.pins -= 1
            else:
                self.late_completions += 1

    def reset_cache(self, in_flight: Literal["fenced", "drain"]) -> None:
        drain = in_flight == "drain"
        returned = [] if drain else list(self._draining)
        for _, chunk in self.policy.chunks():
            if drain and not chunk.evictable:
                self._draining[chunk.slot] = abs(chunk.pins)
            else:
                returned.append(chunk.slot)
        for slot in returned:
            self._draining.pop(slot, None)
            self._release(slot)
        self.policy.clear()
        self._epoch += 1
        self._emit("cleared", ())

    def take_events(self) -> list[Event]:
        events, self.events = self.events or [], None if self.events is None else []
        return events

    def lists(self) -> dict[str, list[bytes]]:
        return self.policy.lists()

    def _check_usable(self, access: Access | None) -> None:
        if access is not None and access.finished:
            raise ValueError("the request is finished")

    def _make_room(self, count: int, protected: Sequence[bytes]) -> list[bytes] | None:
        if count <= len(self._free):
            return []
        victims = self.policy.evict(count - len(self._free), set(protected))
        if victims is None:
            return None
        for _, chunk in victims:
            self._release(chunk.slot)
        evicted = [key for key, _ in victims]
        self._emit("removed", evicted)
        return evicted

    def _take_slot(self) -> Chunk:
        slot = self._free.pop()
        return Chunk(slot, self._generations[slot])

    def _release(self, slot: int) -> None:
        self._generations[slot] += 1
        self._free.append(slot)

    def _issue(self, keys: Sequence[bytes], chunks: Sequence[Chunk]) -> Ticket:
        entries = zip(keys, chunks, strict=True)
        return Ticket(tuple((key, chunk.slot, chunk.generation) for key, chunk in entries))

    def _landed(self, done: Ticket | Iterable[bytes]) -> list[tuple[bytes, Chunk]]:
        """Return the chunks that a completion is about; what comes late is counted, not obeyed."""
        if not isinstance(done, Ticket):
            # Unknown keys are ignored; `complete_load` has refused them before.
            found = ((key, self.policy.get(key)) for key in done)
            return [(key, chunk) for key, chunk in found if chunk is not None]
        if done.spent:
            self.late_completions += len(done.entries)
            return []
        done.spent = True
        landed = []
        for key, slot, generation in done.entries:
            chunk = self.policy.get(key)
            if chunk is not None and (chunk.slot, chunk.generation) == (slot, generation):
                landed.append((key, chunk))
                continue
            self.late_completions += 1
            if self._generations[slot] == generation and slot in self._draining:
                self._draining[slot] -= 1
                if self._draining[slot] == 0:
                    del self._draining[slot]
                    self._release(slot)
        return landed

    def _emit(self, kind: Literal["stored", "removed", "cleared"], keys: Iterable[bytes]) -> None:
        keys = tuple(keys)
        if self.events is not None and (keys or kind == "cleared"):
            self.events.append(Event(kind, keys))
