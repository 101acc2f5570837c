"""Transfers under watch: what a chunk held when it was stored, what arrived, and faults on order.

Bytes are looked at where the KV cache lies: before a store, and after a load has ended and before
anybody is told of it. They are kept by the chunk's key and not by its slot, so that a chunk that
comes from another chunk's slot is wrong as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine_run import Checked

RUBBISH = 0x41
"""A byte that makes numbers of about 12 out of itself: no key, value or weight is that large."""


@dataclass
class Faults:
    """Which transfers of one direction fail.

    Attributes:
        every: Each n-th one.
        attempts: How often it fails; a load is tried twice.
    """

    every: int
    attempts: int = 1


@dataclass(frozen=True)
class Failed:
    """The end of a transfer that was made to fail."""

    job_id: int
    success: bool = False
    transfer_size: int | None = None
    transfer_time: float | None = None
    error: str = "made to fail"


@dataclass
class FaultyHandler:
    """Another handler, some of whose transfers are not done and leave rubbish."""

    handler: Any
    faults: Faults
    spoil: Callable[[tuple[Any, Any]], None]
    seen: int = 0
    # How often each fails yet, by identity: a transfer that is tried again has the same specs.
    doomed: dict[int, tuple[Any, int]] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)
    made_to_fail: int = 0

    def transfer_async(self, job_id: int, spec: tuple[Any, Any], **options: Any) -> bool:
        if id(spec) not in self.doomed:
            self.seen += 1
            fails = self.seen % self.faults.every == 0
            self.doomed[id(spec)] = (spec, self.faults.attempts if fails else 0)
        _, left = self.doomed[id(spec)]
        if not left:
            taken: bool = self.handler.transfer_async(job_id, spec, **options)
            return taken
        self.doomed[id(spec)] = (spec, left - 1)
        self.made_to_fail += 1
        self.spoil(spec)
        self.failed.append(Failed(job_id))
        return True

    def get_finished(self) -> list[Any]:
        failed, self.failed = self.failed, []
        return [*failed, *self.handler.get_finished()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handler, name)


class Recorder(Checked):
    """Transfers whose blocks are hashed, held back and harmed as a test asks for.

    Attributes:
        holding: Whether loads that have ended are kept from whoever asks for them.
        deaf: Whether loads that have failed are taken for good ones, as a control.
        loads_begun: Loads submitted so far.
        faulty: The handlers that fail, by direction.
    """

    def __init__(
        self, transfers: Any, caches: Any, per_chunk: int, faults: dict[str, Faults]
    ) -> None:
        super().__init__(transfers, caches, per_chunk, harm=None)
        self.holding = False
        self.deaf = False
        self.loads_begun = 0
        self.counts |= {"loaded_bytes": 0, "unknown_blocks": 0}
        self._held: list[Any] = []
        self.faulty: dict[str, FaultyHandler] = {}
        for direction, fault in faults.items():
            # A store that is not done leaves in its slot what was there before: rubbish enough.
            spoil = self._spoil if direction == "load" else _leave
            self.faulty[direction] = FaultyHandler(
                getattr(transfers, f"_{direction}"), fault, spoil
            )
            setattr(transfers, f"_{direction}", self.faulty[direction])

    def submit(self, direction: str, job_id: int, spec: tuple[Any, Any], **options: Any) -> None:
        source, destination = spec
        device, host = (source, destination) if direction == "store" else (destination, source)
        pairs = list(self._pairs(device, host.keys))
        if direction == "store":
            for place, group, block in pairs:
                self._stored[place] = self._hash(group, block)
            self.counts["stored_blocks"] += len(pairs)
        else:
            self.loads_begun += 1
            self._loads[job_id] = pairs
        self._transfers.submit(direction, job_id, spec, **options)

    def get_finished(self) -> list[Any]:
        ended = self._transfers.get_finished()
        for job in ended:
            if job.direction == "load":
                self._check(job)
        if self.deaf:
            ended = [replace(job, success=True, bytes=0, seconds=0.0) for job in ended]
        if self.holding:
            self._held += [job for job in ended if job.direction == "load"]
            return [job for job in ended if job.direction != "load"]
        held, self._held = self._held, []
        return held + ended

    def harm_next_load(self, harm: str) -> None:
        """Have one block of the next load arrive with a byte `flip`ped, or as `zero`s."""
        self._harm = harm

    def _check(self, job: Any) -> None:
        pairs = self._loads.pop(job.job_id, [])
        if not job.success:
            return
        self.counts["loads"] += 1
        self.counts["loaded_bytes"] += job.bytes
        if self._harm is not None:
            _, group, block = pairs[0]
            self._damage(group, block)
            self._harm = None
        for place, group, block in pairs:
            self.counts["loaded_blocks"] += 1
            if place not in self._stored:
                self.counts["unknown_blocks"] += 1
            elif self._hash(group, block) != self._stored[place]:
                self.counts["wrong_blocks"] += 1

    def _spoil(self, spec: tuple[Any, Any]) -> None:
        host, device = spec
        for _, group, block in self._pairs(device, host.keys):
            for tensor, size in self._groups[group]:
                address, stride, _, _ = self._table[tensor]
                ctypes.memset(address + block * stride, RUBBISH, size)


def _leave(_spec: tuple[Any, Any]) -> None:
    """Does nothing."""


def tell_keys(manager: Any) -> None:
    """Have each place in the host tier that a manager gives out say which chunks it is for."""
    prepare_store, prepare_load = manager.prepare_store, manager.prepare_load

    def store(keys: Sequence[bytes], *rest: Any) -> Any:
        output = prepare_store(keys, *rest)
        if output is not None:
            output.store_spec.keys = list(output.keys_to_store)
        return output

    def load(keys: Sequence[bytes], *rest: Any) -> Any:
        spec = prepare_load(keys, *rest)
        spec.keys = list(keys)
        return spec

    manager.prepare_store, manager.prepare_load = store, load
