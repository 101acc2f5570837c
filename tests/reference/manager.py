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
from reference.slots import SlotPool
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
        self.group_bytes = group_bytes
        self.offers = OfferTracker(store_threshold, max_tracker_size)
        self.events: list[Event] | None = [] if enable_events else None
        self.late_completions = 0
        self._epoch = 0
        self.slots = SlotPool(capacity)

    @property
    def target_t1_size(self) -> float:
        return self.policy.target_t1_size

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
        if access is not None:
            access.enter(self._epoch)
        self.offers.record(keys)
        # From here on a key that the call names twice is one key.
        keys = list(dict.fromkeys(keys))
        resident = {key: chunk for key in keys if (chunk := self.policy.get(key)) is not None}
        for chunk in resident.values():
            chunk.dropped = False
        missing = [key for key in keys if key not in resident and self.offers.admits(key)]
        if access is not None:
            news = [key for key in missing if key not in access.store_misses]
            self.policy.on_store_miss(news)
            access.store_misses.update(news)
            reused = [key for key, chunk in resident.items() if chunk.ready]
            seen = {*missing, *reused}
            access.record((key for key in keys if key in seen), reused)
        evicted = self._make_room(len(missing), keys)
        if evicted is None:
            return None
        chunks = [self.slots.take() for _ in missing]
        for key, chunk in zip(missing, chunks, strict=True):
            self.policy.insert(key, chunk)
        if access is not None:
            access.inserted.update(missing)
        ticket = self._issue(missing, chunks)
        return StoreOutput(missing, evicted, [chunk.slot for chunk in chunks], ticket)

    def complete_store(self, done: Ticket | Iterable[bytes], success: bool = True) -> None:
        stored = []
        for key, chunk in self._landed(done):
            if chunk.ready:
                continue
            if success and not chunk.dropped:
                chunk.pins = 0
                stored.append(key)
            else:
                # A chunk that was dropped meanwhile leaves without having been there.
                self._remove(key, chunk)
        self._emit("stored", stored)

    def cancel_store(self, ticket: Ticket) -> None:
        for key, chunk in self._matching(ticket):
            if not chunk.ready:
                self.policy.remove(key)
                self.slots.drain(chunk)

    def drop_keys(self, keys: Iterable[bytes]) -> None:
        removed = []
        for key in dict.fromkeys(keys):
            chunk = self.policy.get(key)
            if chunk is not None:
                chunk.dropped = True
                removed += self._leave_if_dropped(key, chunk)
        self._emit("removed", removed)

    def prepare_load(self, keys: Iterable[bytes], access: Access | None = None) -> LoadOutput:
        keys = list(keys)
        if access is not None:
            access.enter(self._epoch)
        chunks = [chunk for key in keys if (chunk := self.policy.get(key)) and chunk.ready]
        if len(chunks) < len(keys):
            raise NotReadyError(keys)
        for chunk in chunks:
            chunk.pins += 1
        if access is not None:
            access.record(keys, keys)
        return LoadOutput([chunk.slot for chunk in chunks], self._issue(keys, chunks))

    def complete_load(self, done: Ticket | Iterable[bytes]) -> None:
        if not isinstance(done, Ticket):
            done = list(done)
            for key, times in Counter(done).items():
                chunk = self.policy.get(key)
                if chunk is None or chunk.pins < times:
                    raise NotPinnedError(key)
        removed = []
        for key, chunk in self._landed(done):
            if chunk.pins > 0:
                chunk.pins -= 1
                removed += self._leave_if_dropped(key, chunk)
            else:
                self.late_completions += 1
        self._emit("removed", removed)

    def reset_cache(self, in_flight: Literal["fenced", "drain"]) -> None:
        if in_flight == "fenced":
            self.slots.fence()
        for _, chunk in self.policy.chunks():
            if in_flight == "fenced" or chunk.evictable:
                self.slots.release(chunk.slot)
            else:
                self.slots.drain(chunk)
        self.policy.clear()
        self._epoch += 1
        self._emit("cleared", ())

    def take_events(self) -> list[Event]:
        events, self.events = self.events or [], None if self.events is None else []
        return events

    def lists(self) -> dict[str, list[bytes]]:
        return self.policy.lists()

    def _make_room(self, count: int, protected: Sequence[bytes]) -> list[bytes] | None:
        free = len(self.slots.free)
        if count <= free:
            return []
        victims = self.policy.evict(count - free, set(protected))
        if victims is None:
            return None
        for _, chunk in victims:
            self.slots.release(chunk.slot)
        evicted = [key for key, _ in victims]
        self._emit("removed", evicted)
        return evicted

    def _remove(self, key: bytes, chunk: Chunk) -> None:
        self.policy.remove(key)
        self.slots.release(chunk.slot)

    def _leave_if_dropped(self, key: bytes, chunk: Chunk) -> list[bytes]:
        if not chunk.dropped or not chunk.evictable:
            return []
        self._remove(key, chunk)
        return [key]

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
        landed = self._matching(done)
        current = {chunk.slot for _, chunk in landed}
        for _, slot, generation in done.entries:
            if slot not in current and not self.slots.transfer_ended(slot, generation):
                self.late_completions += 1
        return landed

    def _matching(self, ticket: Ticket) -> list[tuple[bytes, Chunk]]:
        """Return those chunks of a ticket that still live the same life in the same slot."""
        found = ((key, self.policy.get(key), slot, life) for key, slot, life in ticket.entries)
        return [
            (key, chunk)
            for key, chunk, slot, life in found
            if chunk is not None and (chunk.slot, chunk.generation) == (slot, life)
        ]

    def _emit(self, kind: Literal["stored", "removed", "cleared"], keys: Iterable[bytes]) -> None:
        keys = tuple(keys)
        if self.events is not None and (keys or kind == "cleared"):
            self.events.append(Event(kind, keys))
