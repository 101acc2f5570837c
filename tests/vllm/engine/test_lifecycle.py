"""Requests that do not run through: preempted, aborted, or the cache is reset under them."""

from __future__ import annotations

from engine.checks import assert_loaded, assert_same, assert_sound
from engine.conftest import EngineProcess, Step

ROUND: Step = ("round", {})


def test_aborted_requests_leave_nothing_behind(engines: EngineProcess) -> None:
    result = engines.run(
        ROUND, ("abort", {}), ("abort_while_loading", {}), ROUND, settings={"policy": "arc"}
    )
    expected = engines.without()
    first, abort, loading, last = result["steps"]
    assert_same(first, expected)
    assert_same(last, expected)
    # One was running, the other was still waiting for blocks.
    assert abort["queued"] == [False, True]
    assert_same(abort, _part(expected, slice(1, -1)))
    assert loading["pinned"] > 0
    assert_same(loading, _part(expected, slice(1, None)))
    assert_loaded(result)


def test_preempted_requests_store_and_load_on(engines: EngineProcess) -> None:
    wanted = {"count": 6, "length": 200, "tokens": 120, "at_once": True}
    # Room for the prompts of all, and for the answers of few.
    engine = {"num_gpu_blocks_override": 48, "max_num_seqs": 16}
    settings = {"offload_prompt_only": False}
    result = engines.run(("round", wanted), ("round", wanted), engine=engine, settings=settings)
    assert result["preemptions"] > 0
    for found in result["steps"]:
        assert_same(found, engines.without(engine=engine, **wanted))
    assert_loaded(result)


def test_nothing_is_loaded_after_a_reset(engines: EngineProcess) -> None:
    result = engines.run(ROUND, ("reset", {}), ROUND)
    first, reset, second = result["steps"]
    assert reset["done"]
    for found in (first, second):
        assert_same(found, engines.without())
        assert found["cached"] == [0] * 4
    assert_sound(result)
    assert result["blocks"][0]["loaded_blocks"] == 0


def test_resets_under_requests(engines: EngineProcess) -> None:
    result = engines.run(
        ROUND, ("reset_while_loading", {}), ROUND, ("reset_while_running", {}), ROUND, ROUND
    )
    expected = engines.without()
    loading, running = result["steps"][1], result["steps"][3]
    assert loading["pinned"] > 0
    assert loading["resident"] == 0
    assert running["done"]
    for found in result["steps"]:
        assert_same(found, expected)
    assert_loaded(result)


def _part(expected: dict[str, list[object]], which: slice) -> dict[str, list[object]]:
    return {name: expected[name][which] for name in ("tokens", "logprobs")}
