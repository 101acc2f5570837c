"""`kvferry vllm-config` prints what `vllm serve` takes."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from kvferry.cli.app import app
from kvferry.integrations.vllm.config import Settings

RELEASE = ("--release", "0.32.0")


def lines(*arguments: str, status: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["vllm-config", *arguments])
    assert result.exit_code == status, result.output
    return result.stdout.strip(), result.stderr.strip()


def test_a_size_in_bytes_uses_the_flag_of_vllm() -> None:
    line, _ = lines("--size", "64GiB", "--policy", "arc", *RELEASE)
    extra = "--kv-transfer-config.kv_connector_extra_config"
    expected = ["--kv-offloading-size", "64", f"{extra}.spec_name", "kvferry"]
    assert shlex.split(line) == [*expected, f"{extra}.policy", "arc"]


def test_a_share_is_left_to_kvferry() -> None:
    line, _ = lines("--size", "50%", "--blocks-per-chunk", "4", *RELEASE)
    flag, text = shlex.split(line)
    config = json.loads(text)
    assert flag == "--kv-transfer-config"
    assert config["kv_connector"] == "OffloadingConnector"
    extra = config["kv_connector_extra_config"]
    assert extra == {"spec_name": "kvferry", "size": "50%", "blocks_per_chunk": 4}
    assert Settings.read(extra).blocks_per_chunk == 4


def test_recomputing_takes_the_connector_of_kvferry() -> None:
    line, _ = lines("--size", "1.5TiB", "--recompute-failed-loads", *RELEASE)
    config = json.loads(shlex.split(line)[1])
    assert config["kv_connector"] == "KvferryConnector"
    assert config["kv_load_failure_policy"] == "recompute"
    assert Settings.read(config["kv_connector_extra_config"]).size == 1536 << 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "3Q", *RELEASE), "size: unknown unit 'Q'"),
        (("--size", "1GiB", "--policy", "fifo", *RELEASE), 'policy: unknown policy "fifo"'),
        (("--size", "1GiB", "--release", "0.99.1"), "vLLM 0.99.1 is none of those"),
    ],
)
def test_what_cannot_be_is_an_error(arguments: tuple[str, ...], message: str) -> None:
    out, error = lines(*arguments, status=2)
    assert out == ""
    assert message in error
    assert len(error.splitlines()) == 1


def test_without_vllm_the_release_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.cli.vllm_config.installed_release", lambda: None)
    _, error = lines("--size", "1GiB", status=2)
    assert "--release" in error
