"""The real scheduler and connector of vLLM, with a worker whose KV can be read.

There is no model. The KV of a token is a hash of all tokens up to it, so that any wrong block
shows; the next token is made from the KV that the worker finds, so that it shows in the output too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
VOCABULARY = 1000
WINDOW = 4 * BLOCK
PAGE = BLOCK * 8


def kv_of(tokens: Iterable[int], group: int = 0) -> npt.NDArray[np.int64]:
    """The KV of each token of a prefix, in one KV-cache group."""
    state = hashlib.blake2b(bytes([group]), digest_size=8)
    values = []
    for token in tokens:
        state.update(token.to_bytes(4, "little"))
        values.append(int.from_bytes(state.digest(), "little", signed=True))
    return np.array(values, dtype=np.int64)


def next_token(kv: int) -> int:
    """The token that follows, made from the last one's KV."""
    return 3 + kv % (VOCABULARY - 3)


def expected_output(prompt: list[int], count: int) -> list[int]:
    """What a request generates if no KV is ever wrong."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(int(kv_of(tokens)[-1])))
    return tokens[len(prompt) :]


def engine_config(
    model: Path, connector: str, settings: dict[str, Any], **overrides: Any
) -> VllmConfig:
    """Make the configuration as vLLM makes it from arguments."""
    options: dict[str, Any] = {
        "max_model_len": 2048,
        "block_size": BLOCK,
        "num_gpu_blocks_override": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "kv_load_failure_policy": "recompute",
    }
    options |= overrides
    transfer = KVTransferConfig(
        kv_connector=connector,
        kv_role="kv_both",
        kv_load_failure_policy=options.pop("kv_load_failure_policy"),
        kv_connector_extra_config=settings,
    )
    blocks = options["num_gpu_blocks_override"]
    config = EngineArgs(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        async_scheduling=False,
        kv_transfer_config=transfer,
        **options,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    return config


def cache_config(blocks: int, groups: int = 1) -> KVCacheConfig:
    """One group of full attention, and more of sliding windows that overlay it."""
    shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 4, "dtype": torch.int8}
    specs = [FullAttentionSpec(**shape)]
    specs += [SlidingWindowSpec(**shape, sliding_window=WINDOW) for _ in range(groups - 1)]
    tensor = KVCacheTensor(
        size=blocks * PAGE, layers=["layer0"], layer_stride=blocks * PAGE, block_stride=PAGE
    )
    return KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)
        ],
    )


class WrongKVError(AssertionError):
    """A block holds what it should not."""


@dataclass
class ScriptedEngine:
    """Runs requests to their end, step by step, and checks every block before it is used.

    Attributes:
        config: vLLM's.
        groups: KV-cache groups.
    """

    config: VllmConfig
    groups: int = 1
    check_blocks: bool = True
    outputs: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        init_none_hash(sha256)
        self.blocks = self.config.cache_config.num_gpu_blocks
        caches = cache_config(self.blocks, self.groups)
        self.scheduler = Scheduler(
            vllm_config=self.config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.worker = KVConnectorFactory.create_connector(
            self.config, KVConnectorRole.WORKER, caches
        )
        self.memory = torch.zeros((self.blocks, PAGE), dtype=torch.int8)
        self.worker.connector_worker._init_worker(
            CanonicalKVCaches(
                [CanonicalKVCacheTensor(self.memory, PAGE)],
                [[CanonicalKVCacheRef(0, PAGE)] for _ in range(self.groups)],
            )
        )
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    @property
    def kv(self) -> npt.NDArray[np.int64]:
        """The device's memory, token by token."""
        return self.memory.numpy().view(np.int64)

    @property
    def tier(self) -> Any:
        """The bookkeeping of kvferry."""
        return self.scheduler.connector.connector_scheduler.manager.tier

    def add(self, name: str, prompt: list[int], count: int = 4, **params: Any) -> None:
        self.outputs[name] = []
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=count, ignore_eos=True, **params),
                pooling_params=None,
                block_hasher=self.hasher,
            )
        )

    def abort(self, *names: str) -> None:
        for name in names:
            self.reasons[name] = "abort"
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def run(self, most_steps: int = 3000) -> None:
        """Step until nothing is left to do."""
        for _ in range(most_steps):
            if not (self.scheduler.has_requests() or self.pending()):
                return
            self.step()
        waiting = [*self.scheduler.requests]
        raise AssertionError(f"still not done after {most_steps} steps: {waiting}")

    def pending(self) -> bool:
        return self.scheduler.connector.has_pending_push_work()

    def step(self) -> None:
        self.steps += 1
        output = self.scheduler.schedule()
        metadata = output.kv_connector_metadata
        self.worker.handle_preemptions(metadata)
        self.worker.bind_connector_metadata(metadata)
        names = [*output.num_scheduled_tokens]
        sampled = [self._compute(name, output.num_scheduled_tokens[name]) for name in names]
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(output.finished_req_ids)
        connector_output = KVConnectorOutput(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
        )
        self.worker.clear_connector_metadata()
        step_outputs = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
                kv_connector_output=connector_output,
            ),
        )
        for name, request in self.scheduler.requests.items():
            self.preemptions[name] = request.num_preemptions
        for client in step_outputs.values():
            for entry in client.outputs:
                self.outputs[entry.request_id] += entry.new_token_ids
                if entry.finish_reason is not None:
                    self.reasons[entry.request_id] = str(entry.finish_reason)

    def _compute(self, name: str, count: int) -> list[int]:
        """What the model would do: check what is there, write what is new, sample."""
        request = self.scheduler.requests[name]
        tokens = [*request.all_token_ids]
        # The scheduler has counted this step's tokens already.
        end = request.num_computed_tokens
        begin = end - count
        for group, blocks in enumerate(self.scheduler.kv_cache_manager.get_block_ids(name)):
            expected = kv_of(tokens[:end], group)
            oldest = 0 if group == 0 else max(0, begin - WINDOW + 1)
            for position in range(oldest, end):
                place = blocks[position // BLOCK], position % BLOCK
                if position >= begin:
                    self.kv[place] = expected[position]
                elif self.check_blocks and self.kv[place] != expected[position]:
                    raise WrongKVError(f"{name}, group {group}, token {position} of {begin}")
        if end < len(tokens):
            return []
        last = self.scheduler.kv_cache_manager.get_block_ids(name)[0][(end - 1) // BLOCK]
        return [next_token(self._folded(name, end, last))]

    def _folded(self, name: str, end: int, last: int) -> int:
        """The last token's KV; any wrong one before it makes it another."""
        request = self.scheduler.requests[name]
        blocks = self.scheduler.kv_cache_manager.get_block_ids(name)[0]
        expected = kv_of(request.all_token_ids[:end])
        found = np.array([self.kv[blocks[p // BLOCK], p % BLOCK] for p in range(end)])
        wrong = int(np.count_nonzero(found != expected))
        return int(self.kv[last, (end - 1) % BLOCK]) + wrong
