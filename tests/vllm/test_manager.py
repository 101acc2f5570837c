"""The manager that vLLM is given decides what vLLM's own decides, and asserts nothing."""

from __future__ import annotations

import os
import time

import pytest

from differential.lockstep import run_histories
from differential.scenarios import SCENARIOS, Scenario

SEED = int(os.environ.get("KVFERRY_DIFF_SEED", "1"))
OPERATIONS = int(os.environ.get("KVFERRY_DIFF_OPS", "200000"))
POLICIES = ("lru", "arc")
# What a run has to have met, or it has proved less than it says.
CASES = {
    *("begin", "extend", "finish", "forget", "lookup", "touch", "reset", "take_events"),
    *("prepare_store", "store declined", "chunks evicted", "complete_store", "complete_store_keys"),
    *("prepare_load", "complete_load"),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_random_histories_through_the_adapter_come_out_as_in_vllm(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from adapter_driver import AdapterDriver

    from differential.vllm_driver import VllmDriver

    start = time.perf_counter()
    tally = run_histories(policy, SEED, OPERATIONS, VllmDriver, AdapterDriver)
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f"\n{policy}, the adapter against vLLM: {tally}; {seconds:.1f} s")
    assert tally.operations >= OPERATIONS
    assert set(tally.counts) >= CASES | ({"target moved"} if policy == "arc" else set())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.policy}-{s.name}")
def test_scenario_through_the_adapter(scenario: Scenario) -> None:
    from adapter_driver import AdapterDriver

    scenario.run(AdapterDriver)


def manager(chunks: int = 8, clock: object = None, **settings: object) -> object:
    from kvferry.integrations.vllm.config import Settings
    from kvferry.integrations.vllm.tier import Tier
    from kvferry.integrations.vllm.v026.manager import KvferryManager

    options = {} if clock is None else {"clock": clock}
    return KvferryManager(Tier(chunks, Settings(**settings), events=True, **options))


def keys(first: int, count: int) -> list[bytes]:
    from vllm.v1.kv_offload.base import make_offload_key

    return [make_offload_key(i.to_bytes(32, "big"), 0) for i in range(first, first + count)]


def context(name: str = "r") -> object:
    from vllm.v1.kv_offload.base import ReqContext

    return ReqContext(name)


def names(manager: object, asked: list[bytes]) -> list[str]:
    return [manager.lookup(key, context()).name for key in asked]


def end_step(manager: object) -> None:
    from vllm.v1.kv_offload.base import ScheduleEndContext

    manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))


def gauges(manager: object) -> dict[str, float]:
    return manager.get_stats().reduce()


def test_a_load_of_chunks_that_are_gone_is_no_assertion() -> None:
    from kvferry.integrations.vllm.v026.manager import UnavailableSlots

    tier = manager()
    request = context()
    tier.on_new_request(request)
    assert isinstance(tier.prepare_load(keys(0, 3), request), UnavailableSlots)
    tier.complete_load(set(keys(0, 3)), request)
    assert gauges(tier)["vllm:kvferry_loads_failed"] == 1
    assert tier.tier.manager.stats().pinned == 0


def test_completions_of_nothing_are_counted() -> None:
    tier = manager()
    request = context()
    tier.complete_store(set(keys(0, 2)), request)
    tier.complete_store(set(keys(0, 2)), request, success=False)
    tier.complete_load(set(keys(0, 2)), request)
    tier.on_request_finished(request)
    tier.on_request_finished(request)
    assert gauges(tier)["vllm:kvferry_completions_late"] == 6


def test_a_store_past_its_deadline_is_a_miss_and_keeps_its_slots_until_it_ends() -> None:
    now = 0
    tier = manager(4, clock=lambda: now, pending_deadline=2.0)
    first, second = context("a"), context("b")
    slow = tier.prepare_store(keys(0, 3), first)
    end_step(tier)
    assert names(tier, keys(0, 3)) == ["HIT_PENDING"] * 3
    now = 2_500_000
    end_step(tier)
    assert names(tier, keys(0, 3)) == ["MISS"] * 3
    assert gauges(tier)["vllm:kvferry_pending_expired"] == 3
    # Only one slot is left, as the transfer may still write to the others.
    assert tier.prepare_store(keys(10, 2), second) is None
    again = tier.prepare_store(keys(0, 1), second)
    assert set(again.store_spec.block_ids).isdisjoint(slow.store_spec.block_ids)
    # The late end frees the slots, and does not make the other request's chunk loadable.
    tier.complete_store(set(slow.keys_to_store), first)
    assert names(tier, keys(0, 1)) == ["HIT_PENDING"]
    tier.complete_store(set(again.keys_to_store), second)
    assert names(tier, keys(0, 3)) == ["HIT", "MISS", "MISS"]
    stats = gauges(tier)
    assert stats["vllm:kvferry_host_chunks_free"] == 3
    assert stats["vllm:kvferry_host_chunks_held_when_idle"] == 0


