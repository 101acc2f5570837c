"""Runs one engine after the other in one process: starting Python and importing vLLM costs more.

A line of JSON comes in for each, and a line that begins with `result: ` goes out. A process in
which an engine failed ends, as nobody knows what is left of it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

# Before vLLM is imported. With the engine in this process it can be looked into.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


def main() -> None:
    from session import Session

    for line in sys.stdin:
        try:
            _answer(Session(json.loads(line)).run())
        except Exception:  # noqa: BLE001 - the test is told, whatever it was
            _answer({"error": traceback.format_exc()})
            # Threads of a broken engine may hang in its end.
            os._exit(1)
    os._exit(0)


def _answer(answer: dict[str, object]) -> None:
    # vLLM may have left a line unfinished.
    print(f"\nresult: {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
