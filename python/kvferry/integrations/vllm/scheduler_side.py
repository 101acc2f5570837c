"""The verbs of vLLM's `OffloadingManager`, in the words that all generations have in common.

A generation's manager is this class and vLLM's own base class; it says by class attributes what its
release calls things. Releases differ in whether a call carries the request: where it does not, a
transfer is found by its keys alone.

Nothing here imports vLLM.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from kvferry._core import PrepareStoreOutput
from kvferry.integrations.vllm.metrics import ALLOCATION_SIZE, Readings
from kvferry.integrations.vllm.tier import Record, Tier

__all__ = ["SchedulerSide"]

_RECORD = "_kvferry_record"


class SchedulerSide:
    """The scheduler's side of the host tier.

    Attributes:
        tier: The bookkeeping.
        RESULTS: What a look-up answers for a miss, a hit and a chunk that is being stored.
        SLOTS: Makes what a worker finds slots by.
        UNAVAILABLE: Makes what a load gets whose chunks are not there.
    """

    RESULTS: ClassVar[tuple[Any, Any, Any]]
    SLOTS: ClassVar[Any]
    UNAVAILABLE: ClassVar[Any]

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        # One attribute less on the way of each look-up.
        self._lookup, self._results = tier.manager.lookup, self.RESULTS
        self._readings = Readings(tier)
        self._allocations: list[int] = []

    def lookup(self, key: Any, req_context: Any) -> Any:
        """Whether a chunk can be loaded."""
        return self._results[self._lookup(key)]

    def prepare_load(self, keys: Collection[Any], req_context: Any = None) -> Any:
        """Pins chunks and says where they are."""
        slots = self.tier.prepare_load(keys, self._record(req_context))
        return self.UNAVAILABLE() if slots is None else self.SLOTS(slots)

    def touch(self, keys: Collection[Any], req_context: Any = None) -> None:
        """Marks chunks as used."""
        self.tier.manager.touch(keys)

    def complete_load(self, keys: Collection[Any], req_context: Any = None) -> None:
        """Ends a load."""
        self.tier.complete_load(keys, self._record(req_context))

    def prepare_store(self, keys: Collection[Any], req_context: Any = None) -> Any:
        """Makes room for the chunks that are missing; None if they do not fit."""
        output = self.tier.prepare_store(keys, self._record(req_context))
        if output is None:
            missing = self.tier.manager.lookup_each(keys) == 0
            self._allocations.append(int(missing.sum()))
            return None
        if len(output.ticket):
            self._allocations.append(len(output.ticket))
        return self._output(output)

    def complete_store(
        self, keys: Collection[Any], req_context: Any = None, success: bool = True
    ) -> None:
        """Ends a store: its chunks are loadable from now on, or gone."""
        self.tier.complete_store(keys, self._record(req_context), success)

    def on_request_finished(self, req_context: Any) -> None:
        """Sees a request end."""
        self.tier.finish(self._record(req_context), self._positions(req_context))

    def on_schedule_end(self, *_context: Any) -> None:
        """Sees the end of a step."""
        self.tier.expire()

    def take_events(self) -> Iterable[Any]:
        """What was stored and removed since the last call."""
        for event in self.tier.manager.take_events():
            # A reset is told by vLLM itself, and its events know of no loss: that is a metric.
            if event.keys:
                yield self._event(event.keys, event.removed)

    def reset_cache(self) -> None:
        """Forgets every chunk. The scheduler has the workers end all transfers before new ones."""
        self.tier.reset()

    def shutdown(self) -> None:
        """Ends. Nothing is held outside this process's memory."""

    def report_to(self, stats: Any) -> Any:
        """Adds gauges, and what the counters have gained since the last call, to vLLM's stats."""
        for name, kind, value in self._readings.take():
            if kind == "gauge":
                stats.set_gauge(name, value)
            else:
                stats.increase_counter(name, value)
        if hasattr(stats, "observe_histogram"):
            for size in self._allocations:
                stats.observe_histogram(ALLOCATION_SIZE, size)
        self._allocations.clear()
        return stats

    def _output(self, output: PrepareStoreOutput) -> Any:
        raise NotImplementedError

    def _event(self, keys: list[bytes], removed: bool) -> Any:
        raise NotImplementedError

    def _positions(self, req_context: Any) -> Mapping[bytes, int] | None:
        """Where each key ends in its prefix, if this release tells."""
        return None

    def _record(self, req_context: Any) -> Record:
        """What a request has done. It is kept where the request's other state is."""
        if req_context is None:
            return self.tier.shared
        record: Record | None = getattr(req_context, _RECORD, None)
        if record is None:
            record = self.tier.begin()
            setattr(req_context, _RECORD, record)
        return record
