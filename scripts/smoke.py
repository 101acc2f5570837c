"""Tries an installed wheel: run by an environment that has kvferry and numpy only.

Prints what it found; any fault is an exception.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys


def check(what: str, found: object, expected: object) -> None:
    if found != expected:
        sys.exit(f"{what}: {found!r}, not {expected!r}")


def use() -> None:
    """Stores, looks up, loads and evicts, with keys and ids in both of their forms."""
    import numpy as np

    import kvferry

    keys = [kvferry.make_offload_key(bytes([i]) * 32, 0) for i in range(4)]
    array = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1)
    manager = kvferry.OffloadingManager(3, policy="arc")
    check("store", bool(manager.prepare_store(keys[:2])), True)
    check("pending", manager.lookup(keys[0]), kvferry.LookupResult.HIT_PENDING)
    manager.complete_store(keys[:2])
    check("prefix", manager.lookup_prefix(array), (2, 2))
    loaded = manager.prepare_load(array[:2])
    check("ids", loaded.block_ids.dtype, np.dtype(np.int64))
    check("too much while pinned", bool(manager.prepare_store(array[2:])), False)
    manager.complete_load(array[:2])
    check("store with eviction", bool(manager.prepare_store(array[2:])), True)
    check("evicted", manager.lookup(keys[0]), kvferry.LookupResult.MISS)


def main() -> None:
    before = set(sys.modules)
    import kvferry

    heavy = {"torch", "vllm", "typer", "rich", "matplotlib"} & (set(sys.modules) - before)
    check("modules that the import loaded", heavy, set())
    version = importlib.metadata.version("kvferry")
    check("version", kvferry.__version__, version)
    present = [name for name in ("torch", "vllm") if importlib.util.find_spec(name)]
    check("not an empty environment", present, [])
    use()
    print(f"kvferry {version} on Python {sys.version.split()[0]}: works")


if __name__ == "__main__":
    main()
