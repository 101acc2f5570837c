"""The reference managers decide as the scenarios say that vLLM does."""

from __future__ import annotations

import pytest

from differential.reference_driver import ReferenceDriver
from differential.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("by_ticket", [False, True], ids=["by key", "by ticket"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.policy}-{s.name}")
def test_scenario(scenario: Scenario, by_ticket: bool) -> None:
    scenario.run(ReferenceDriver, by_ticket=by_ticket)


def test_scenarios_have_names_of_their_own() -> None:
    names = [(scenario.policy, scenario.name) for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
