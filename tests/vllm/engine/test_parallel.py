"""Several workers in an engine, several engines on a machine, and what a killed start left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine.checks import assert_loaded, assert_same
from engine.conftest import EngineProcess, Step

ROUND: Step = ("round", {})
TWO_WORKERS = {"tensor_parallel_size": 2}
RECORDED = {"spec_name": "RecordedSpec", "spec_module_path": "recorded_spec"}

LEFT_ALONE = """
import sys
from kvferry import PinnedRegion
PinnedRegion.open(sys.argv[1], rank=0, ranks=2, slots=4, slot_bytes=4096)
"""

Start = Callable[..., EngineProcess]


@pytest.fixture
def start(models: Path, tmp_path: Path) -> Iterator[Start]:
    """Makes processes for engines beside the usual one."""
    processes: list[EngineProcess] = []

    def make(**environment: str) -> EngineProcess:
        log = tmp_path / f"log-{len(processes)}"
        processes.append(EngineProcess(models, log, environment))
        return processes[-1]

    yield make
    for process in processes:
        process.end()


def test_two_workers_share_a_region_beside_what_a_killed_start_left(
    start: Start, tmp_path: Path
) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    engines = start(KVFERRY_ENGINE_COUNTS=str(counts), VLLM_CPU_OMP_THREADS_BIND="0|1")
    name = f"engine-test-{os.getpid()}"
    left = _killed_start(name)
    try:
        result = engines.run(ROUND, ROUND, engine=TWO_WORKERS, settings=RECORDED, engine_id=name)
        # The region has no name once all ranks have it.
        assert not left.exists()
    finally:
        left.unlink(missing_ok=True)
    expected = engines.without(engine=TWO_WORKERS)
    for found in result["steps"]:
        assert_same(found, expected)
    assert_loaded(result)
    assert len(result["blocks"]) == 2
    assert result["blocks"][0] == result["blocks"][1]


def test_two_engines_at_once_keep_apart(
    engines: EngineProcess, start: Start, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # They meet between their rounds, so that both are there at once. The prompts differ.
    asked = [{"seed": 3}, {"seed": 4}]
    both = [start(), start()]
    for process, mode, wanted in zip(both, ("r", "w"), asked, strict=True):
        meet: Step = ("meet", {"fifo": str(fifo), "mode": mode})
        process.ask(("round", wanted), meet, ("round", wanted), meet)
    for process, wanted in zip(both, asked, strict=True):
        result = process.answer()
        for index in (0, 2):
            assert_same(result["steps"][index], engines.without(**wanted))
        assert_loaded(result)


def _killed_start(name: str) -> Path:
    """The file of a region whose maker was killed while it waited for the other rank."""
    path = Path("/dev/shm") / f"kvferry-{name}"  # noqa: S108 - where regions are
    process = subprocess.Popen([sys.executable, "-c", LEFT_ALONE, name])
    while not path.exists():
        assert process.poll() is None
    process.kill()
    process.wait()
    assert path.exists()
    return path
