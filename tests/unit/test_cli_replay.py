"""`kvferry replay` from its options to its files."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from kvferry import WrongByteError, __version__, _core
from kvferry.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

TRACE = "".join(
    json.dumps(
        {
            "timestamp": 1000 * i,
            "input_length": 512 * 4,
            "output_length": 1,
            "hash_ids": [0, 10 * (i % 7), 10 * (i % 7) + 1, 1000 + i],
        }
    )
    + "\n"
    for i in range(100)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text(TRACE)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """The message of a command that must end with status 2 and nothing on standard output."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_version_is_the_packages() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"kvferry {__version__}\n")


def test_the_table_shows_what_the_json_file_holds(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = ("--policy", "lru,arc", "--capacity", "10%, 50%,64", "--json", out)
    result = run("replay", trace, *options)
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())
    assert [(row["policy"], row["capacity"], row["capacity_chunks"]) for row in rows] == [
        (policy, capacity, chunks)
        for policy in ("lru", "arc")
        for capacity, chunks in (("10%", 11), ("50%", 57), ("64", 64))
    ]
    assert {(row["trace"], row["seed"], row["requests"], row["chunks"]) for row in rows} == {
        (str(trace), None, 100, 400)
    }
    for policy in ("lru", "arc"):
        hits, stored = (line for line in result.stdout.splitlines() if f" {policy} " in line)
        for row in (row for row in rows if row["policy"] == policy):
            assert f" {100 * row['hit_ratio']:.2f} " in hits
            assert f" {row['stored']} " in stored
    assert "100 requests, 400 chunks of 512 tokens" in result.stdout
    assert result.stderr == ""


