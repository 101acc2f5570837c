"""Hypothesis profiles, and the folders that tests start from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: the time of one example says more about the machine than about the code. A failing
# example is printed as a line that replays it.
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]
