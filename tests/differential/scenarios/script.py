"""The words in which a scenario is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from differential.driver import Driver, Keys
from differential.workload import Workload, plain_workload

MakeDriver = Callable[[Workload], Driver]


@dataclass(frozen=True)
class Scenario:
    """One rule, the manager it needs, and the steps that show it."""

    name: str
    policy: str
    capacity: int
    steps: Callable[[Script], None]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, make_driver: MakeDriver, *, by_ticket: bool = False) -> None:
        """Run the steps on a new manager, with completions by key or by ticket."""
        workload = plain_workload(self.policy, self.capacity, by_ticket=by_ticket, **self.options)
        self.steps(Script(make_driver(workload)))


class Script:
    """A driver in the words of a scenario: a letter is a key of group 0, `a.1` one of group 1."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.jobs = 0
        self.requests = 0

    def request(self, positions: str = "") -> int:
        """Begin a request; `a=1 b=2` gives positions."""
        self.requests += 1
        pairs = [pair.split("=") for pair in positions.split()]
        named = keys(" ".join(name for name, _ in pairs))
        self.driver.begin(self.requests, named, tuple(int(position) for _, position in pairs))
        return self.requests

    def start_store(self, request: int, names: str, evicts: str | None = "") -> int:
        """Store all of `names`, evicting `evicts`; `None` says that the store is declined."""
        self.jobs += 1
        result = self.driver.prepare_store(request, self.jobs, keys(names))
        assert result == (None if evicts is None else (keys(names), keys(evicts))), result
        return self.jobs

    def store(self, request: int, names: str, evicts: str | None = "") -> None:
        """Store `names` and end the store."""
        job = self.start_store(request, names, evicts)
        if evicts is not None:
            self.driver.complete_store(job, keys(names), True)

    def offer(self, request: int, names: str, stored: str) -> None:
        """Offer `names`, of which `stored` are stored without an eviction, and end the store."""
        self.jobs += 1
        result = self.driver.prepare_store(request, self.jobs, keys(names))
        assert result == (keys(stored), ()), result
        self.driver.complete_store(self.jobs, keys(stored), True)

    def start_load(self, request: int, names: str) -> int:
        """Pin `names`."""
        self.jobs += 1
        assert self.driver.prepare_load(request, self.jobs, keys(names)) == "pinned"
        return self.jobs

    def load(self, request: int, names: str) -> None:
        """Pin and unpin `names`."""
        job = self.start_load(request, names)
        self.driver.complete_load(job, keys(names))

    def has(self, t1: str, t2: str = "", b1: str = "", b2: str = "", target: float = 0.0) -> None:
        """Check the lists, each from its LRU end, and ARC's target."""
        assert self.driver.lists() == (keys(t1), keys(t2), keys(b1), keys(b2))
        assert self.driver.target() == target

    def events(self, *expected: str) -> None:
        """Check the events since the last call: `stored a b`, `removed a`, `cleared`."""
        wanted = [(kind, keys(names)) for kind, _, names in (e.partition(" ") for e in expected)]
        assert self.driver.take_events() == wanted


def keys(names: str) -> Keys:
    """Return the keys that `names` stands for."""
    made = []
    for name in names.split():
        letter, _, group = name.partition(".")
        made.append(letter.encode() + int(group or 0).to_bytes(4, "big"))
    return tuple(made)


SCENARIOS: list[Scenario] = []


def scenario(
    policies: str, capacity: int, **options: Any
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register a scenario for each of `policies`."""

    def register(steps: Callable[[Script], None]) -> Callable[[Script], None]:
        SCENARIOS.extend(
            Scenario(steps.__name__, policy, capacity, steps, options)
            for policy in policies.split()
        )
        return steps

    return register