def test_no_figure_is_cut_however_narrow_the_terminal(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = run("replay", trace, "--capacity", "10%,20%,30%,40%,50%", "--policy", "lru")
    monkeypatch.setenv("COLUMNS", "20")
    narrow = run("replay", trace, "--capacity", "10%,20%,30%,40%,50%", "--policy", "lru")
    assert "…" not in narrow.stdout
    assert len(narrow.stdout.splitlines()) == len(wide.stdout.splitlines())


def test_without_a_trace_the_built_in_workload_is_replayed_with_the_seed(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    result = run("replay", "--policy", "lru", "--capacity", "5%", "--seed", 3, "--json", out)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(out.read_text())
    assert (row["trace"], row["seed"]) == ("built-in", 3)
    assert "built-in workload, seed 3" in result.stdout


def test_moved_and_verified_bytes_are_in_the_table_and_the_json_file(
    trace: Path, tmp_path: Path
) -> None:
    output = tmp_path / "rows.json"
    result = run(
        "replay", trace, "--capacity", "50", "--move-bytes", "--chunk-bytes", 4096, "--json", output
    )
    assert result.exit_code == 0, result.output
    assert "bytes verified" in result.stdout
    for row in json.loads(output.read_text()):
        assert row["moved"]["bytes_verified"] == 4096 * row["hit_chunks"] > 0
        assert f"{row['moved']['bytes_verified']:,}" in result.stdout


def test_failed_transfers_are_in_the_table(trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    options = ["--capacity", "50", "--policy", "lru", "--move-bytes", "--fault-rate", "0.3"]
    result = run("replay", trace, *options, "--json", output)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(output.read_text())
    failed = row["moved"]["failed_loads"] + row["moved"]["failed_stores"]
    assert failed > 0
    assert result.stdout.rstrip().splitlines()[-1].split()[-1] == str(failed)


def test_a_wrong_byte_ends_with_status_1(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(*_: object, **__: object) -> None:
        raise WrongByteError("wrong byte: chunk 7")

    monkeypatch.setattr(_core, "replay", replay)
    result = run("replay", trace, "--move-bytes")
    assert result.exit_code == 1
    assert "wrong byte: chunk 7" in result.stderr


def test_a_fault_rate_without_bytes_is_noted_as_unused(trace: Path) -> None:
    result = run("replay", trace, "--capacity", "50", "--fault-rate", "0.5")
    assert result.exit_code == 0
    assert "--fault-rate has no effect" in result.stderr


def test_a_seed_for_a_trace_file_is_noted_as_unused(trace: Path) -> None:
    result = run("replay", trace, "--seed", 3, "--capacity", "50%")
    assert result.exit_code == 0
    assert "has no effect on a trace file" in result.stderr


def test_chunk_and_block_sizes_reach_the_replay(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    result = run("replay", trace, "--chunk-tokens", 1024, "--capacity", "50%", "--json", out)
    assert result.exit_code == 0, result.output
    assert {row["chunks"] for row in json.loads(out.read_text())} == {200}
    message = refused("replay", trace, "--block-tokens", 256)
    assert "small.jsonl:1: 4 blocks of 256 tokens listed for 2048 input tokens" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--capacity", "0%"], 'capacity "0%": a percentage is above 0 and at most 100'),
        (["--capacity", "150%"], 'capacity "150%": a percentage is above 0 and at most 100'),
        (["--capacity", "abc"], 'capacity "abc": expected a percentage such as 2.5%'),
        (["--capacity", "5%,,10%"], 'capacity "": expected a percentage'),
        (["--capacity", "0.1%"], 'capacity "0.1%" of 115 unique chunks is less than one chunk'),
        (["--capacity", "0"], "at least one chunk is needed"),
        (["--policy", "lru,nosuch"], 'unknown policy "nosuch"'),
        (["--policy", ""], "unknown policy"),
        (["--chunk-tokens", "0"], "--chunk-tokens"),
        (["--chunk-tokens", "700"], "chunks of 700 tokens cannot be made of"),
        (["--chunk-tokens", "8192"], "no request of the trace fills a chunk of 8192 tokens"),
        (["--seed", "-1"], "--seed"),
        (["--nosuch"], "No such option"),
    ],
)
def test_bad_options_are_clear_errors(trace: Path, options: list[str], message: str) -> None:
    assert message in " ".join(refused("replay", trace, *options).split())


def test_a_bad_trace_is_an_error_with_file_and_line(trace: Path) -> None:
    trace.write_text(TRACE + '{"timestamp": 1}\n')
    assert f"{trace}:101: malformed line" in refused("replay", trace)
    trace.write_text("")
    assert f"{trace}: no request in it" in refused("replay", trace)
    assert f"{trace}x: No such file" in refused("replay", f"{trace}x")
    assert "directory" in refused("replay", trace.parent)


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("name", ["nosuch/out.png", "small.jsonl/out.png", "folder.png"])
def test_files_that_cannot_be_written_are_refused_before_the_replay(
    trace: Path, option: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trace.parent / "folder.png").mkdir()

    def unexpected(*_arguments: object, **_options: object) -> None:
        pytest.fail("the replay has started")

    monkeypatch.setattr(_core, "replay", unexpected)
    assert name in refused("replay", trace, option, trace.parent / name)


def test_a_plot_of_unknown_kind_is_refused(trace: Path) -> None:
    message = refused("replay", trace, "--plot", trace.parent / "out.bmp")
    assert "expected a name ending in .png or .svg" in message


def test_a_plot_without_matplotlib_says_how_to_get_it(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused("replay", trace, "--plot", trace.parent / "out.png")
    assert "pip install 'kvferry[cli]'" in message


def test_plots_are_pictures_of_every_policy(trace: Path, tmp_path: Path) -> None:
    png, svg = tmp_path / "plot.png", tmp_path / "plot.SVG"
    for path in (png, svg):
        result = run("replay", trace, "--capacity", "10%,20%,50%", "--plot", path)
        assert result.exit_code == 0, result.output
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert len(png.read_bytes()) > 10_000
    comments = {node.text for node in ET.parse(svg, _with_comments()).iter(ET.Comment)}  # noqa: S314 - own file
    words = {(text or "").strip() for text in comments}
    assert {"lru", "arc", "10%", "20%", "50%", "hit ratio, % of chunks"} <= words


def _with_comments() -> ET.XMLParser:
    """Matplotlib draws text as outlines and leaves its words in comments."""
    return ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))  # noqa: S314 - own file


def test_equal_rows_draw_equal_files(trace: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run("replay", trace, "--capacity", "10%,50%", "--plot", path).exit_code == 0
    assert first.read_bytes() == second.read_bytes()


def test_a_name_with_markup_is_printed_and_drawn_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a [bold]$b_$ c.jsonl"
    path.write_text(TRACE)
    result = run("replay", path, "--capacity", "50%", "--plot", tmp_path / "plot.svg")
    assert result.exit_code == 0, result.output
    assert "a [bold]$b_$ c.jsonl" in result.stdout


def test_a_failed_replay_leaves_earlier_results_alone(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    out.write_text("earlier")
    trace.write_text(TRACE + "broken\n")
    refused("replay", trace, "--json", out)
    assert out.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "small.jsonl"]


def test_results_replace_a_file_through_a_link_and_keep_its_mode(
    trace: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("earlier")
    target.chmod(0o640)
    link.symlink_to(target)
    assert run("replay", trace, "--capacity", "50%", "--json", link).exit_code == 0
    assert link.is_symlink()
    assert len(json.loads(target.read_text())) == 2
    assert target.stat().st_mode & 0o777 == 0o640


def test_an_interrupted_replay_ends_with_status_130(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_core, "replay", interrupted)
    result = run("replay", trace, "--json", trace.parent / "rows.json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "kvferry: interrupted\n"
    assert not (trace.parent / "rows.json").exists()