def test_metrics_go_when_vllm_clears_its_own_for_the_next_engine() -> None:
    from prometheus_client import REGISTRY, Counter
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    from kvferry.integrations.vllm.metrics import METRICS

    for name, metric in METRICS.items():
        Counter(name, metric.text, registry=REGISTRY)
    unregister_vllm_metrics()
    assert not [name for name in METRICS if name in REGISTRY._names_to_collectors]


def test_a_failed_store_leaves_nothing_behind() -> None:
    tier = manager()
    request = context()
    stored = set(tier.prepare_store(keys(0, 4), request).keys_to_store)
    tier.tier.fail(stored)
    tier.complete_store(stored, request)
    assert names(tier, keys(0, 4)) == ["MISS"] * 4
    stats = gauges(tier)
    assert stats["vllm:kvferry_stores_failed"] == 1
    assert stats["vllm:kvferry_host_chunks_free"] == 8


def test_chunks_of_a_failed_load_are_not_found_again() -> None:
    tier = manager()
    request, other = context("a"), context("b")
    tier.complete_store(set(tier.prepare_store(keys(0, 4), request).keys_to_store), request)
    tier.prepare_load(keys(0, 2), request)
    tier.prepare_load(keys(0, 4), other)
    loaded = set(keys(0, 2))
    tier.tier.fail(loaded)
    tier.complete_load(loaded, request)
    # The other load goes on reading what it has pinned.
    assert names(tier, keys(0, 4)) == ["HIT"] * 4
    tier.complete_load(set(keys(0, 4)), other)
    assert names(tier, keys(0, 4)) == ["MISS", "MISS", "HIT", "HIT"]
    stats = gauges(tier)
    assert (
        stats["vllm:kvferry_host_chunks_pinned"],
        stats["vllm:kvferry_host_chunks_draining"],
    ) == (0, 0)
    assert stats["vllm:kvferry_host_chunks_free"] == 6


def test_a_reset_with_transfers_in_flight_leaves_nothing_held() -> None:
    tier = manager()
    request = context()
    first = set(tier.prepare_store(keys(0, 4), request).keys_to_store)
    tier.complete_store(first, request)
    tier.prepare_load(keys(0, 2), request)
    tier.prepare_store(keys(4, 2), request)
    tier.reset_cache()
    stats = gauges(tier)
    assert stats["vllm:kvferry_host_chunks_free"] == 8
    assert stats["vllm:kvferry_host_chunks_held_when_idle"] == 0
    # The same request stores the same keys again, and the ticket of the old store is not used.
    again = set(tier.prepare_store(keys(4, 2), request).keys_to_store)
    tier.complete_store(again, request)
    assert names(tier, keys(4, 2)) == ["HIT", "HIT"]


def test_events_name_the_chunks_and_resets_are_left_to_vllm() -> None:
    from vllm.v1.kv_offload.base import Medium

    tier = manager(2)
    request = context()
    for first in (0, 2):
        tier.complete_store(set(tier.prepare_store(keys(first, 2), request).keys_to_store), request)
    tier.reset_cache()
    events = list(tier.take_events())
    assert [(sorted(e.keys), e.removed) for e in events] == [
        (keys(0, 2), False),
        (keys(0, 2), True),
        (keys(2, 2), False),
    ]
    assert {event.medium for event in events} == {Medium.CPU}
    assert list(tier.take_events()) == []


def test_every_reported_metric_is_defined() -> None:
    from vllm.v1.kv_offload.base import OffloadingMetricMetadata

    from kvferry.integrations.vllm.v026.spec import KvferrySpec

    definitions = KvferrySpec.build_metric_definitions({})
    assert all(isinstance(d, OffloadingMetricMetadata) for d in definitions.values())
    tier = manager(2, store_threshold=2)
    request = context()
    for _ in range(2):
        tier.prepare_store(keys(0, 2), request)
    tier.prepare_store(keys(0, 1), request)
    assert tier.prepare_store(keys(4, 1), context("b")) is not None
    stats = tier.get_stats()
    assert set(stats.data["data"]) <= set(definitions)
    # A counter is told once.
    assert "vllm:kv_offload_stores_skipped" in stats.data["data"]
    assert "vllm:kv_offload_stores_skipped" not in tier.get_stats().data["data"]
