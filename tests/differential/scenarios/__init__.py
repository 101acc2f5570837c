"""Short histories worked out by hand, one per rule, for any driver.

The same scenarios run on vLLM's managers, on the reference and on kvferry. So the expectations here
are not what we believe of vLLM but what it does.
"""

from differential.scenarios import arc, shared
from differential.scenarios.script import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "arc", "shared"]
