"""The worker's jobs in vLLM: none is refused, all end once, a load has a second try."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from kvferry.integrations.vllm.transfers import Ended, Transfers


class ConflictError(Exception):
    """Another job uses the same memory."""


@dataclass
class Result:
    job_id: int
    success: bool
    transfer_size: int | None = 8
    transfer_time: float | None = 0.5
    error: str | None = None


@dataclass
class Handler:
    """Takes up to `room` jobs, which end when the test, or a wait, says so."""

    room: int = 100
    conflicts: set[object] = field(default_factory=set)
    taken: dict[int, tuple[object, object]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    waits: int = 0
    # What a wait ends the jobs with; None: it runs out of time.
    wait_success: bool | None = True

    def transfer_async(
        self, job_id: int, spec: tuple[object, object], *, expedited: bool = False
    ) -> bool:
        if spec[0] in self.conflicts:
            raise ConflictError
        if spec[0] == "bad":
            raise ValueError("block_ids: out of range")
        if len(self.taken) >= self.room:
            return False
        self.taken[job_id] = spec
        return True

    def end(self, name: object, success: bool = True) -> None:
        job_id = next(job_id for job_id, spec in self.taken.items() if spec[0] == name)
        del self.taken[job_id]
        self.results.append(Result(job_id, success, error=None if success else "broken"))

    def get_finished(self) -> list[Result]:
        results, self.results = self.results, []
        return results

    def wait(self, job_ids: Iterable[int], timeout: float | None = None) -> bool:
        self.waits += 1
        if self.wait_success is None:
            self.wait_success = True
            return False
        for job_id in job_ids:
            if job_id in self.taken:
                self.end(self.taken[job_id][0], self.wait_success)
        return True

    def shutdown(self) -> None:
        self.taken.clear()


def pair(room: int = 100) -> tuple[Transfers, Handler, Handler]:
    store, load = Handler(room), Handler(room)
    return Transfers(store, load, ConflictError), store, load


def names(handler: Handler) -> list[object]:
    return [spec[0] for spec in handler.taken.values()]


def test_jobs_that_do_not_fit_wait_and_keep_their_order() -> None:
    transfers, store, _ = pair(room=2)
    for job_id in range(4):
        transfers.submit("store", job_id, (f"s{job_id}", None))
    assert names(store) == ["s0", "s1"]
    store.end("s0")
    assert transfers.get_finished() == [Ended(0, "store", True, 8, 0.5)]
    assert names(store) == ["s1", "s2"]
    store.end("s1")
    store.end("s2")
    assert [job.job_id for job in transfers.get_finished()] == [1, 2]
    assert names(store) == ["s3"]


def test_a_job_that_meets_another_waits_and_those_behind_it_too() -> None:
    transfers, store, load = pair()
    load.conflicts.add("l0")
    transfers.submit("load", 0, ("l0", None))
    transfers.submit("load", 1, ("l1", None))
    transfers.submit("store", 2, ("s2", None))
    assert (names(load), names(store)) == ([], ["s2"])
    load.conflicts.clear()
    store.end("s2")
    transfers.get_finished()
    assert names(load) == ["l0", "l1"]


def test_an_expedited_load_goes_first() -> None:
    transfers, _, load = pair(room=1)
    for job_id in (0, 1):
        transfers.submit("load", job_id, (f"l{job_id}", None))
    transfers.submit("load", 2, ("l2", None), expedited=True)
    load.end("l0")
    transfers.get_finished()
    assert names(load) == ["l2"]


def test_a_failed_load_is_tried_once_more() -> None:
    transfers, _, load = pair()
    transfers.submit("load", 7, ("l7", None))
    load.end("l7", success=False)
    assert transfers.get_finished() == []
    assert names(load) == ["l7"]
    load.end("l7", success=True)
    assert [job.success for job in transfers.get_finished()] == [True]


def test_a_load_that_fails_twice_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    transfers, _, load = pair()
    transfers.submit("load", 7, ("l7", None))
    for _ in range(2):
        load.end("l7", success=False)
        ended = transfers.get_finished()
    assert ended == [Ended(7, "load", False)]
    assert "load job 7 failed: broken" in caplog.text
    assert transfers.get_finished() == []


def test_a_failed_store_has_failed() -> None:
    transfers, store, _ = pair()
    transfers.submit("store", 7, ("s7", None))
    store.end("s7", success=False)
    assert transfers.get_finished() == [Ended(7, "store", False)]


def test_a_job_that_cannot_be_ends_as_failed_and_stops_nothing() -> None:
    transfers, store, _ = pair()
    transfers.submit("store", 0, ("bad", None))
    transfers.submit("store", 1, ("s1", None))
    transfers.refuse("load", 2, "its chunks are gone")
    assert names(store) == ["s1"]
    assert [(job.job_id, job.success) for job in transfers.get_finished()] == [
        (0, False),
        (2, False),
    ]


@pytest.mark.parametrize("room", [1, 2, 100])
def test_a_wait_ends_jobs_that_have_not_even_begun(room: int) -> None:
    transfers, store, _ = pair(room)
    for job_id in range(6):
        transfers.submit("store", job_id, (f"s{job_id}", None))
    transfers.wait({1, 4, 99})
    ended = {job.job_id for job in transfers.get_finished()}
    assert {1, 4} <= ended
    assert store.waits > 0


def test_a_wait_goes_on_for_a_load_that_is_tried_again() -> None:
    store = Handler()
    # One engine below: a wait is for jobs of both directions.
    transfers = Transfers(store, store, ConflictError)
    store.wait_success = False
    transfers.submit("load", 3, ("l3", None))
    transfers.wait({3})
    assert [job.success for job in transfers.get_finished()] == [False]
    assert store.waits == 2


def test_a_long_wait_is_told(caplog: pytest.LogCaptureFixture) -> None:
    transfers, store, _ = pair()
    store.wait_success = None
    transfers.submit("store", 5, ("s5", None))
    with caplog.at_level(logging.WARNING):
        transfers.wait({5})
    assert "waiting for 1 transfers" in caplog.text
    assert [job.job_id for job in transfers.get_finished()] == [5]


def test_a_wait_never_hangs_on_a_handler_that_takes_nothing() -> None:
    transfers, store, _ = pair(room=0)
    transfers.submit("store", 5, ("s5", None))
    transfers.wait({5})
    assert transfers.get_finished() == [Ended(5, "store", False)]
    assert store.waits == 0


def test_a_shutdown_forgets_what_waits() -> None:
    transfers, store, _ = pair(room=1)
    for job_id in range(3):
        transfers.submit("store", job_id, (f"s{job_id}", None))
    transfers.shutdown()
    assert transfers.get_finished() == []
    assert names(store) == []
