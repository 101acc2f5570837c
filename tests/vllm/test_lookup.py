"""One native call finds what vLLM's own loops over a prompt find."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.vllm.v026.lookup import last_window

CASES = 20_000


def scheduler_class() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler

    return scheduler.OffloadingConnectorScheduler


class Answers:
    """A manager that answers from a list: key `i` is the i-th."""

    def __init__(self, results: bytes) -> None:
        from vllm.v1.kv_offload.base import LookupResult

        names = (LookupResult.MISS, LookupResult.HIT, LookupResult.HIT_PENDING)
        self.results = [names[code] for code in results]

    def lookup(self, key: int, _context: object) -> Any:
        return self.results[key]


def draw(rng: random.Random) -> bytes:
    weights = rng.choice([(1, 8, 1), (1, 8, 0), (3, 3, 1), (0, 5, 1), (5, 1, 1)])
    return bytes(rng.choices((0, 1, 2), weights, k=rng.randrange(1, 24)))


def test_the_last_window_is_the_one_that_vllm_finds() -> None:
    rng = random.Random(1)
    found = set()
    for _ in range(CASES):
        results, window = draw(rng), rng.randrange(1, 8)
        first = window + rng.choice([0, 0, 1, 2])
        vllm = SimpleNamespace(manager=Answers(results))
        keys = range(len(results))
        theirs = scheduler_class()._sliding_window_lookup(vllm, keys, window, None, first)
        assert last_window(results, window, first) == theirs, (results, window, first)
        found.add(theirs)
    assert found >= {None, 0, 1, 8, 20}


def native(results: bytes) -> tuple[Any, list[bytes]]:
    """A scheduler with kvferry's tier, in which keys are what the list says."""
    from kvferry.integrations.vllm.config import Settings
    from kvferry.integrations.vllm.tier import Tier
    from kvferry.integrations.vllm.v026.manager import KvferryManager

    tier = Tier(64, Settings(), events=False)
    keys = [b"%032d" % index + bytes(4) for index in range(len(results))]
    record = tier.begin()
    for key, code in zip(keys, results, strict=True):
        if code:
            tier.prepare_store([key], record)
        if code == 1:
            tier.complete_store({key}, record, success=True)
    return SimpleNamespace(manager=KvferryManager(tier)), keys


@pytest.mark.parametrize("seed", range(300))
def test_a_prompt_is_looked_up_in_one_call_as_vllm_does_in_many(seed: int) -> None:
    from kvferry.integrations.vllm.v026 import connector

    rng = random.Random(seed)
    results, window = draw(rng), rng.randrange(1, 6)
    scheduler, keys = native(results)
    vllm = SimpleNamespace(
        manager=scheduler.manager, _events_tracker=SimpleNamespace(record_lookup=lambda *_: None)
    )
    own = scheduler_class()
    rest = (None, None, 0)
    expected = own._maximal_prefix_lookup(vllm, keys, None, *rest)
    assert connector._maximal_prefix_lookup(scheduler, keys, None, *rest) == expected
    expected = own._sliding_window_lookup(vllm, keys, window, None)
    assert connector._sliding_window_lookup(scheduler, keys, window, None) == expected


def test_each_hit_is_told_where_events_describe_themselves() -> None:
    from kvferry.integrations.vllm.v026 import connector

    scheduler, keys = native(bytes([1, 1, 0]))
    told: list[object] = []
    scheduler._events_tracker = SimpleNamespace(
        self_describing_enabled=True, record_lookup=lambda *arguments: told.append(arguments[-1])
    )
    assert connector._maximal_prefix_lookup(scheduler, keys, None, None, None, 0) == 2
    assert told == keys[:2]


def test_the_methods_of_this_release_are_replaced_and_others_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvferry.integrations.vllm.v026 import connector

    for name, method in connector._LOOK_UPS.items():
        assert connector._fits(name, method)
        monkeypatch.setattr(scheduler_class(), name, lambda _self, _keys: None)
        assert not connector._fits(name, method)
