"""The worker's jobs, under the promises that vLLM's connectors rely on.

* T1. A submit is never refused: what does not fit, or meets a job in flight, waits here.
* T2. Jobs of one direction are handed over in the order of their submission; an expedited load
  goes first.
* T3. `wait` returns once the jobs have ended, however long that takes: vLLM reuses their blocks.
* T4. A load that fails is tried once more before it counts as failed.
* T5. Every job ends exactly once in `get_finished`.

Job ids of vLLM name jobs here; the engine below gets a number of its own for each attempt.

Nothing here imports vLLM or torch. One thread uses an object: the worker's.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvferry._core import KvferryError
from kvferry.integrations.vllm.log import logger

__all__ = ["Direction", "Ended", "Handler", "Transfers"]

Direction = Literal["store", "load"]

_WATCHDOG_SECONDS = 10.0
"""How long a wait stays silent: longer than any transfer of a sound machine."""

_ATTEMPTS = {"store": 1, "load": 2}


class Result(Protocol):
    """How an attempt ended, as a handler reports it."""

    @property
    def job_id(self) -> int:
        """Its number."""

    @property
    def success(self) -> bool:
        """Whether all bytes arrived."""

    @property
    def transfer_size(self) -> int | None:
        """Bytes."""

    @property
    def transfer_time(self) -> float | None:
        """Seconds."""


class Handler(Protocol):
    """The jobs of one direction: `kvferry.worker.SingleDirectionOffloadingHandler`."""

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        """Submits a job; False if there is no room for it now."""

    def get_finished(self) -> Sequence[Result]:
        """What has ended since the last call."""

    def wait(self, job_ids: Iterable[int], timeout: float | None = None) -> bool:
        """Waits for jobs of any direction; False if time ran out first."""

    def shutdown(self) -> None:
        """Ends both directions."""


class LoadHandler(Handler, Protocol):
    """The loads, which can overtake one another."""

    def transfer_async(self, job_id: int, spec: Any, *, expedited: bool = False) -> bool:
        """Submits a job; False if there is no room for it now."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended.

    Attributes:
        job_id: vLLM's number of it.
        direction: Which way it went.
        success: Whether all bytes arrived.
        bytes: How many, of a success.
        seconds: How long it took, of a success.
    """

    job_id: int
    direction: Direction
    success: bool
    bytes: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class _Job:
    job_id: int
    direction: Direction
    spec: tuple[object, object]
    expedited: bool
    attempts: int = 0
    # The number of the attempt in flight.
    attempt: int | None = None


class Transfers:
    """Both directions of one worker."""

    def __init__(
        self, store: Handler, load: LoadHandler, conflict: type[Exception] | tuple[()] = ()
    ) -> None:
        """Takes over two handlers.

        Args:
            store: Device to host.
            load: Host to device.
            conflict: What a handler raises for a job whose memory one in flight uses.
        """
        self._store = store
        self._load = load
        self._conflict = conflict
        self._queues: dict[Direction, deque[_Job]] = {"store": deque(), "load": deque()}
        self._jobs: dict[int, _Job] = {}
        self._in_flight: dict[int, _Job] = {}
        self._ended: list[Ended] = []
        self._next_attempt = 0

    def submit(
        self,
        direction: Direction,
        job_id: int,
        spec: tuple[object, object],
        *,
        expedited: bool = False,
    ) -> None:
        """Takes a job (T1)."""
        job = _Job(job_id, direction, spec, expedited)
        self._jobs[job_id] = job
        queue = self._queues[direction]
        (queue.appendleft if expedited else queue.append)(job)
        self._pump(direction)

    def refuse(self, direction: Direction, job_id: int, reason: str) -> None:
        """Ends a job at once that cannot be done."""
        job = self._jobs[job_id] = _Job(job_id, direction, ((), ()), False)
        self._fail(job, reason)

    def get_finished(self) -> list[Ended]:
        """The jobs that have ended since the last call (T5)."""
        self._collect()
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: Iterable[int]) -> None:
        """Waits until the jobs have ended (T3). Ids of no job are ignored."""
        wanted = set(job_ids)
        started = time.monotonic()
        while True:
            self._collect()
            waiting = [job for job_id in wanted if (job := self._jobs.get(job_id)) is not None]
            if not waiting:
                return
            attempts = [job.attempt for job in waiting if job.attempt is not None]
            # A job that still waits here does so for one in flight, and any of them may be it.
            if len(attempts) < len(waiting):
                attempts = [*self._in_flight]
            if not attempts:
                # Nothing is in flight, and the handlers refuse all the same: no wait would end.
                for job in waiting:
                    self._queues[job.direction].remove(job)
                    self._fail(job, "it is refused although no transfer is in flight")
            elif not self._store.wait(attempts, _WATCHDOG_SECONDS):
                logger.warning(
                    "kvferry: waiting for %d transfers for %.0f s so far: %s",
                    len(waiting),
                    time.monotonic() - started,
                    sorted(job.job_id for job in waiting)[:8],
                )

    def shutdown(self) -> None:
        """Ends both directions: what is in flight is waited for, what waits here is dropped."""
        for queue in self._queues.values():
            queue.clear()
        self._store.shutdown()
        self._load.shutdown()
        self._jobs.clear()
        self._in_flight.clear()
        self._ended.clear()

    def _collect(self) -> None:
        for handler in (self._store, self._load):
            for result in handler.get_finished():
                job = self._in_flight.pop(result.job_id, None)
                if job is None:
                    continue
                job.attempt = None
                if result.success:
                    del self._jobs[job.job_id]
                    size, seconds = result.transfer_size, result.transfer_time
                    self._ended.append(Ended(job.job_id, job.direction, True, size, seconds))
                elif job.attempts < _ATTEMPTS[job.direction]:
                    logger.warning(
                        "kvferry: %s job %d failed and is tried again: %s",
                        job.direction,
                        job.job_id,
                        getattr(result, "error", None) or "no reason given",
                    )
                    self._queues[job.direction].appendleft(job)
                else:
                    self._fail(job, getattr(result, "error", None))
        for direction in self._queues:
            self._pump(direction)

    def _pump(self, direction: Direction) -> None:
        """Hands over what waits, in order, until one is refused (T2)."""
        queue = self._queues[direction]
        while queue:
            job = queue[0]
            attempt = self._next_attempt
            try:
                if direction == "store":
                    taken = self._store.transfer_async(attempt, job.spec)
                else:
                    taken = self._load.transfer_async(attempt, job.spec, expedited=job.expedited)
            except self._conflict:
                return
            except (KvferryError, TypeError, ValueError) as error:
                queue.popleft()
                self._fail(job, error)
                continue
            if not taken:
                return
            queue.popleft()
            self._next_attempt += 1
            job.attempts += 1
            job.attempt = attempt
            self._in_flight[attempt] = job

    def _fail(self, job: _Job, reason: object) -> None:
        del self._jobs[job.job_id]
        self._ended.append(Ended(job.job_id, job.direction, False))
        logger.error(
            "kvferry: %s job %d failed: %s", job.direction, job.job_id, reason or "no reason given"
        )
