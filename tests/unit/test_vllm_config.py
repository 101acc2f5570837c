"""The settings of vLLM's host tier: what is read, what it comes to, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.vllm.config import ConfigError, Settings, human_bytes, rows
from kvferry.integrations.vllm.memory import MemoryLimit, memory_limit
from kvferry.integrations.vllm.report import start_line

GIB = 1 << 30
LIMIT = MemoryLimit(64 * GIB, "the machine's memory")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("64GiB", 64 * GIB),
        ("1.5 gib", 3 * GIB // 2),
        ("2GB", 2_000_000_000),
        ("4096", 4096),
        (4096, 4096),
        (64.0 * GIB, 64 * GIB),
    ],
)
def test_sizes_are_read(size: object, expected: int) -> None:
    assert Settings.read({"size": size}).size == expected


def test_a_share_is_of_the_memory_that_there_is() -> None:
    tier = Settings.read({"size": "50%"}).host_tier(1 << 20, 1, LIMIT)
    assert tier.bytes == 32 * GIB


def test_the_flag_and_names_of_vllm_mean_the_same() -> None:
    theirs = Settings.read({"cpu_bytes_to_use": 64.0 * GIB, "eviction_policy": "ARC"})
    assert theirs == Settings.read({"size": "64GiB", "policy": "arc"})


def test_what_vllm_reads_itself_is_left_to_it() -> None:
    own = {"spec_name": "kvferry", "spec_module_path": "x", "self_describing_kv_events": True}
    assert Settings.read(own) == Settings()


def test_numbers_and_flags_may_come_as_text_from_the_command_line() -> None:
    read = Settings.read({"blocks_per_chunk": "4", "offload_prompt_only": "false"})
    assert (read.blocks_per_chunk, read.offload_prompt_only) == (4, False)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"sise": 1}, "sise: unknown setting: did you mean size?"),
        ({"polciy": "arc"}, "polciy: unknown setting: did you mean policy?"),
        ({"qqqq": 1}, "qqqq: unknown setting: known are block_size,"),
        ({"size": "64 GiBi"}, "size: unknown unit 'GiBi'"),
        ({"size": "101%"}, "size: a share is more than 0 % and at most 100 %"),
        ({"size": 0}, "size: the host tier needs more than nothing"),
        ({"size": True}, "size: expected a number of bytes"),
        ({"policy": "fifo"}, 'policy: unknown policy "fifo": known are'),
        ({"policy": 3}, "policy: expected the name of a policy"),
        ({"threads": 0}, "threads: must be at least 1"),
        ({"threads": 1.5}, "threads: expected a whole number"),
        ({"events": "maybe"}, "events: expected true or false"),
        ({"pending_deadline": 0}, "pending_deadline: must be more than 0 seconds"),
        ({"pending_deadline": "soon"}, "pending_deadline: expected a number of seconds"),
        ({"huge_pages": "3MiB"}, 'huge_pages: expected "off", "transparent"'),
        ({"huge_pages": []}, 'huge_pages: expected "off", "transparent"'),
        ({"numa": -1}, 'numa: expected "auto", "off"'),
        ({"size": 1, "cpu_bytes_to_use": 2}, "cpu_bytes_to_use: differs from size"),
        ({"block_size": 32, "blocks_per_chunk": 2}, "block_size: set either it"),
        ({"canonical_layout": True}, "canonical_layout: not supported by kvferry"),
        ({"secondary_tiers": [{}]}, "secondary_tiers: not supported by kvferry"),
        ({"cache_policy_module_path": "m"}, "cache_policy_module_path: not supported"),
        ({"num_cpu_blocks": 5}, "num_cpu_blocks: not supported by kvferry: set `size`"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_it(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Settings.read(extra)
    assert str(error.value).startswith(message)


def test_what_is_switched_off_is_no_request_for_it() -> None:
    off = {"canonical_layout": False, "secondary_tiers": [], "cache_policy_module_path": None}
    assert Settings.read(off) == Settings()


@pytest.mark.parametrize(("tokens", "blocks"), [(16, 1), (48, 3)])
def test_a_chunk_in_tokens_is_a_number_of_blocks(tokens: int, blocks: int) -> None:
    assert Settings.read({"block_size": tokens}).chunk_blocks(16) == blocks


@pytest.mark.parametrize(("tokens", "nearest"), [(24, "16 or 32"), (8, "16"), (40, "32 or 48")])
def test_a_chunk_that_is_no_multiple_says_which_are(tokens: int, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"block of 16: use {nearest}$"):
        Settings.read({"block_size": tokens}).chunk_blocks(16)


def test_a_rank_is_padded_to_whole_pages() -> None:
    tier = Settings.read({"size": "1MiB"}).host_tier(4000, 2, LIMIT)
    assert (tier.bytes_per_rank, tier.bytes_per_chunk, tier.chunks) == (4096, 8192, 128)
    assert tier.bytes == 1 << 20


def test_a_size_beyond_the_machine_says_what_fits() -> None:
    with pytest.raises(ConfigError, match="64 GiB: at most 64 GiB fit"):
        Settings.read({"size": "65GiB"}).host_tier(1 << 20, 1, LIMIT)


@pytest.mark.parametrize(
    ("extra", "bytes_per_rank", "message"),
    [
        ({}, 1, "size: not set: use --kv-offloading-size"),
        ({"size": 4096}, 8192, "size: 4 KiB hold no chunk: one has 8 KiB"),
        ({"size": 4096}, 0, "no KV cache to offload"),
    ],
)
def test_a_tier_without_a_chunk_is_an_error(
    extra: dict[str, Any], bytes_per_rank: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.read(extra).host_tier(bytes_per_rank, 1, LIMIT)


def test_every_setting_has_a_row_for_people() -> None:
    assert [name for name, _, _ in rows()] == list(Settings.__dataclass_fields__)
    assert all(default and text for _, default, text in rows())


def test_the_line_at_the_start_has_the_resolved_numbers() -> None:
    settings = Settings.read({"size": "1GiB", "policy": "arc", "store_threshold": 2})
    tier = settings.host_tier(64 << 10, 2, LIMIT)
    line = start_line(settings, tier, [32, 32], prompts_only=True)
    for part in ("1 GiB", "8,192 chunks of 32 tokens", "128 KiB a chunk", "4,096 bytes a token"):
        assert part in line
    assert "policy arc, 2 ranks, store_threshold 2, prompts only" in line


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (5, "5 bytes"),
        (1536, "1.5 KiB"),
        (GIB, "1 GiB"),
        (GIB + 1, "1 GiB"),
        (2047 << 20, "1.99 GiB"),
    ],
)
def test_bytes_for_people_are_rounded_down(size: int, text: str) -> None:
    assert human_bytes(size) == text


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text("MemTotal:  1048576 kB\nMemFree: 5 kB\n")
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, GIB),
        ("0::/\n", {"memory.max": "max\n"}, GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": f"{GIB // 2}"}, GIB // 2),
        ("0::/a/b\n", {"a/b/memory.max": f"{GIB // 4}", "a/memory.max": f"{GIB // 2}"}, GIB // 4),
        ("0::/of/the/host\n", {"memory.max": f"{GIB // 8}"}, GIB // 8),
        ("3:cpu:/x\n2:memory:/x\n", {"memory/x/memory.limit_in_bytes": f"{GIB // 2}"}, GIB // 2),
        ("2:memory:/x\n", {"memory/x/memory.limit_in_bytes": str(2**63 - 4096)}, GIB),
    ],
)
def test_memory_is_the_machines_or_the_control_groups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int
) -> None:
    assert memory_limit(machine(tmp_path, cgroup, files)).bytes == expected
