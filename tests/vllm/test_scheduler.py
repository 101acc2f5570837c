"""kvferry under vLLM's real scheduler and connector: every block is right before it is used."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from scripted import ScriptedEngine
    from stand_in import Device, Fault

MODELS = Path(__file__).parent / "models.py"
BLOCK = 16


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose configuration vLLM reads; its weights are not used here."""
    destination = tmp_path_factory.mktemp("models") / "llama"
    subprocess.run([sys.executable, str(MODELS), "llama", str(destination)], check=True)
    return destination


@pytest.fixture(scope="session")
def base_config(model: Path) -> Any:
    from scripted import engine_config

    from kvferry.integrations.vllm import plugin

    plugin.register()
    return engine_config(model, "KvferryConnector", {})


@pytest.fixture
def start(
    base_config: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[ScriptedEngine, Device]]]:
    """Starts engines; at the end of the test, none of them holds anything."""
    engines: list[ScriptedEngine] = []

    def starter(
        *,
        chunks: int = 200,
        blocks: int = 64,
        groups: int = 1,
        connector: str = "KvferryConnector",
        seed: int = 1,
        fault: Fault | None = None,
        seqs: int = 8,
        **settings: Any,
    ) -> tuple[ScriptedEngine, Device]:
        from scripted import ScriptedEngine
        from stand_in import ConflictError, Device, StandInHandler

        from kvferry.integrations.vllm.transfers import Transfers
        from kvferry.integrations.vllm.v026 import spec

        made: list[Device] = []

        def make(kv_caches: Any, per_chunk: int, host_tier: Any, *_rest: Any) -> Transfers:
            kv = kv_caches.tensors[0].tensor.numpy().view(np.int64)
            host = np.full((host_tier.chunks, per_chunk, BLOCK), -1, np.int64)
            device = Device(kv, host, seed=seed)
            if fault is not None:
                device.fault = fault
            made.append(device)
            return Transfers(
                StandInHandler(device, "store"), StandInHandler(device, "load"), ConflictError
            )

        monkeypatch.setattr(spec, "make_transfers", make)
        config = copy.deepcopy(base_config)
        config.cache_config.num_gpu_blocks = blocks
        config.scheduler_config.max_num_seqs = seqs
        config.kv_transfer_config.kv_connector = connector
        config.kv_transfer_config.kv_connector_extra_config = {
            "spec_name": "kvferry",
            # A chunk takes a page of host memory, whatever is in it.
            "size": chunks * 4096,
            **settings,
        }
        engine = ScriptedEngine(config, groups)
        engines.append(engine)
        return engine, made[0]

    yield starter
    for engine in engines:
        tier = engine.tier
        stats = tier.manager.stats()
        held = (stats.pinned, stats.pending, stats.draining, tier.held_when_idle(stats))
        assert held == (0, 0, 0, 0), f"{stats}"
        tier.manager._check_invariants()


