"""Runs a real engine of the installed vLLM once, and writes down what it did.

A process of its own for each run: an engine changes its process for good. What comes in and goes
out is JSON; `test_engine.py` says what is asked for.

Usage: `python engine_run.py '{"model": "/path", …}'`; the line that begins with `result:` is it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

# Before vLLM is imported. With one process the engine can be looked into.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 1000
RESULT = "result: "


class Checked:
    """Transfers whose blocks are hashed on the device, before a store and after a load.

    It also does what a test asks for to the blocks of the first load: flip a byte, or zero a block.
    """

    def __init__(self, transfers: Any, caches: Any, per_chunk: int, harm: str | None) -> None:
        from kvferry.caches import address_table

        self._transfers = transfers
        self._table = address_table(caches)
        self._groups = [
            [(ref.tensor_idx, ref.page_size_bytes) for ref in refs]
            for refs in caches.group_data_refs
        ]
        self._per_chunk = per_chunk
        self._harm = harm
        self._loads: dict[int, list[tuple[tuple[int, int], int, int]]] = {}
        self._stored: dict[tuple[int, int], bytes] = {}
        self.counts = {"stored_blocks": 0, "loaded_blocks": 0, "wrong_blocks": 0, "loads": 0}

    def submit(self, direction: str, job_id: int, spec: tuple, **options: Any) -> None:
        source, destination = spec
        device, host = (source, destination) if direction == "store" else (destination, source)
        pairs = list(self._pairs(device, [int(slot) for slot in host.block_ids]))
        if direction == "store":
            for place, group, block in pairs:
                self._stored[place] = self._hash(group, block)
            self.counts["stored_blocks"] += len(pairs)
        else:
            self._loads[job_id] = pairs
        self._transfers.submit(direction, job_id, spec, **options)

    def get_finished(self) -> list[Any]:
        ended = self._transfers.get_finished()
        for job in ended:
            pairs = self._loads.pop(job.job_id, None) if job.direction == "load" else None
            if pairs is None or not job.success:
                continue
            self.counts["loads"] += 1
            if self._harm is not None:
                _, group, block = pairs[0]
                self._damage(group, block)
                self._harm = None
            for place, group, block in pairs:
                self.counts["loaded_blocks"] += 1
                self.counts["wrong_blocks"] += self._hash(group, block) != self._stored[place]
        return ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transfers, name)

    def _pairs(self, device: Any, slots: list[int]) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Each block: its place in the host tier, its group, its number on the device."""
        ids = [int(block) for block in device.block_ids]
        sizes = getattr(device, "group_sizes", None) or [len(ids)]
        missing = len(slots) * self._per_chunk - len(ids)
        indices = getattr(device, "block_indices", None) or [missing]
        at, slot = 0, 0
        for group, (size, index) in enumerate(zip(sizes, indices, strict=True)):
            first = index % self._per_chunk
            for i in range(size):
                chunk, place = divmod(first + i, self._per_chunk)
                yield (slots[slot + chunk], place), group, ids[at + i]
            at += size
            slot += -(-(first + size) // self._per_chunk) if size else 0

    def _hash(self, group: int, block: int) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for tensor, size in self._groups[group]:
            address, stride, _, _ = self._table[tensor]
            digest.update(ctypes.string_at(address + block * stride, size))
        return digest.digest()

    def _damage(self, group: int, block: int) -> None:
        for tensor, size in self._groups[group]:
            address, stride, _, _ = self._table[tensor]
            start = address + block * stride
            if self._harm == "flip":
                ctypes.memset(start, ctypes.string_at(start, 1)[0] ^ 1, 1)
                return
            ctypes.memset(start, 0, size)


class FaultyHandler:
    """Another handler, every n-th of whose transfers has failed and left rubbish."""

    def __init__(self, handler: Any, every: int) -> None:
        self._handler = handler
        self._every = every
        self._count = 0

    def get_finished(self) -> list[Any]:
        return [self._spoil(result) for result in self._handler.get_finished()]

    def _spoil(self, result: Any) -> Any:
        self._count += 1
        if self._count % self._every:
            return result
        return type(
            "Failed",
            (),
            {
                "job_id": result.job_id,
                "success": False,
                "transfer_size": None,
                "transfer_time": None,
                "error": "made to fail",
            },
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


def instrument(harm: str | None, every: int | None) -> list[Checked]:
    """Have the spec make checked transfers, and remember them."""
    from kvferry.integrations.vllm import host, plugin, support

    plugin.register()
    spec = importlib.import_module(f"{support.require().adapter}.spec")
    made: list[Checked] = []

    def make(caches: Any, per_chunk: int, *arguments: Any) -> Checked:
        transfers = host.make_transfers(caches, per_chunk, *arguments)
        if every is not None:
            transfers._store = FaultyHandler(transfers._store, every)
            transfers._load = FaultyHandler(transfers._load, every)
        made.append(Checked(transfers, caches, per_chunk, harm))
        return made[-1]

    spec.make_transfers = make
    return made


class Run:
    """One engine and what is asked of it."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        from vllm.config import KVTransferConfig

        from vllm import LLM, SamplingParams

        self.wanted = wanted
        self.checked: list[Checked] = []
        options: dict[str, Any] = {
            "max_model_len": 4096,
            "enforce_eager": True,
            "dtype": "float32",
            "disable_log_stats": False,
            **wanted["engine"],
        }
        if wanted.get("connector"):
            self.checked = instrument(wanted.get("harm"), wanted.get("every"))
            transfer = {"kv_load_failure_policy": "recompute"}
            if "engine_id" in wanted:
                transfer["engine_id"] = wanted["engine_id"]
            options["kv_transfer_config"] = KVTransferConfig(
                kv_connector=wanted["connector"],
                kv_role="kv_both",
                kv_connector_extra_config={"spec_name": "kvferry", **wanted["settings"]},
                **transfer,
            )
        self.llm = LLM(model=wanted["model"], **options)
        self.sampling = SamplingParams(
            temperature=0, max_tokens=wanted.get("tokens", 8), logprobs=1, ignore_eos=True
        )
        self.preemptions = 0
        self._count_preemptions()
        self.result: dict[str, Any] = {"rounds": []}

    @property
    def scheduler(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    def _count_preemptions(self) -> None:
        try:
            scheduler = self.scheduler
        except AttributeError:
            return  # in a process of its own
        original = scheduler._preempt_request

        def counted(*arguments: Any, **options: Any) -> Any:
            self.preemptions += 1
            return original(*arguments, **options)

        scheduler._preempt_request = counted

    def prompts(self) -> list[dict[str, Any]]:
        """The same for the same seed."""
        rng = random.Random(self.wanted.get("seed", 3))
        head = [rng.randrange(3, VOCABULARY) for _ in range(self.wanted.get("shared", 0))]
        count, length = self.wanted.get("prompts", [4, 3000])
        return [
            {
                "prompt_token_ids": head
                + [rng.randrange(3, VOCABULARY) for _ in range(length - len(head))]
            }
            for _ in range(count)
        ]

    def round(self) -> None:
        """All prompts, one after the other or at once."""
        started = time.perf_counter()
        asked = self.prompts()
        batches = [asked] if self.wanted.get("at_once") else [[prompt] for prompt in asked]
        outputs = [
            output
            for batch in batches
            for output in self.llm.generate(batch, self.sampling, use_tqdm=False)
        ]
        self.result["rounds"].append(
            {
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "logprobs": [
                    [next(iter(step.values())).logprob for step in output.outputs[0].logprobs]
                    for output in outputs
                ],
                "cached": [output.num_cached_tokens for output in outputs],
                "seconds": time.perf_counter() - started,
            }
        )

    def aborts(self) -> None:
        """Abort a running request and a queued one while others go on."""
        engine = self.llm.llm_engine
        for index, prompt in enumerate(self.prompts()):
            engine.add_request(f"a{index}", prompt, self.sampling)
        for step in range(6):
            if step == 2:
                engine.abort_request(self._ids(["a0"]))
            if step == 3:
                engine.abort_request(self._ids(["a3"]))
            engine.step()
        while engine.has_unfinished_requests():
            engine.step()

    def _ids(self, names: list[str]) -> list[str]:
        """Later releases know a request by an id of their own that begins with the caller's."""
        known = getattr(self.llm.llm_engine.output_processor, "external_req_ids", None)
        if not known:
            return names
        return [internal for name in names for internal in known.get(name, [name])]

    def reset(self) -> None:
        """Forget everything, in the accelerator's cache and in the host tier."""
        try:
            self.llm.reset_prefix_cache(reset_connector=True)
        except TypeError:
            self.llm.reset_prefix_cache()

    def settle(self) -> None:
        """Let transfers end that nobody waits for."""
        for _ in range(200):
            self.llm.llm_engine.engine_core.get_output() if self._busy() else None

    def _busy(self) -> bool:
        connector = self.scheduler.connector
        pending: Callable[[], bool] | None = getattr(connector, "has_pending_push_work", None)
        return pending is not None and pending()

    def finish(self) -> dict[str, Any]:
        self.result["preemptions"] = self.preemptions
        if self.checked:
            totals: dict[str, int] = {}
            for checked in self.checked:
                for name, value in checked.counts.items():
                    totals[name] = totals.get(name, 0) + value
            self.result["blocks"] = totals
        if self.wanted.get("connector"):
            self.settle()
            tier = self.scheduler.connector.connector_scheduler.manager.tier
            stats = tier.manager.stats()
            self.result["stats"] = stats.as_dict()
            self.result["held"] = tier.held_when_idle(stats)
            counts = tier.counts
            self.result["failed"] = [counts.failed_stores, counts.failed_loads]
        return self.result


def main() -> None:
    run = Run(json.loads(sys.argv[1]))
    for step in run.wanted["steps"]:
        getattr(run, step)()
    result = run.finish()
    # Workers in processes of their own end with it.
    run.llm.llm_engine.engine_core.shutdown()
    print(f"\n{RESULT}{json.dumps(result)}")
    sys.stdout.flush()
    # Threads of the engine may hang in its end; what was asked for has been written.
    os._exit(0)


if __name__ == "__main__":
    main()
