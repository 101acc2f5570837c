"""Tries an installed wheel: run by an environment that has kvferry and numpy only.

Prints what it found; any fault is an exception.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys


def main() -> None:
    before = set(sys.modules)
    import kvferry

    version = importlib.metadata.version("kvferry")
    if kvferry.__version__ != version:
        sys.exit(f"the module says {kvferry.__version__}, its metadata {version}")
    heavy = {"torch", "vllm", "typer", "rich", "matplotlib"} & (set(sys.modules) - before)
    if heavy:
        sys.exit(f"importing kvferry loaded {', '.join(sorted(heavy))}")
    present = [name for name in ("torch", "vllm") if importlib.util.find_spec(name)]
    if present:
        sys.exit(f"not an empty environment: it has {', '.join(present)}")
    print(f"kvferry {version} on Python {sys.version.split()[0]}: works")


if __name__ == "__main__":
    main()
