"""Transfers that fail: every request ends with the right answer, and nothing is held."""

from __future__ import annotations

import pytest
from engine.checks import assert_loaded, assert_same, assert_sound
from engine.conftest import EngineProcess, Step

ROUND: Step = ("round", {})


def test_a_load_that_fails_once_is_tried_again(engines: EngineProcess) -> None:
    # With vLLM's own connector as well.
    result = engines.run(
        ROUND, ROUND, ROUND, connector="OffloadingConnector", faults={"load": (2, 1)}
    )
    for found in result["steps"]:
        assert_same(found, engines.without())
    assert_loaded(result)
    assert result["made_to_fail"]["load"] == 4
    assert result["failed"] == {"store": 0, "load": 0}


@pytest.mark.parametrize("every", [1, 2])
def test_what_cannot_be_loaded_is_computed(engines: EngineProcess, every: int) -> None:
    result = engines.run(*[ROUND] * 4, faults={"load": (every, 2)})
    for found in result["steps"]:
        assert_same(found, engines.without())
    assert_sound(result)
    assert result["failed"]["load"] > 1
    assert result["made_to_fail"]["load"] == 2 * result["failed"]["load"]
    # Where every load fails nothing was loaded; else some of it was.
    assert (result["blocks"][0]["loaded_blocks"] > 0) == (every > 1)


def test_what_could_not_be_stored_is_not_found(engines: EngineProcess) -> None:
    result = engines.run(*[ROUND] * 3, faults={"store": (2, 1)})
    for found in result["steps"]:
        assert_same(found, engines.without())
    assert_loaded(result)
    assert result["failed"]["store"] == result["made_to_fail"]["store"] > 1


def test_stores_and_loads_fail_under_requests_at_once(engines: EngineProcess) -> None:
    wanted = {"count": 8, "length": 600, "shared": 300, "at_once": True}
    engine = {"max_num_seqs": 16, "num_gpu_blocks_override": 60}
    result = engines.run(
        *[("round", wanted)] * 4, engine=engine, faults={"store": (3, 1), "load": (2, 2)}
    )
    for found in result["steps"]:
        assert_same(found, engines.without(engine=engine, **wanted))
    assert_sound(result)
    assert result["failed"]["store"] > 0
    assert result["failed"]["load"] > 0


def test_control_a_failure_that_nobody_hears_of_changes_the_answers(
    engines: EngineProcess,
) -> None:
    # What a failed load leaves in its blocks is harmful: here such a load counts as a success.
    result = engines.run(ROUND, ROUND, faults={"load": (1, 2)}, deaf=True)
    first, second = result["steps"]
    assert_same(first, engines.without())
    with pytest.raises(AssertionError):
        assert_same(second, engines.without())