def prompts(count: int, length: int, seed: int = 7, shared: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    head = [rng.randrange(3, 1000) for _ in range(shared)]
    return [head + [rng.randrange(3, 1000) for _ in range(length - shared)] for _ in range(count)]


def run_all(engine: ScriptedEngine, asked: list[list[int]], round_: int, count: int = 4) -> None:
    from scripted import expected_output

    for index, prompt in enumerate(asked):
        engine.add(f"{round_}-{index}", prompt, count)
    engine.run()
    for index, prompt in enumerate(asked):
        assert engine.outputs[f"{round_}-{index}"] == expected_output(prompt, count)


@pytest.mark.parametrize("groups", [1, 3], ids=["full", "hybrid"])
@pytest.mark.parametrize("blocks_per_chunk", [1, 2, 4])
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_second_round_loads_what_the_first_stored(
    start: Callable[..., Any], policy: str, blocks_per_chunk: int, groups: int
) -> None:
    engine, device = start(
        policy=policy,
        blocks_per_chunk=blocks_per_chunk,
        groups=groups,
        chunks=400,
        blocks=64 if groups == 1 else 160,
    )
    asked = prompts(8, 410)
    run_all(engine, asked, 0)
    loaded = device.ended["load"]
    run_all(engine, asked, 1)
    assert device.ended["load"] >= loaded + 4
    assert engine.tier.manager.stats().hits > 0


@pytest.mark.parametrize("seqs", [1, 16])
def test_one_and_many_sequences_at_a_time(start: Callable[..., Any], seqs: int) -> None:
    engine, device = start(seqs=seqs, blocks=40)
    asked = prompts(8, 300, shared=150)
    for round_ in range(3):
        run_all(engine, asked, round_)
    assert device.ended["load"] > 0


def test_a_tier_smaller_than_a_request_is_a_normal_state(start: Callable[..., Any]) -> None:
    engine, _ = start(chunks=5, blocks=40)
    asked = prompts(4, 400)
    for round_ in range(2):
        run_all(engine, asked, round_)
    assert engine.tier.manager.stats().resident <= 5


def test_requests_that_are_preempted_come_out_right(start: Callable[..., Any]) -> None:
    engine, device = start(blocks=30, offload_prompt_only=False)
    asked = prompts(6, 120)
    run_all(engine, asked, 0, count=60)
    assert device.ended["store"] > 0
    preempted = [request for request in engine.preemptions if engine.preemptions[request]]
    assert preempted, "the pool was large enough for all: nothing was tested"


def test_aborts_of_queued_and_running_requests_hold_nothing(start: Callable[..., Any]) -> None:
    engine, _ = start(blocks=40, seed=3)
    asked = prompts(10, 300, shared=100)
    for round_ in range(3):
        for index, prompt in enumerate(asked):
            engine.add(f"{round_}-{index}", prompt, 8)
        engine.abort(f"{round_}-9")
        for index in range(5):
            engine.step()
            engine.abort(f"{round_}-{index}")
        engine.run()
    assert engine.reasons["0-9"] == "abort"
    assert len(engine.outputs["2-8"]) == 8


def test_a_reset_with_transfers_in_flight_serves_nothing_old(start: Callable[..., Any]) -> None:
    engine, device = start(blocks=50, seed=5)
    device.longest = 8
    asked = prompts(6, 300)
    in_flight = 0
    for round_ in range(8):
        for index, prompt in enumerate(asked):
            engine.add(f"{round_}-{index}", prompt, 6)
        for _ in range(3 + round_):
            engine.step()
        in_flight += engine.pending()
        engine.scheduler.reset_connector_cache()
        assert engine.tier.manager.stats().resident == 0
        engine.run()
        assert all(len(engine.outputs[f"{round_}-{i}"]) == 6 for i in range(6))
    assert in_flight >= 3, "hardly a transfer was in flight: nothing was tested"


def every(n: int, direction: str | None = None) -> Fault:
    """Fails every n-th attempt, of one direction or of both."""
    return lambda way, attempt: attempt % n == n - 1 and direction in (None, way)


@pytest.mark.parametrize("groups", [1, 3], ids=["full", "hybrid"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_with_a_faulty_worker_all_requests_end_with_right_tokens(
    start: Callable[..., Any], n: int, groups: int
) -> None:
    engine, _ = start(blocks=160 if groups > 1 else 60, groups=groups, fault=every(n), chunks=400)
    asked = prompts(8, 300, shared=64)
    for round_ in range(4):
        run_all(engine, asked, round_)
    counts = engine.tier.counts
    assert counts.failed_stores > 0
    assert n == 1 or engine.tier.manager.stats().stored > 0


@pytest.mark.parametrize("groups", [1, 3], ids=["full", "hybrid"])
def test_loads_that_always_fail_are_recomputed_and_stored_again(
    start: Callable[..., Any], groups: int
) -> None:
    engine, _ = start(blocks=160 if groups > 1 else 40, groups=groups, fault=every(1, "load"))
    asked = prompts(6, 300)
    run_all(engine, asked, 0)
    resident = engine.tier.manager.stats().resident
    for round_ in (1, 2):
        run_all(engine, asked, round_)
        assert engine.tier.counts.failed_loads > 0
        # The chunks that could not be loaded have left, and were stored again.
        assert engine.tier.manager.stats().resident == resident


def test_the_policy_fail_ends_the_request_and_nothing_else(start: Callable[..., Any]) -> None:
    engine, device = start(blocks=40)
    asked = prompts(4, 300)
    run_all(engine, asked, 0)
    engine.scheduler.recompute_kv_load_failures = False
    device.fault = every(1, "load")
    engine.add("again", asked[0], 4)
    engine.run()
    assert engine.reasons["again"] == "error"
    device.fault = every(2, "never")
    run_all(engine, asked, 1)


def test_a_load_that_fails_once_is_tried_again(start: Callable[..., Any]) -> None:
    failed: list[int] = []

    def once(direction: str, attempt: int) -> bool:
        if direction == "load" and not failed:
            failed.append(attempt)
            return True
        return False

    engine, _ = start(connector="OffloadingConnector", blocks=40, fault=once)
    asked = prompts(4, 300)
    for round_ in range(2):
        run_all(engine, asked, round_)
    assert failed
    assert engine.tier.counts.failed_loads == 0


def test_without_the_connector_a_failed_load_stops_the_engine_and_says_what_would_not(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine, device = start(connector="OffloadingConnector", blocks=40)
    asked = prompts(4, 300)
    run_all(engine, asked, 0)
    device.fault = every(1, "load")
    with pytest.raises(AssertionError):
        run_all(engine, asked, 1)
    assert "With KvferryConnector and kv_load_failure_policy=recompute it goes on" in caplog.text
    engine.scheduler.reset_connector_cache()


def test_control_a_flipped_value_in_a_stored_chunk_is_found(start: Callable[..., Any]) -> None:
    from scripted import WrongKVError

    engine, device = start(blocks=40)
    asked = prompts(4, 300)
    run_all(engine, asked, 0)
    device.chunks[0, 0, 5] ^= 1
    with pytest.raises(WrongKVError):
        run_all(engine, asked, 1)
    engine.scheduler.reset_connector_cache()


def test_control_a_zeroed_chunk_changes_the_tokens(start: Callable[..., Any]) -> None:
    from scripted import expected_output

    engine, device = start(blocks=40)
    engine.check_blocks = False
    asked = prompts(4, 300)
    run_all(engine, asked, 0)
    device.chunks[0] = 0
    for index, prompt in enumerate(asked):
        engine.add(f"1-{index}", prompt)
    engine.run()
    right = [engine.outputs[f"1-{i}"] == expected_output(p, 4) for i, p in enumerate(asked)]
    assert right.count(False) == 1


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_end_right_and_hold_nothing(start: Callable[..., Any], seed: int) -> None:
    from scripted import expected_output

    rng = random.Random(seed)
    groups = rng.choice([1, 1, 2, 3])
    engine, device = start(
        blocks=rng.choice([24, 32, 48, 64]) * groups,
        chunks=rng.choice([3, 20, 60, 300]),
        groups=groups,
        policy=rng.choice(["lru", "arc"]),
        blocks_per_chunk=rng.choice([1, 1, 2, 3]),
        offload_prompt_only=rng.random() < 0.5,
        store_threshold=rng.choice([1, 1, 2]),
        fault=every(rng.choice([4, 7, 1000])),
        seed=seed,
        seqs=rng.choice([1, 4, 16]),
    )
    device.longest = rng.choice([0, 3, 10])
    heads = prompts(3, 160, seed)
    asked: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    for number in range(60):
        head = rng.choice(heads)[: rng.randrange(0, 161)]
        prompt = head + prompts(1, rng.randrange(1, 150), number)[0]
        asked[f"r{number}"] = prompt, rng.choice([1, 4, 40])
        engine.add(f"r{number}", *asked[f"r{number}"])
        for _ in range(rng.choice([0, 1, 3, 8])):
            engine.step()
        if rng.random() < 0.15:
            victim = rng.choice([*asked])
            if victim not in engine.reasons:
                engine.abort(victim)
                aborted.add(victim)
        if rng.random() < 0.05:
            engine.scheduler.reset_connector_cache()
    engine.run()
    for name, (prompt, count) in asked.items():
        if name not in aborted:
            assert engine.outputs[name] == expected_output(prompt, count), name


def play(engine: ScriptedEngine, seed: int, *, resets: bool) -> None:
    """One history of requests, aborts and resets, the same for the same seed."""
    rng = random.Random(seed)
    heads = prompts(3, 160, seed)
    for number in range(80):
        head = rng.choice(heads)[: rng.randrange(0, 161)]
        prompt = head + prompts(1, rng.randrange(1, 150), number)[0]
        engine.add(f"r{number}", prompt, rng.choice([1, 4, 20]))
        for _ in range(rng.choice([0, 1, 3, 8])):
            engine.step()
        if rng.random() < 0.1:
            engine.abort(f"r{rng.randrange(number + 1)}")
        if rng.random() < 0.03 and resets:
            engine.scheduler.reset_connector_cache()
    engine.run()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_the_scheduler_gets_the_answers_that_vllms_own_manager_gives(
    start: Callable[..., Any], policy: str, seed: int
) -> None:
    from recorder import Recorder
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    groups, threshold, chunks = 1 + seed % 3, 1 + seed % 2, 24 + 12 * seed
    scripts = []
    for own in (True, False):
        engine, _ = start(
            connector="OffloadingConnector",
            policy=policy,
            groups=groups,
            blocks=40 * groups,
            chunks=chunks,
            store_threshold=threshold,
            seed=seed,
        )
        scheduler = engine.scheduler.connector.connector_scheduler
        kvferrys = scheduler.manager
        theirs = CPUOffloadingManager(chunks, policy, store_threshold=threshold)
        recorder = scheduler.manager = Recorder(kvferrys if own else theirs)
        # With sliding windows vLLM's own connector stores wrong bytes after a reset.
        play(engine, seed, resets=groups == 1)
        scripts.append(recorder.script)
        scheduler.manager = kvferrys
    ours, vllms = scripts
    difference = next(
        (i for i, (a, b) in enumerate(zip(ours, vllms, strict=False)) if a != b), None
    )
    assert difference is None, (difference, ours[difference], vllms[difference])
    assert len(ours) == len(vllms)
    kinds = {entry[0] for entry in ours}
    assert kinds >= {"lookup", "prepare_load", "prepare_store", "complete_load", "complete_store"}
    if seed < 2:
        stores = [entry[-1] for entry in ours if entry[0] == "prepare_store"]
        assert any(answer is not None and answer[1] for answer in stores), "nothing was evicted"


@pytest.mark.parametrize("seed", [1, 7, 11, 19])
def test_a_reset_stores_no_blocks_that_a_window_has_given_back(
    start: Callable[..., Any], seed: int
) -> None:
    groups = 1 + seed % 3
    engine, device = start(
        groups=groups,
        blocks=40 * groups,
        chunks=40 + 30 * seed,
        store_threshold=1 + seed % 2,
        seed=seed,
    )
    play(engine, seed, resets=True)
    assert device.ended["load"] > 0


def test_a_chunk_that_is_being_stored_is_waited_for_until_its_deadline(
    start: Callable[..., Any],
) -> None:
    engine, device = start(blocks=60, pending_deadline=5.0)
    now = [0]
    engine.tier._clock = lambda: now[0]
    device.longest = 0
    prompt = prompts(1, 300)[0]
    engine.add("first", prompt, 1)
    slow = 10_000
    device.random.randint = lambda _least, _most: slow
    for _ in range(6):
        engine.step()
    assert engine.tier.manager.stats().pending > 0
    # Not in the accelerator's own prefix cache any more, so the tier is asked.
    engine.scheduler.kv_cache_manager.reset_prefix_cache()
    engine.add("second", prompt, 1)
    for _ in range(20):
        engine.step()
    assert engine.outputs["second"] == [], "the store is still in flight: there was nothing to load"
    now[0] = 6_000_000
    for _ in range(20):
        engine.step()
    assert engine.outputs["second"] == engine.outputs["first"]
    assert engine.tier.counts.expired > 0
    for job in device.jobs:
        job.polls = 0
    device.random.randint = lambda _least, _most: 0
    engine.run()
