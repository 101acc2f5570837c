"""kvferry and the reference decide what vLLM's own managers decide, on long random histories."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from differential.faults import FAULTS
from differential.lockstep import DifferenceError, MakeDriver, Tally, run_histories
from differential.reference_driver import ReferenceDriver
from differential.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from differential.driver import Driver

SEED = int(os.environ.get("KVFERRY_DIFF_SEED", "1"))
OPERATIONS = int(os.environ.get("KVFERRY_DIFF_OPS", "200000"))
CONTROL_OPERATIONS = 30_000
POLICIES = ("lru", "arc")
# What a run has to have met, or it has proved less than it says.
CASES = {
    *("begin", "extend", "finish", "forget", "lookup", "touch", "reset", "take_events"),
    *("prepare_store", "store declined", "chunks evicted", "complete_store", "complete_store_keys"),
    *("prepare_load", "complete_load", "late_load"),
}


def vllm_driver() -> MakeDriver:
    from differential.vllm_driver import VllmDriver

    return VllmDriver


def kvferry_driver() -> MakeDriver:
    if importlib.util.find_spec("kvferry") is None:
        pytest.skip("kvferry is not installed in this environment")
    from differential.kvferry_driver import KvferryDriver

    return KvferryDriver


def reference_driver() -> MakeDriver:
    return ReferenceDriver


SUBJECTS = [reference_driver, kvferry_driver]


def subject_name(subject: object) -> str:
    return getattr(subject, "__name__", str(subject)).removesuffix("_driver")


@pytest.mark.parametrize("subject", SUBJECTS, ids=subject_name)
@pytest.mark.parametrize("policy", POLICIES)
def test_random_histories_come_out_as_in_vllm(
    policy: str, subject: Callable[[], MakeDriver], capsys: pytest.CaptureFixture[str]
) -> None:
    make_subject = subject()
    # Long runs are for the engine; the reference changes only by hand.
    operations = OPERATIONS if subject is kvferry_driver else min(OPERATIONS, 1_000_000)
    start = time.perf_counter()
    tally = run_histories(policy, SEED, operations, vllm_driver(), make_subject)
    seconds = time.perf_counter() - start
    with capsys.disabled():
        report(f"{policy}, {subject_name(subject)} against vLLM", tally, seconds)
    assert tally.operations >= operations
    assert tally.full_comparisons >= operations // 1000
    assert set(tally.counts) >= CASES | ({"target moved"} if policy == "arc" else set())


@pytest.mark.parametrize("subject", [vllm_driver, *SUBJECTS], ids=subject_name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.policy}-{s.name}")
def test_scenario(scenario: Scenario, subject: Callable[[], MakeDriver]) -> None:
    scenario.run(subject())


@pytest.mark.parametrize(
    ("policy", "fault"),
    [(policy, fault) for policy in POLICIES for fault in FAULTS[policy]],
    ids=lambda case: getattr(case, "name", case),
)
def test_each_deliberate_fault_is_told_from_vllm(policy: str, fault: type[Driver]) -> None:
    with pytest.raises(DifferenceError):
        run_histories(policy, SEED, CONTROL_OPERATIONS, vllm_driver(), fault)


def report(title: str, tally: Tally, seconds: float) -> None:
    print(f"\n{title}: {tally}; {tally.operations / seconds:,.0f} operations a second")
