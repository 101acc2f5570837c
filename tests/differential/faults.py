"""Managers with one deliberate fault each. A comparison that misses one of them proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from differential.driver import Keys
from differential.reference_driver import ReferenceDriver
from differential.workload import Workload
from reference.arc import ArcPolicy
from reference.lru import LruPolicy
from reference.policy import Chunk

FIRST_WRONG_EVICTION = 25


class _FaultyPolicyDriver(ReferenceDriver):
    """The reference, with a policy of our own choosing."""

    lru: type[LruPolicy] = LruPolicy
    arc: type[ArcPolicy] = ArcPolicy

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        policy = self.lru if workload.policy == "lru" else self.arc
        self.manager.policy = policy(workload.capacity)


def _second_oldest_once(
    policy: LruPolicy | ArcPolicy,
    evict: Callable[[int, Collection[bytes]], list[tuple[bytes, Chunk]] | None],
    count: int,
    protected: Collection[bytes],
) -> list[tuple[bytes, Chunk]] | None:
    """Spare the right victim of one call, as an index that is off by one does."""
    policy.evictions = getattr(policy, "evictions", 0) + 1  # type: ignore[union-attr]
    if policy.evictions == FIRST_WRONG_EVICTION:  # type: ignore[union-attr]
        oldest = next((key for key, chunk in policy.chunks() if chunk.evictable), None)
        victims = evict(count, {*protected, *([oldest] if oldest else [])})
        if victims is not None:
            return victims
    return evict(count, protected)


class WrongVictimOnce(_FaultyPolicyDriver):
    """Evicts the second oldest chunk instead of the oldest, in one call of a history."""

    name = "wrong victim once"

    class lru(LruPolicy):
        def evict(
            self, count: int, protected: Collection[bytes]
        ) -> list[tuple[bytes, Chunk]] | None:
            return _second_oldest_once(self, super().evict, count, protected)

    class arc(ArcPolicy):
        def evict(
            self, count: int, protected: Collection[bytes]
        ) -> list[tuple[bytes, Chunk]] | None:
            return _second_oldest_once(self, super().evict, count, protected)


class OwnKeysNotProtected(_FaultyPolicyDriver):
    """Lets a store evict a key of its own call."""

    name = "own keys not protected"

    class lru(LruPolicy):
        def evict(
            self, count: int, protected: Collection[bytes]
        ) -> list[tuple[bytes, Chunk]] | None:
            return super().evict(count, ())

    class arc(ArcPolicy):
        def evict(
            self, count: int, protected: Collection[bytes]
        ) -> list[tuple[bytes, Chunk]] | None:
            return super().evict(count, ())


class HeadFirst(_FaultyPolicyDriver):
    """Applies a request's access head to tail, so that the tail is the most recent."""

    name = "head first"

    class lru(LruPolicy):
        def on_finish(
            self, keys: Sequence[bytes], only_inserted: Collection[bytes], reused: Collection[bytes]
        ) -> None:
            super().on_finish(keys[::-1], only_inserted, reused)

    class arc(ArcPolicy):
        def on_finish(
            self, keys: Sequence[bytes], only_inserted: Collection[bytes], reused: Collection[bytes]
        ) -> None:
            super().on_finish(keys[::-1], only_inserted, reused)


class StepOfOne(_FaultyPolicyDriver):
    """Moves ARC's target by one, whatever the ghost lists' sizes are."""

    name = "target moves by one"

    class arc(ArcPolicy):
        def _adapt(self, key: bytes) -> None:
            step = (key in self.b1) - (key in self.b2)
            before = self.target_t1_size
            super()._adapt(key)
            self.target_t1_size = min(max(before + step, 0.0), float(self.capacity))


class GhostStays(_FaultyPolicyDriver):
    """Leaves a ghost where it is when it is hit."""

    name = "ghost not refreshed"

    class arc(ArcPolicy):
        def _adapt(self, key: bytes) -> None:
            order = [list(ghosts) for ghosts in (self.b1, self.b2)]
            super()._adapt(key)
            for ghosts, keys in zip((self.b1, self.b2), order, strict=True):
                for ghost in keys:
                    ghosts.move_to_end(ghost)


class ReturnsToT2(_FaultyPolicyDriver):
    """Puts a key that comes back from a ghost list into T2, as the paper has it."""

    name = "ghost returns to T2"

    class arc(ArcPolicy):
        def insert(self, key: bytes, chunk: Chunk) -> None:
            ghost = key in self.b1 or key in self.b2
            super().insert(key, chunk)
            if ghost:
                self.t2[key] = self.t1.pop(key)


