"""Prints what `import kvferry` costs beyond the import of numpy, each run in a fresh process."""

from __future__ import annotations

import statistics
import subprocess
import sys

RUNS = 21
PROGRAM = """
import time
import numpy
started = time.perf_counter()
import kvferry
print(time.perf_counter() - started)
"""


def once() -> float:
    """Returns milliseconds."""
    command = [sys.executable, "-c", PROGRAM]
    return 1000 * float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    once()  # reads the files from disk
    times = [once() for _ in range(RUNS)]
    print(
        f"import kvferry, beyond numpy: median {statistics.median(times):.1f} ms, "
        f"{min(times):.1f} to {max(times):.1f} ms, {RUNS} processes"
    )


if __name__ == "__main__":
    main()
