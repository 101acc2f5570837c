"""Tests that need torch; tensors are on the CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch", reason="these tests need torch")


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.torch)


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program of its own, which must end by itself."""

    def run(source: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(source)
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", "-W", "error", str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
