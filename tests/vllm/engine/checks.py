"""What every engine test compares."""

from __future__ import annotations

from typing import Any

import pytest

CLOSE = 0.002
"""Log-probabilities of a prompt that was loaded and of one that was computed differ by less."""


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same tokens with the same log-probabilities."""
    assert found["tokens"] == expected["tokens"]
    for ours, theirs in zip(found["logprobs"], expected["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE)


def assert_sound(result: dict[str, Any]) -> None:
    """Each block that was loaded is as it was stored, and nothing is held at the end."""
    for blocks in result["blocks"]:
        assert blocks["wrong_blocks"] == 0
        assert blocks["unknown_blocks"] == 0
    assert result["held"] == 0
    assert (result["stats"]["pinned"], result["stats"]["pending"]) == (0, 0)
    assert result["stats"]["draining"] == 0
    assert result["unavailable"] == 0
    assert result["device_blocks_in_use"] == 0


def assert_loaded(result: dict[str, Any]) -> None:
    """Blocks were loaded, as whoever counts them says."""
    assert_sound(result)
    for blocks in result["blocks"]:
        assert blocks["loaded_blocks"] > 0
    metrics = result["metrics"]
    loaded = sum(blocks["loaded_bytes"] for blocks in result["blocks"])
    assert metrics["vllm:kv_offload_load_bytes"] == loaded > 0
    assert metrics["vllm:kv_offload_store_bytes"] > 0
    assert metrics["vllm:external_prefix_cache_hits"] > 0
    assert metrics["vllm:kvferry_hits"] == result["stats"]["hits"] > 0
    assert metrics["vllm:kvferry_host_chunks_held_when_idle"] == 0
