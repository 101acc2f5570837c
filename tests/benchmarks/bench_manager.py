"""Measures kvferry beside vLLM's manager, or beside one over `OrderedDict` where vLLM is absent.

One run on one machine prints one table: for each measure the median of its rounds and where the
middle 80 % of them lie, the ratio of the medians, and the target. Rounds of the two take turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import baseline, rows, table
from benchmarks.baseline import Baseline
from benchmarks.rows import Row
from benchmarks.tiers import status_kib, warm_pair

IMPORTS = 11
IMPORT = """
import time
import numpy
started = time.perf_counter()
import kvferry
print(1000 * (time.perf_counter() - started))
"""
HUGE_PAGES = "glibc.malloc.hugetlb=1"


@dataclass
class Measured:
    """What one part of the run found."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure_policy(policy: str, capacity: int, beside: Baseline) -> Measured:
    say(f"{policy}: warming two tiers of {capacity:,} chunks")
    pair = warm_pair(policy, capacity, beside)
    say(f"{policy}: measuring")
    lru = policy == "lru"
    found = [
        rows.one_hot(pair),
        rows.one_fresh(pair),
        rows.walked(pair),
        rows.whole_prompt(pair, "array", 30),
        rows.whole_prompt(pair, "list", 20),
        *rows.stores(pair, 40 if lru else 15),
        rows.store_beside_pins(pair, 3 if lru else 7),
        *rows.loads(pair, 15),
        rows.memory(pair, 5 if lru else 3),
    ]
    return Measured(found, pair.notes)


def measure_huge_pages(capacity: int, beside: Baseline) -> Measured:
    pair = warm_pair("lru", capacity, beside)
    share = status_kib("smaps_rollup", "AnonHugePages") / status_kib("status", "RssAnon")
    if share == 0:
        return Measured(
            notes=["huge pages: the system gave none (AnonHugePages is 0), not measured"]
        )
    note = f"huge pages: GLIBC_TUNABLES={HUGE_PAGES}, {share:.0%} of the process's memory on them"
    what = ", huge pages"
    return Measured([rows.one_fresh(pair, 4.5, what), rows.walked(pair, 4.5, what)], [note])


def measure_import(beside: Baseline) -> Measured:
    def once() -> float:
        command = [sys.executable, "-c", IMPORT]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    once()  # reads the files from disk
    times = [once() for _ in range(IMPORTS)]
    theirs = [] if beside.import_ms is None else [beside.import_ms]
    return Measured([Row("import, beyond numpy's", "", "ms", theirs, times, at_most=100)])


def apart(part: Any, *arguments: Any) -> Measured:
    """Runs one part in a copy of this process, so that it finds memory as the others found it."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(part(*arguments)))
    child.start()
    send.close()
    try:
        measured: Measured = receive.recv()
    except EOFError:
        raise SystemExit(f"{part.__name__} ended without a result") from None
    finally:
        child.join()
    return measured


def with_huge_pages(capacity: int) -> Measured:
    """Runs this program again under the tunable, which is read when a process starts."""
    say("huge pages: the same look-up in a process of its own")
    environment = os.environ | {"GLIBC_TUNABLES": HUGE_PAGES}
    command = [sys.executable, __file__, "--huge-pages-only", "--capacity", str(capacity)]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(output)
    return Measured([Row(**row) for row in found["rows"]], found["notes"])


def report(
    parts: Sequence[Measured], beside: Baseline, head: list[str]
) -> tuple[list[Row], list[str]]:
    found = [row for part in parts for row in part.rows]
    if not beside.is_vllm:
        # The ratios to reach are those to vLLM.
        found = [replace(row, least_ratio=None) for row in found]
    notes = [f"* {note}" for part in parts for note in part.notes]
    lines = ["", *head, *notes, "", *table.table(found, beside.name), "", *table.outcome(found)]
    return found, lines


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--capacity", type=int, default=1_000_000, help="chunks; 1,000,000 by default")
    option("--quick", action="store_true", help="100,000 chunks, no huge pages: for a trial")
    option("--json", type=Path, metavar="FILE", help="where every figure of every round goes")
    option("--write", type=Path, metavar="FILE", help="the markdown file that keeps the table")
    option("--huge-pages-only", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(given)
    if parsed.quick:
        parsed.capacity = min(parsed.capacity, 100_000)
    if parsed.capacity < 50_000:
        parser.error("--capacity: in fewer than 50,000 chunks the rounds would meet warm keys")
    return parsed


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    beside = baseline.load()
    if options.huge_pages_only:
        measured = measure_huge_pages(options.capacity, beside)
        rows_found = [row.as_dict() for row in measured.rows]
        print(json.dumps({"rows": rows_found, "notes": measured.notes}))
        return
    head = table.machine(beside.name)
    parts = [apart(measure_policy, policy, options.capacity, beside) for policy in ("lru", "arc")]
    if not options.quick:
        parts.append(with_huge_pages(options.capacity))
    parts.append(measure_import(beside))
    found, lines = report(parts, beside, head)
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps([row.as_dict() for row in found], indent=1))
    if options.write:
        table.write(options.write, lines, Path(__file__).name)


if __name__ == "__main__":
    main()
