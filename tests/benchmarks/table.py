"""The table of rows, the machine it was measured on, and the file that keeps both."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import kvferry
from benchmarks.rows import Row

TIMES, TO = "\u00d7", "\u2013"
ROOT = Path(__file__).parents[2]


def median(figures: Sequence[float]) -> float:
    return statistics.median(figures)


def ratio(row: Row) -> float | None:
    return median(row.theirs) / median(row.ours) if row.theirs else None


def reached(row: Row) -> bool | None:
    """Whether the target is met by the medians; nothing for a row without one."""
    if row.at_most is not None:
        return median(row.ours) <= row.at_most
    if row.least_ratio is not None and row.theirs:
        return median(row.theirs) >= row.least_ratio * median(row.ours)
    return None


def table(rows: Sequence[Row], baseline: str) -> list[str]:
    """Markdown with columns in line, to be read as it is, too."""
    head = ["measure", "policy", "unit", baseline, "kvferry", "ratio", "target", ""]
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    texts = {0, 1, 2, 7}
    lines = [
        " | ".join(
            cell.ljust(width) if i in texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    rule = ["-" * w if i in texts else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [f"| {line} |" for line in [lines[0], " | ".join(rule), *lines[1:]]]


def _cells(row: Row) -> list[str]:
    target = ""
    if row.least_ratio is not None:
        target = f"≥ {row.least_ratio:g}{TIMES}"
    elif row.at_most is not None:
        target = f"≤ {row.at_most:g} {row.unit}"
    times = ratio(row)
    outcome = {None: "", True: "reached", False: "not reached"}[reached(row)]
    return [
        row.name,
        row.policy,
        row.unit,
        _spread(row.theirs),
        _spread(row.ours),
        "" if times is None else f"{_short(times)}{TIMES}",
        target,
        outcome,
    ]


def _spread(figures: Sequence[float]) -> str:
    """The median and, of more than a handful of rounds, where the middle 80 % lie."""
    if not figures:
        return ""
    if len(figures) < 3:
        return _short(median(figures))
    low, high = np.percentile(figures, [10, 90])
    return f"{_short(median(figures))} ({_short(low)}{TO}{_short(high)})"


def _short(figure: float) -> str:
    """Three significant digits."""
    digits = 3 if figure < 0.1 else 2 if figure < 10 else 1 if figure < 100 else 0
    return f"{figure:,.{digits}f}"


def outcome(rows: Sequence[Row]) -> list[str]:
    """How many targets are reached, and how far the others are."""
    judged = [row for row in rows if reached(row) is not None]
    missed = [row for row in judged if not reached(row)]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} targets are reached."]
    if missed:
        lines += ["Not reached:", ""]
    for row in missed:
        policy = f" ({row.policy})" if row.policy else ""
        if row.least_ratio is not None:
            got, wanted = f"{_short(ratio(row) or 0)}{TIMES}", f"{row.least_ratio:g}{TIMES}"
        else:
            got, wanted = f"{_short(median(row.ours))} {row.unit}", f"{row.at_most:g} {row.unit}"
        lines.append(f"* {row.name}{policy}: {got} instead of {wanted}")
    return lines


def machine(baseline: str) -> list[str]:
    kernel = f"{platform.system()} {platform.release().split('-')[0]}"
    python = f"CPython {platform.python_version()}, numpy {np.__version__}"
    today = f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}"
    return [
        f"* {_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB; {kernel}",
        f"* {python}, {_output('rustc', '-V')}",
        f"* kvferry {kvferry.__version__} ({_commit()}) beside {baseline}",
        f"* {today}, load {os.getloadavg()[0]:.1f} when it began",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _commit() -> str:
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD")
    sources = ("rust", "python", "Cargo.lock")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", *sources)
    return f"{commit}, changed since" if changed else commit


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"{command[0]} not found"


def write(file: Path, lines: Sequence[str], program: str) -> None:
    """Puts the lines between the two markers of `file` that name the program."""
    begin, end = (f"<!-- {which}: written by {program} -->" for which in ("begin", "end"))
    text = file.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{file} has no place for the table: {begin} … {end}")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    file.write_text("\n".join([before + begin, *lines, end]) + after)
