"""The host tier as vLLM's scheduler sees it, for every generation of its interface.

vLLM completes transfers by key; the engine completes them by ticket, which is what keeps a late
completion away from a slot that has changed hands. A `Record` per request holds the tickets between
the two. Invariants:

* I1. Every ticket is in exactly one record until its completion, or until a reset.
* I2. No call raises because of the state of a chunk: what does not fit, is gone or comes late is an
  answer or a count.

Every call is one native call; a completion compares its keys with the request's open transfers
besides. One thread owns a tier:
the scheduler's.

Nothing here imports vLLM.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvferry._core import (
    LoadTicket,
    OffloadingManager,
    PrepareStoreOutput,
    RequestAccess,
    StateError,
    Stats,
    StoreTicket,
)
from kvferry.integrations.vllm.config import Settings
from kvferry.integrations.vllm.log import logger
from kvferry.keys import GROUP_BYTES

__all__ = ["Counts", "Record", "Tier"]

Slots = npt.NDArray[np.int64]


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


@dataclass(slots=True, eq=False)
class _Open:
    """A transfer in flight, of `count` different keys."""

    keys: Sequence[bytes]
    count: int
    ticket: StoreTicket | LoadTicket


@dataclass(slots=True)
class Record:
    """What one request has done.

    Attributes:
        access: The request, to the engine; None where each `touch` is an access.
        finished: It has ended; transfers may still be in flight.
    """

    access: RequestAccess | None
    epoch: int
    finished: bool = False
    stores: list[_Open] = field(default_factory=list)
    loads: list[_Open] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """What the engine does not count itself.

    Attributes:
        expired: Chunks whose store had not ended at its deadline.
        failed_stores: Stores that a worker reported as failed.
        failed_loads: Loads that a worker reported as failed.
        unavailable_loads: Loads of chunks that were not there.
        unmatched: Loads completed of chunks that no load held.
    """

    expired: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    unavailable_loads: int = 0
    unmatched: int = 0


class Tier:
    """A host tier of a fixed number of chunks.

    Attributes:
        manager: The engine. `lookup` and its like are asked there directly.
        shared: The record of calls that do not say which request they are for.
        counts: What the engine does not count itself.
    """

    def __init__(  # noqa: PLR0913 - what is named is optional
        self,
        chunks: int,
        settings: Settings,
        *,
        events: bool,
        by_request: bool = True,
        group_bytes: int = GROUP_BYTES,
        clock: Callable[[], int] = _monotonic_us,
    ) -> None:
        """Makes an empty tier.

        Args:
            chunks: How many it holds.
            settings: The user's.
            events: Whether somebody takes the events.
            by_request: Whether a request is one access. Otherwise each `touch` is one.
            group_bytes: Bytes of a key that name its group.
            clock: Microseconds of a monotonic clock.
        """
        self.manager = OffloadingManager(
            chunks,
            policy=settings.policy,
            store_threshold=settings.store_threshold,
            max_tracker_size=settings.max_tracker_size,
            enable_events=events and settings.events,
            pending_timeout_us=int(settings.pending_deadline * 1_000_000),
            group_bytes=group_bytes,
        )
        self._by_request = by_request
        self.counts = Counts()
        self._clock = clock
        self._epoch = 0
        self._open_transfers = 0
        # Keys of transfers that failed, by identity: completing them takes the very same object.
        self._failed: dict[int, Collection[bytes]] = {}
        self.shared = Record(None, self._epoch)

    def begin(self) -> Record:
        """Sees a request."""
        access = self.manager.begin_request(self._clock()) if self._by_request else None
        return Record(access, self._epoch)

    def finish(self, record: Record, positions: Mapping[bytes, int] | None) -> None:
        """Sees a request end. Its transfers may complete later.

        Args:
            record: The request; a second call does nothing.
            positions: Where keys end in its prefix, if the engine tells.
        """
        if record.finished:
            return
        record.finished = True
        access = record.access
        if access is None:
            return
        if positions and access.seen:
            ends = np.fromiter(positions.values(), np.int64, len(positions))
            access.set_positions(positions.keys(), ends)
        self.manager.finish_request(access)

    def prepare_store(self, keys: Collection[bytes], record: Record) -> PrepareStoreOutput | None:
        """Makes room for the keys that are missing; None if they do not fit."""
        access = None if record.finished else record.access
        output = self.manager.prepare_store(keys, access)
        if output is not None and len(output.ticket):
            stored = output.keys_to_store
            self._opened(record, record.stores, _Open(stored, len(stored), output.ticket))
        return output

    def complete_store(self, keys: Collection[bytes], record: Record, success: bool) -> None:
        """Ends a store: its chunks are loadable from now on, or gone."""
        if self._take_failure(keys):
            success = False
        if not success:
            self.counts.failed_stores += 1
        ticket = self._close(record, record.stores, keys)
        if isinstance(ticket, StoreTicket):
            self.manager.complete_store(ticket, success)
        else:
            self.manager.complete_store(keys, success)

    def prepare_load(self, keys: Collection[bytes], record: Record) -> Slots | None:
        """Pins the keys and says where they are; None, and nothing is pinned, if one is not there.

        A scheduler asks for what it has just looked up, so one that is not there means that it
        remembered an answer for too long.
        """
        access = None if record.finished else record.access
        try:
            output = self.manager.prepare_load(keys, access)
        except StateError as error:
            self.counts.unavailable_loads += 1
            logger.warning("kvferry: a load of %d chunks is refused: %s", len(keys), error)
            return None
        if keys:
            entry = _Open(tuple(keys), len(set(keys)), output.ticket)
            self._opened(record, record.loads, entry)
        return output.block_ids

    def complete_load(self, keys: Collection[bytes], record: Record) -> None:
        """Ends a load. Chunks that could not be read leave, once no other load reads them."""
        failed = self._take_failure(keys)
        ticket = self._close(record, record.loads, keys)
        if isinstance(ticket, LoadTicket):
            self.manager.complete_load(ticket)
        else:
            self._unpin(keys)
        if failed:
            self.counts.failed_loads += 1
            self.manager.drop_keys(keys)

    def fail(self, keys: Collection[bytes]) -> None:
        """Notes that a transfer failed; its completion is yet to come.

        Args:
            keys: The object that the completion will be called with.
        """
        self._failed[id(keys)] = keys

    def expire(self) -> None:
        """Gives up stores that have passed their deadline. Cheap if there are none."""
        expired = self.manager.expire_pending(self._clock())
        if expired:
            self.counts.expired += expired
            logger.warning(
                "kvferry: %d chunks whose store did not end in time are misses from now on", expired
            )

    def reset(self) -> None:
        """Forgets every chunk. No transfer that began before may touch a slot from now on."""
        self.manager.reset_cache("fenced")
        self._epoch += 1
        self._open_transfers = 0
        self._failed.clear()

    def held_when_idle(self, stats: Stats) -> int:
        """Chunks that something holds although no transfer is in flight: 0, or there is a leak."""
        if self._open_transfers:
            return 0
        return stats.pinned + stats.pending + stats.draining

    def _opened(self, record: Record, transfers: list[_Open], entry: _Open) -> None:
        self._forget_old(record)
        transfers.append(entry)
        self._open_transfers += 1

    def _close(
        self, record: Record, transfers: list[_Open], keys: Collection[bytes]
    ) -> StoreTicket | LoadTicket | None:
        """The ticket of the transfer of exactly these keys, if there is one.

        vLLM names each of its transfers by a set of all keys. Whoever names a part, or the
        keys of several transfers at once, completes them by key.
        """
        self._forget_old(record)
        named = keys if isinstance(keys, (set, frozenset)) else set(keys)
        for index, entry in enumerate(transfers):
            if entry.count == len(named) and named.issuperset(entry.keys):
                del transfers[index]
                self._open_transfers -= 1
                return entry.ticket
        others = [entry for entry in transfers if named.isdisjoint(entry.keys)]
        self._open_transfers -= len(transfers) - len(others)
        transfers[:] = others
        return None

    def _forget_old(self, record: Record) -> None:
        """Drops tickets from before a reset, so that none is taken for that of a later transfer."""
        if record.epoch != self._epoch:
            record.epoch = self._epoch
            record.stores.clear()
            record.loads.clear()

    def _take_failure(self, keys: Collection[bytes]) -> bool:
        return bool(self._failed) and self._failed.pop(id(keys), None) is not None

    def _unpin(self, keys: Collection[bytes]) -> None:
        # By key a call is all or nothing, so each key is one call.
        for key in keys:
            try:
                self.manager.complete_load([key])
            except StateError:
                self.counts.unmatched += 1
