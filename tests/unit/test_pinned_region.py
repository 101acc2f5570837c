"""`PinnedRegion` through Python: ranks in processes of their own, refusals, what it reports."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from kvferry import PinnedRegion, RegionError


def opened(directory: Path, rank: int = 0, ranks: int = 1, **options: Any) -> PinnedRegion:
    options.setdefault("slots", 4)
    options.setdefault("slot_bytes", 4096)
    options.setdefault("timeout", 60)
    return PinnedRegion.open("test", rank=rank, ranks=ranks, directory=directory, **options)


def member(directory: Path, rank: int, ranks: int, seen: Any) -> None:
    region = opened(directory, rank, ranks)
    region.set_failed(rank, True)
    seen.put((rank, region.nonce, region.bytes))
    seen.close()
    seen.join_thread()


def test_ranks_of_an_engine_share_one_region_and_leave_no_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    seen = context.Queue()
    others = [context.Process(target=member, args=(tmp_path, rank, 3, seen)) for rank in (1, 2)]
    for process in others:
        process.start()
    region = opened(tmp_path, 0, 3)
    told = sorted(seen.get(timeout=60) for _ in others)
    for process in others:
        process.join(60)
        assert process.exitcode == 0
    assert told == [(rank, region.nonce, region.bytes) for rank in (1, 2)]
    assert list(tmp_path.iterdir()) == []
    assert [region.is_failed(slot) for slot in range(4)] == [False, True, True, False]
    first, second = region.rank_area(0), region.rank_area(1)
    assert second[0] >= first[0] + first[1]
    assert first[1] == second[1] == 4 * 4096


def test_ranks_with_equal_bytes_share_one_area(tmp_path: Path) -> None:
    def join(regions: list[PinnedRegion]) -> None:
        regions.append(opened(tmp_path, 1, 2, shared=True))

    others: list[PinnedRegion] = []
    thread = threading.Thread(target=join, args=(others,))
    thread.start()
    region = opened(tmp_path, 0, 2, shared=True)
    thread.join(60)
    assert region.rank_area(0) == region.rank_area(1)
    assert others[0].nonce == region.nonce


def test_the_report_is_one_line_and_names_the_size(tmp_path: Path) -> None:
    region = opened(tmp_path, slots=256)
    assert "\n" not in region.report
    assert "MiB" in region.report
    assert "256 slots" in repr(region)


def test_progress_is_told_and_an_exception_in_it_ends_the_start(tmp_path: Path) -> None:
    stages: list[str] = []
    opened(tmp_path, progress=lambda stage, *_: stages.append(stage))
    assert "touching" in stages

    def stop(stage: str, *_: int) -> None:
        if stage == "touching":
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        opened(tmp_path, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_never_comes_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RegionError, match="did not come"):
        opened(tmp_path, 0, 2, timeout=0.2)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_the_wait(tmp_path: Path) -> None:
    def interrupt(stage: str, *_: int) -> None:
        if stage == "waiting":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, 0, 2, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rank": 2, "ranks": 2}, "rank"),
        ({"ranks": 65}, "rank"),
        ({"slots": 0}, "slots"),
        ({"slots": 2**63, "slot_bytes": 2**63}, "slots"),
        ({"huge_pages": "some"}, "huge_pages"),
        ({"timeout": -1.0}, "timeout"),
    ],
)
def test_a_bad_argument_is_named(tmp_path: Path, options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        opened(tmp_path, **options)


def test_more_than_the_machine_has_is_refused_at_once() -> None:
    with pytest.raises((MemoryError, RegionError)):
        PinnedRegion.private(1 << 50, 1)


def test_a_slot_that_is_not_there_cannot_be_marked() -> None:
    region = PinnedRegion.private(8192, 2)
    with pytest.raises(ValueError, match="slot"):
        region.set_failed(2, True)
    with pytest.raises(ValueError, match="rank"):
        region.rank_area(1)
