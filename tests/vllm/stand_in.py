"""Transfers on the CPU that end when a seed says so, overlap as they may, and fail on request.

They stand for `kvferry.worker`'s handlers. What they add: a job copies at its beginning or at its
end, whichever the seed says, so that whoever reuses its memory too early is found out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Direction = Literal["store", "load"]
# Says whether an attempt fails: its direction and its number.
Fault = Callable[[Direction, int], bool]


class ConflictError(Exception):
    """A job in flight uses the same memory."""


@dataclass(frozen=True)
class Result:
    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None
    error: str | None = None


@dataclass
class Job:
    job_id: int
    direction: Direction
    # Device block and (slot, place in the chunk), pairwise.
    pairs: list[tuple[int, tuple[int, int]]]
    polls: int
    late: bool
    fails: bool
    result: Result | None = None

    @property
    def blocks(self) -> set[int]:
        return {block for block, _ in self.pairs}

    @property
    def slots(self) -> set[tuple[int, int]]:
        return {place for _, place in self.pairs}


@dataclass
class Device:
    """Both sides of the transfers.

    Attributes:
        blocks: `int64[blocks, tokens]`: what each token's KV is.
        chunks: `int64[slots, blocks_per_chunk, tokens]`.
        seed: of the moments at which jobs end.
        fault: which attempts fail.
        capacity: jobs that are in flight or not collected.
        conflicts: how often a job was refused because of another.
    """

    blocks: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    seed: int = 0
    fault: Fault = lambda _direction, _attempt: False
    capacity: int = 4
    longest: int = 3
    jobs: list[Job] = field(default_factory=list)
    conflicts: int = 0
    refused: int = 0
    ended: dict[str, int] = field(default_factory=lambda: {"store": 0, "load": 0})
    attempts: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def submit(self, direction: Direction, job_id: int, spec: tuple) -> bool:
        if len(self.jobs) >= self.capacity:
            self.refused += 1
            return False
        source, destination = spec
        device, host = (source, destination) if direction == "store" else (destination, source)
        pairs = list(self._pairs(device, host.block_ids.tolist()))
        self._check(direction, pairs)
        job = Job(
            job_id,
            direction,
            pairs,
            polls=self.random.randint(0, self.longest),
            late=self.random.random() < 0.5,
            fails=self.fault(direction, self.attempts),
        )
        self.attempts += 1
        self.jobs.append(job)
        if not job.late:
            self._copy(job)
        return True

    def poll(self, direction: Direction) -> list[Result]:
        finished = []
        for job in [job for job in self.jobs if job.direction == direction]:
            job.polls -= 1
            if job.polls > 0 and job.result is None:
                # Jobs of one direction end in their order.
                break
            self._end(job)
            self.jobs.remove(job)
            finished.append(job.result)
        return finished

    def wait(self, job_ids: Iterable[int]) -> bool:
        wanted = set(job_ids)
        last = max((i for i, job in enumerate(self.jobs) if job.job_id in wanted), default=-1)
        for job in self.jobs[: last + 1]:
            self._end(job)
        return True

    def _pairs(self, device: object, slots: Sequence[int]) -> Iterable[tuple]:
        per_chunk = self.chunks.shape[1]
        block, slot = 0, 0
        for size, index in zip(device.group_sizes, device.block_indices, strict=True):
            first = index % per_chunk
            for i in range(size):
                place = divmod(first + i, per_chunk)
                yield int(device.block_ids[block + i]), (slots[slot + place[0]], place[1])
            block += size
            slot += -(-(first + size) // per_chunk) if size else 0
        if slot != len(slots) or block != len(device.block_ids):
            raise ValueError(f"{block} of {len(device.block_ids)} blocks, {slot} of {len(slots)}")

    def _check(self, direction: Direction, pairs: list[tuple]) -> None:
        blocks, slots = {block for block, _ in pairs}, {place for _, place in pairs}
        if direction == "store" and len(slots) < len(pairs):
            raise ValueError("a slot is written twice")
        for job in self.jobs:
            if job.result is not None:
                continue
            same_blocks = blocks & job.blocks and {direction, job.direction} != {"store"}
            same_slots = slots & job.slots and {direction, job.direction} != {"load"}
            if same_blocks or same_slots:
                self.conflicts += 1
                raise ConflictError(f"job {job.job_id} uses some of it")

    def _end(self, job: Job) -> None:
        if job.result is not None:
            return
        if job.late:
            self._copy(job)
        self.ended[job.direction] += 1
        size = len(job.pairs) * self.blocks[0].nbytes
        job.result = (
            Result(job.job_id, False, error="made to fail")
            if job.fails
            else Result(job.job_id, True, size, 1e-6)
        )

    def _copy(self, job: Job) -> None:
        # A failed job may have copied a part of it, or rubbish.
        pairs = job.pairs[: len(job.pairs) // 2] if job.fails else job.pairs
        for block, (slot, place) in pairs:
            if job.direction == "store":
                self.chunks[slot, place] = -7 if job.fails else self.blocks[block]
            else:
                self.blocks[block] = -7 if job.fails else self.chunks[slot, place]


class StandInHandler:
    """One direction of a `Device`, called as `SingleDirectionOffloadingHandler` is."""

    def __init__(self, device: Device, direction: Direction) -> None:
        self.device = device
        self.direction = direction

    def transfer_async(self, job_id: int, spec: tuple, *, expedited: bool = False) -> bool:
        return self.device.submit(self.direction, job_id, spec)

    def get_finished(self) -> list[Result]:
        return self.device.poll(self.direction)

    def wait(self, job_ids: Iterable[int], timeout: float | None = None) -> bool:
        return self.device.wait(job_ids)

    def shutdown(self) -> None:
        self.device.wait([job.job_id for job in self.device.jobs])
