"""The study's LRU and ARC figures, reproduced by the engine.

The five workloads are not part of the repository: `KVFERRY_TRACES` names their folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvferry import _core

CAPACITIES = ["1%", "2.5%", "5%", "10%", "20%", "40%"]

# Hit ratio in per cent by an independent simulator, for chunks of 512 tokens.
PUBLISHED = {
    ("conv", "lru"): [5.44, 10.04, 20.22, 28.82, 35.85, 37.55],
    ("conv", "arc"): [5.93, 9.98, 18.67, 28.61, 32.95, 37.41],
    ("syn", "lru"): [3.7, 8.81, 15.5, 25.73, 39.52, 55.55],
    ("syn", "arc"): [3.74, 8.37, 14.13, 25.97, 40.41, 57.98],
    ("agA", "lru"): [2.7, 19.25, 52.51, 82.9, 92.01, 93.96],
    ("agA", "arc"): [2.65, 17.94, 50.14, 81.47, 91.44, 93.81],
    ("agB", "lru"): [0.58, 2.63, 17.73, 59.14, 87.2, 94.17],
    ("agB", "arc"): [1.07, 2.55, 17.59, 56.93, 86.55, 93.82],
    ("mixA", "lru"): [12.16, 40.27, 55.62, 66.2, 71.28, 73.53],
    ("mixA", "arc"): [11.67, 37.94, 55.16, 66.4, 71.31, 73.4],
}

# Requests and chunks of 512 tokens in all requests, as the workloads' description has them.
SIZES = {
    "conv": (12031, 276491),
    "syn": (2886, 117888),
    "agA": (4577, 955669),
    "agB": (5443, 1038004),
    "mixA": (14343, 758038),
}


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("name", SIZES)
def test_hit_ratios_are_the_published_ones(name: str, policy: str, repository: Path) -> None:
    beside = repository.parent / "shared" / "traces"
    folder = Path(os.environ.get("KVFERRY_TRACES", beside))
    path = folder / f"{name}.jsonl.zst"
    if not path.is_file():
        pytest.skip(f"the published workload {name} is not in {folder}: set KVFERRY_TRACES")
    rows = _core.replay(path, policies=[policy], capacities=CAPACITIES)
    assert {(row["requests"], row["chunks"]) for row in rows} == {SIZES[name]}
    percentages = [100 * row["hit_ratio"] for row in rows]
    assert percentages == pytest.approx(PUBLISHED[name, policy], abs=0.1)
