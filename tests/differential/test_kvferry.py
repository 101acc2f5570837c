"""kvferry decides as the reference does, also where vLLM leaves the decision open."""

from __future__ import annotations

import os

import pytest

import kvferry
from differential.by_key import run_by_key
from differential.kvferry_driver import KvferryDriver
from differential.lockstep import DifferenceError, run_histories
from differential.reference_driver import ReferenceDriver
from differential.scenarios import SCENARIOS, Scenario

SEED = int(os.environ.get("KVFERRY_DIFF_SEED", "1"))
OPERATIONS = 100_000
BY_KEY_OPERATIONS = 100_000
POLICIES = pytest.mark.parametrize("policy", ["lru", "arc"])


@POLICIES
@pytest.mark.parametrize("rough", [False, True], ids=["tidy", "rough"])
def test_random_histories_come_out_as_in_the_reference(policy: str, rough: bool) -> None:
    tally = run_histories(policy, SEED, OPERATIONS, ReferenceDriver, KvferryDriver, rough=rough)
    assert tally.operations >= OPERATIONS
    if rough:
        assert set(tally.counts) >= {
            *("prepare_load refused", "complete_load_keys refused", "late_load", "late_store"),
        }


@pytest.mark.parametrize("by_ticket", [False, True], ids=["by key", "by ticket"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.policy}-{s.name}")
def test_scenario(scenario: Scenario, by_ticket: bool) -> None:
    scenario.run(KvferryDriver, by_ticket=by_ticket)


class FrozenDigest(KvferryDriver):
    """An engine whose own digest of its lists stands still."""

    def digest(self) -> int:
        self._digest_at = self.manager._debug_digest() if self._digest else None
        return super().digest()


@POLICIES
def test_an_engine_whose_digest_stands_still_is_caught(policy: str) -> None:
    with pytest.raises(DifferenceError, match="digest"):
        run_histories(policy, SEED, OPERATIONS, ReferenceDriver, FrozenDigest)


@POLICIES
def test_classes_named_as_in_vllm_0_14_decide_as_that_release_did(policy: str) -> None:
    classes = {"lru": kvferry.LRUOffloadingManager, "arc": kvferry.ARCOffloadingManager}

    def make_manager(
        capacity: int,
    ) -> kvferry.LRUOffloadingManager | kvferry.ARCOffloadingManager:
        backend = kvferry.CPUBackend(block_size=16, num_blocks=capacity)
        return classes[policy](backend, enable_events=True)

    counts = run_by_key(policy, make_manager, BY_KEY_OPERATIONS)
    assert counts["evicted"] > 0
    if policy == "lru":
        assert counts["store declined"] > 0
