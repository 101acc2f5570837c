"""One engine of the installed vLLM in this process, and what a test does with it.

`Session(wanted).run()` starts it, takes the steps and ends it; another may follow. What is wanted
and what comes back is JSON: `server.py` passes it on.
"""

from __future__ import annotations

import gc
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 1000
MOST_STEPS = 20_000
"""Steps after which an engine that is still busy is stuck: no test needs a tenth of them."""


class Session:
    """An engine with recorded transfers."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        from vllm.config import KVTransferConfig

        from vllm import LLM

        self.wanted = wanted
        self.offloads = wanted["connector"] is not None
        self.recorders: list[Any] = []
        self.outputs: dict[str, Any] = {}
        self.preemptions = 0
        options = dict(wanted["engine"])
        if self.offloads:
            if wanted["settings"]["spec_name"] == "kvferry":
                self._record()
            options["kv_transfer_config"] = KVTransferConfig(
                kv_connector=wanted["connector"],
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=wanted["settings"],
                **({"engine_id": wanted["engine_id"]} if "engine_id" in wanted else {}),
            )
        self.llm = LLM(
            model=wanted["model"],
            enforce_eager=True,
            dtype="float32",
            disable_log_stats=False,
            **options,
        )
        self.engine = self.llm.llm_engine
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self._count_preemptions()
        if self.offloads:
            from recording import tell_keys

            self.manager = self.scheduler.connector.connector_scheduler.manager
            tell_keys(self.manager)

    def run(self) -> dict[str, Any]:
        """Take all steps, then see what is left."""
        taken = [getattr(self, name)(**arguments) for name, arguments in self.wanted["steps"]]
        self._settle()
        result = {"steps": taken, "preemptions": self.preemptions, **self._left()}
        self._end()
        return result

    # Steps.

    def round(self, at_once: bool = False, **wanted: Any) -> dict[str, Any]:
        """Ask all prompts, one after the other or at once."""
        asked = prompts(**wanted)
        started = time.perf_counter()
        batches = [asked] if at_once else [[prompt] for prompt in asked]
        outputs = [
            output
            for batch in batches
            for output in self.llm.generate(batch, sampling(**wanted), use_tqdm=False)
        ]
        seconds = time.perf_counter() - started
        return {**answers(outputs), "seconds": seconds}

    def reset(self) -> dict[str, Any]:
        """Forget everything, on the device and in the host tier."""
        self._settle()
        return {"done": self.llm.reset_prefix_cache(reset_connector=True)}

    def harm(self, kind: str) -> dict[str, Any]:
        """Harm one block of the next load."""
        self.recorders[0].harm_next_load(kind)
        return {}

    def meet(self, fifo: str, mode: str) -> dict[str, Any]:
        """Wait for another process at a pipe: one opens it to read, one to write."""
        with Path(fifo).open(mode):
            return {}

    def abort(self, **wanted: Any) -> dict[str, Any]:
        """Abort a running and a queued request while others go on."""
        names = self._add(prompts(**wanted), sampling(**wanted))
        # The first runs, the last waits for its blocks.
        self._step_until(lambda: bool(self.scheduler.running))
        aborted = [names[0], names[-1]]
        waiting = {request.request_id for request in self.scheduler.waiting}
        queued = [name in waiting for name in self._internal(aborted)]
        self.engine.abort_request(self._internal(aborted))
        return {"queued": queued, **self._drain(names[1:-1])}

    def abort_while_loading(self, **wanted: Any) -> dict[str, Any]:
        """Abort the first request while its load is in flight; the others run meanwhile."""
        (recorder,) = self.recorders
        first, *others = prompts(**wanted)
        begun = recorder.loads_begun
        recorder.holding = True
        names = self._add([first], sampling(**wanted))
        self._step_until(lambda: recorder.loads_begun > begun)
        self.engine.abort_request(self._internal(names))
        pinned = self._tier_stats()["pinned"]
        recorder.holding = False
        return {"pinned": pinned, **self._drain(self._add(others, sampling(**wanted)))}

    def reset_while_loading(self, **wanted: Any) -> dict[str, Any]:
        """Forget the host tier while a load from it is in flight."""
        (recorder,) = self.recorders
        begun = recorder.loads_begun
        recorder.holding = True
        names = self._add(prompts(**wanted), sampling(**wanted))
        self._step_until(lambda: recorder.loads_begun > begun)
        pinned = self._tier_stats()["pinned"]
        self.llm.reset_prefix_cache(reset_connector=True)
        resident = self._tier_stats()["resident"]
        recorder.holding = False
        return {"pinned": pinned, "resident": resident, **self._drain(names)}

    def reset_while_running(self, **wanted: Any) -> dict[str, Any]:
        """Forget everything under running requests: they begin again."""
        names = self._add(prompts(**wanted), sampling(**wanted))
        self._step_until(lambda: any(r.num_output_tokens > 1 for r in self.scheduler.running))
        done = self.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        return {"done": done, **self._drain(names)}

    # How they are taken.

    def _add(self, asked: list[dict[str, Any]], how: Any) -> list[str]:
        names = [f"r{len(self.outputs) + index}" for index in range(len(asked))]
        for name, prompt in zip(names, asked, strict=True):
            self.outputs[name] = None
            self.engine.add_request(name, prompt, how)
        return names

    def _internal(self, names: list[str]) -> list[str]:
        """The ids that the engine gives requests begin with the caller's."""
        known = self.engine.output_processor.external_req_ids
        return [internal for name in names for internal in known[name]]

    def _step(self) -> None:
        for output in self.engine.step():
            if output.finished:
                self.outputs[output.request_id] = output

    def _step_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(MOST_STEPS):
            if condition():
                return
            self._step()
        raise RuntimeError("the engine never came to what was waited for")

    def _drain(self, names: list[str]) -> dict[str, Any]:
        self._step_until(lambda: all(self.outputs[name] is not None for name in names))
        return answers([self.outputs[name] for name in names])

    def _settle(self) -> None:
        """Let requests and transfers end that nobody waits for."""
        self._step_until(lambda: not (self.engine.has_unfinished_requests() or self._busy()))
        # The statistics of a step are told with the next.
        self._step()

    def _busy(self) -> bool:
        return self.offloads and self.scheduler.connector.has_pending_push_work()

    def _count_preemptions(self) -> None:
        preempt = self.scheduler._preempt_request

        def counted(*arguments: Any, **options: Any) -> Any:
            self.preemptions += 1
            return preempt(*arguments, **options)

        self.scheduler._preempt_request = counted

    def _record(self) -> None:
        """Have this process's worker make recorded transfers."""
        from recording import Faults, Recorder

        from kvferry.integrations.vllm import host, plugin
        from kvferry.integrations.vllm.v026 import spec

        plugin.register()
        faults = {name: Faults(*value) for name, value in self.wanted["faults"].items()}

        def make(caches: Any, per_chunk: int, *arguments: Any) -> Recorder:
            transfers = host.make_transfers(caches, per_chunk, *arguments)
            self.recorders.append(Recorder(transfers, caches, per_chunk, faults))
            self.recorders[-1].deaf = self.wanted.get("deaf", False)
            return self.recorders[-1]

        spec.make_transfers = make

    def _tier_stats(self) -> dict[str, float]:
        stats: dict[str, float] = self.manager.tier.manager.stats().as_dict()
        return stats

    def _left(self) -> dict[str, Any]:
        """What is there once nothing is going on any more."""
        if not self.offloads:
            return {}
        tier = self.manager.tier
        tier.manager._check_invariants()
        stats, counts = tier.manager.stats(), tier.counts
        pool = self.scheduler.kv_cache_manager.block_pool
        return {
            "blocks": self._blocks(),
            "stats": stats.as_dict(),
            "held": tier.held_when_idle(stats),
            "failed": {"store": counts.failed_stores, "load": counts.failed_loads},
            "unavailable": counts.unavailable_loads,
            "made_to_fail": {
                direction: handler.made_to_fail
                for recorder in self.recorders
                for direction, handler in recorder.faulty.items()
            },
            # One block is never given out.
            "device_blocks_in_use": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "metrics": {
                metric.name: metric.value
                for metric in self.llm.get_metrics()
                if hasattr(metric, "value")
            },
        }

    def _blocks(self) -> list[dict[str, int]]:
        """What each rank's recorder counted; those in other processes have written it down."""
        if self.recorders:
            return [recorder.counts for recorder in self.recorders]
        folder = Path(os.environ["KVFERRY_ENGINE_COUNTS"])
        return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]

    def _end(self) -> None:
        from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

        self.engine.engine_core.shutdown()
        destroy_model_parallel()
        destroy_distributed_environment()
        self.__dict__.clear()
        gc.collect()


def prompts(
    count: int = 4, length: int = 900, shared: int = 0, seed: int = 3, **_: Any
) -> list[dict[str, Any]]:
    """The same for the same numbers."""
    rng = random.Random(seed)
    head = [rng.randrange(3, VOCABULARY) for _ in range(shared)]
    return [
        {"prompt_token_ids": head + [rng.randrange(3, VOCABULARY) for _ in range(length - shared)]}
        for _ in range(count)
    ]


def sampling(tokens: int = 8, **_: Any) -> Any:
    """The most likely token each time."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, logprobs=1, ignore_eos=True)


def answers(outputs: list[Any]) -> dict[str, Any]:
    """What requests were answered, and how much of their prompts was cached."""
    chosen = [output.outputs[0] for output in outputs]
    return {
        "tokens": [list(answer.token_ids) for answer in chosen],
        "logprobs": [
            [
                step[token].logprob
                for token, step in zip(answer.token_ids, answer.logprobs, strict=True)
            ]
            for answer in chosen
        ],
        "cached": [output.num_cached_tokens for output in outputs],
    }