class NoFallback(_FaultyPolicyDriver):
    """Below the target, looks for victims in T2 alone."""

    name = "no fallback to T1"

    class arc(ArcPolicy):
        def evict(
            self, count: int, protected: Collection[bytes]
        ) -> list[tuple[bytes, Chunk]] | None:
            if len(self.t1) < int(self.target_t1_size):
                protected = {*protected, *self.t1}
            return super().evict(count, protected)


class UnpinTouches(ReferenceDriver):
    """Takes the end of a load for a use."""

    name = "unpin touches"

    def complete_load(self, job: int, keys: Keys) -> None:
        super().complete_load(job, keys)
        policy = self.manager.policy
        assert isinstance(policy, LruPolicy | ArcPolicy)
        order = policy.order if isinstance(policy, LruPolicy) else policy.t1
        for key in keys:
            if key in order:
                order.move_to_end(key)


class CountsEveryCall(ReferenceDriver):
    """Sees a store miss at each call of a request, not once."""

    name = "store miss at every call"

    def prepare_store(self, request: int | None, job: int, keys: Keys) -> tuple[Keys, Keys] | None:
        if request is not None:
            self.accesses[request].store_misses.clear()
        return super().prepare_store(request, job, keys)


class IgnoresPositions(ReferenceDriver):
    """Applies a request's keys in the order in which they were used."""

    name = "positions ignored"

    def begin(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        super().begin(request, (), ())

    def extend(self, request: int, keys: Keys, positions: tuple[int, ...]) -> None:
        pass


class SwappedEvents(ReferenceDriver):
    """Tells of a removal after the store that it made room for."""

    name = "events out of order"

    def take_events(self) -> list[tuple[str, Keys]]:
        return sorted(super().take_events(), reverse=True)


class SlotTwice(ReferenceDriver):
    """Gives a slot back while a key lives in it."""

    name = "slot handed out twice"

    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        super().complete_store(job, keys, success)
        chunk = self.manager.policy.get(keys[0]) if keys else None
        if chunk is not None and job > FIRST_WRONG_EVICTION:
            self.manager.slots.free.append(chunk.slot)


class ObeysLateStores(ReferenceDriver):
    """Lets a completion end whatever store of the same keys is in flight now."""

    name = "late stores obeyed"

    def complete_store(self, job: int, keys: Keys, success: bool) -> None:
        self.manager.complete_store(keys, success)
        self.ledger.ended(job)
        if not success:
            self._let_go(keys)

    def late_store(self, job: int) -> None:
        self.complete_store(job, tuple(key for key, _, _ in self.stores[job].ticket.entries), True)


class PinsBeforeRefusing(ReferenceDriver):
    """Leaves pins on the ready keys of a load that it refuses."""

    name = "refused load pins"

    def prepare_load(self, request: int | None, job: int, keys: Keys) -> str:
        answer = super().prepare_load(request, job, keys)
        if answer == "refused":
            ready = [key for key in keys if self.manager.lookup(key) == 1]
            self.manager.prepare_load(ready)
        return answer


class DrainForgets(ReferenceDriver):
    """Returns the slots of transfers in flight at once, although a reset asked to drain them."""

    name = "drain forgets"

    def reset(self, in_flight: str) -> None:
        self.manager.reset_cache("fenced")
        self.ledger.reset(in_flight)


class DropsStay(ReferenceDriver):
    """Drops a chunk that was offered again meanwhile."""

    name = "drops stay"

    def prepare_store(self, request: int | None, job: int, keys: Keys) -> tuple[Keys, Keys] | None:
        chunks = [self.manager.policy.get(key) for key in keys]
        marked = [chunk for chunk in chunks if chunk is not None and chunk.dropped]
        result = super().prepare_store(request, job, keys)
        for chunk in marked:
            chunk.dropped = True
        return result


class CancelFrees(ReferenceDriver):
    """Returns the slots of a cancelled store at once, although its transfer goes on."""

    name = "cancel frees"

    def cancel(self, job: int, keys: Keys) -> None:
        super().cancel(job, keys)
        self.manager.slots.fence()


COMMON = (
    WrongVictimOnce,
    OwnKeysNotProtected,
    HeadFirst,
    UnpinTouches,
    IgnoresPositions,
    SwappedEvents,
    SlotTwice,
)
FAULTS = {
    "lru": COMMON,
    "arc": (*COMMON, StepOfOne, GhostStays, ReturnsToT2, NoFallback, CountsEveryCall),
}
# Faults in what vLLM leaves undefined, for two managers that define it.
ROUGH_FAULTS = (ObeysLateStores, PinsBeforeRefusing, DrainForgets, DropsStay, CancelFrees)
