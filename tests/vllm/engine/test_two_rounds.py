"""Prompts that come again: the same answers with kvferry as without, and no byte wrong."""

from __future__ import annotations

import pytest
from engine.checks import assert_loaded, assert_same, assert_sound
from engine.conftest import EngineProcess, Step

ROUND: Step = ("round", {})
WHOLE_BLOCKS = 896
"""Tokens of a prompt of 900 that are in whole blocks of 32."""


@pytest.mark.parametrize("connector", ["KvferryConnector", "OffloadingConnector"])
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_answers_are_the_same(engines: EngineProcess, policy: str, connector: str) -> None:
    result = engines.run(ROUND, ROUND, connector=connector, settings={"policy": policy})
    for found in result["steps"]:
        assert_same(found, engines.without())
    assert_loaded(result)
    assert result["steps"][0]["cached"] == [0] * 4
    assert result["steps"][1]["cached"] == [WHOLE_BLOCKS] * 4
    assert result["metrics"]["vllm:external_prefix_cache_hits"] == 4 * WHOLE_BLOCKS


@pytest.mark.parametrize("blocks_per_chunk", [2, 4])
def test_chunks_of_several_blocks(engines: EngineProcess, blocks_per_chunk: int) -> None:
    # A last chunk that is not full is not stored.
    wanted = {"length": 880}
    result = engines.run(
        ("round", wanted), ("round", wanted), settings={"blocks_per_chunk": blocks_per_chunk}
    )
    for found in result["steps"]:
        assert_same(found, engines.without(**wanted))
    assert_loaded(result)
    tokens = 32 * blocks_per_chunk
    assert result["steps"][1]["cached"] == [880 // tokens * tokens] * 4


def test_a_host_tier_smaller_than_a_request(engines: EngineProcess) -> None:
    result = engines.run(ROUND, ROUND, settings={"size": "1MiB"})
    for found in result["steps"]:
        assert_same(found, engines.without())
    assert_sound(result)
    assert 0 < result["stats"]["capacity"] < WHOLE_BLOCKS // 32


@pytest.mark.parametrize("seqs", [1, 16])
def test_requests_at_once(engines: EngineProcess, seqs: int) -> None:
    wanted = {"count": 8, "length": 600, "shared": 300, "at_once": True}
    engine = {"max_num_seqs": seqs, "num_gpu_blocks_override": 60}
    steps: list[Step] = [("round", wanted)] * 3
    result = engines.run(*steps, engine=engine, settings={"policy": "arc"})
    for found in result["steps"]:
        assert_same(found, engines.without(engine=engine, **wanted))
    assert_loaded(result)


def test_control_a_flipped_byte_of_one_block_is_seen(engines: EngineProcess) -> None:
    result = engines.run(ROUND, ("harm", {"kind": "flip"}), ROUND)
    assert result["blocks"][0]["wrong_blocks"] == 1
    with pytest.raises(AssertionError):
        assert_sound(result)


def test_control_a_zeroed_block_changes_the_answers(engines: EngineProcess) -> None:
    result = engines.run(ROUND, ("harm", {"kind": "zero"}), ROUND)
    first, _, second = result["steps"]
    assert_same(first, engines.without())
    with pytest.raises(AssertionError):
        assert_same(second, engines.without())
    # The harm was in one block, and in no other request.
    assert result["blocks"][0]["wrong_blocks"] == 1
    assert second["tokens"][1:] == engines.without()["tokens"][1:]
