"""vLLM's `OffloadingConnector`, for transfers that may fail and prompts that are long.

It changes three things:

* A failed load is reported to vLLM as such, which recomputes it or fails the request
  (`kv_load_failure_policy`). vLLM's own connector asserts that it did not happen.
* A failed store is completed, as failed: its chunks are not found, its request goes on.
* The chunks of a prompt are looked up in one call.

Failures travel with the completions that workers report. It overrides private methods where it has
to; each is checked when the engine starts, and where one is not what this was written for, vLLM's
own stays in place, which a log line tells.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.outputs import KVConnectorOutput

from kvferry.integrations.vllm import plugin
from kvferry.integrations.vllm.config import ConfigError
from kvferry.integrations.vllm.log import logger
from kvferry.integrations.vllm.v026.lookup import last_window
from kvferry.integrations.vllm.v026.manager import KvferryManager
from kvferry.integrations.vllm.v026.worker import KvferryWorker

__all__ = ["KvferryConnector"]


@dataclasses.dataclass
class KvferryWorkerMetadata(OffloadingWorkerMetadata):
    """What workers report in a step.

    Attributes:
        failed_jobs: Those of the completed jobs that failed at some worker.
    """

    failed_jobs: set[int] = dataclasses.field(default_factory=set)

    def aggregate(self, other: Any) -> "KvferryWorkerMetadata":
        """What two workers report together."""
        failed = self.failed_jobs | getattr(other, "failed_jobs", set())
        return _with_failures(super().aggregate(other), failed)


def _with_failures(meta: OffloadingWorkerMetadata, failed: set[int]) -> KvferryWorkerMetadata:
    inherited = {
        f.name: getattr(meta, f.name) for f in dataclasses.fields(OffloadingWorkerMetadata)
    }
    return KvferryWorkerMetadata(**inherited, failed_jobs=failed)


class KvferryConnectorWorker(OffloadingConnectorWorker):
    """vLLM's worker side, which tells of failures instead of asserting that there are none.

    An instance of vLLM's class becomes one of this by `adopt`.
    """

    failed_jobs: set[int]
    failed_requests: set[str]
    failed_blocks: set[int]
    load_blocks: dict[int, Iterable[int]]

    @classmethod
    def adopt(cls, worker: OffloadingConnectorWorker) -> None:
        """Gives an instance of vLLM's class the methods of this one."""
        worker.__class__ = cls
        worker.failed_jobs, worker.failed_requests, worker.failed_blocks = set(), set(), set()
        worker.load_blocks = {}

    def _init_worker(self, kv_caches: Any) -> None:
        super()._init_worker(kv_caches)
        if not isinstance(self.worker, KvferryWorker):
            raise ConfigError(_OTHER_SPEC)
        self.worker.report_failures_apart()

    def start_kv_transfers(self, metadata: Any) -> None:
        """Submits a step's transfers."""
        for job_id, job in metadata.load_jobs.items():
            self.load_blocks[job_id] = job.dst_spec.block_ids
        super().start_kv_transfers(metadata)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """The requests whose transfers have ended, whether well or not."""
        requests = dict(self._load_jobs)
        for job_id, direction in self.worker.take_failures():
            self.failed_jobs.add(job_id)
            if direction == "load" and job_id in requests:
                self.failed_requests.add(requests[job_id])
                self.failed_blocks.update(map(int, self.load_blocks[job_id]))
        result: tuple[set[str], set[str]] = super().get_finished(finished_req_ids)
        for job_id in requests.keys() - self._load_jobs.keys():
            self.load_blocks.pop(job_id, None)
        return result

    def build_connector_worker_meta(self) -> KvferryWorkerMetadata | None:
        """What has ended since the last call."""
        meta = super().build_connector_worker_meta()
        if meta is None:
            return None
        # Always of this class: workers are merged by the first one's method.
        failed, self.failed_jobs = self.failed_jobs, set()
        return _with_failures(meta, failed)


class KvferryConnectorScheduler(OffloadingConnectorScheduler):
    """vLLM's scheduler side, to which failures are told.

    An instance of vLLM's class becomes one of this by `adopt`.
    """

    manager: KvferryManager

    @classmethod
    def adopt(cls, scheduler: OffloadingConnectorScheduler) -> None:
        """Gives an instance of vLLM's class the methods of this one, as far as they fit."""
        if not isinstance(scheduler.manager, KvferryManager):
            raise ConfigError(_OTHER_SPEC)
        methods = {name: method for name, method in _LOOK_UPS.items() if _fits(name, method)}
        left = sorted(_LOOK_UPS.keys() - methods.keys())
        if left:
            logger.info("kvferry: this vLLM's own %s stay in place", ", ".join(left))
        scheduler.__class__ = type(cls.__name__, (cls,), methods)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Sees what workers report."""
        meta = connector_output.kv_connector_worker_meta
        requests = [
            job.req_id
            for job_id in getattr(meta, "failed_jobs", ())
            # Jobs from before a reset are not there any more.
            if (job := self._jobs.get(job_id)) is not None and self._fail(job)
        ]
        super().update_connector_output(connector_output)
        for req_id in requests:
            # What is recomputed is to be stored again: the chunks of the failed load have left.
            status = self._req_status.get(req_id)
            for group_state in () if status is None else status.group_states:
                group_state.next_stored_chunk_idx = 0

    def reset_cache(self) -> None:
        """Forgets every chunk.

        vLLM then stores running requests again from their beginning, under the numbers of blocks
        that a sliding window may have given back long ago: bytes of another request. What a window
        has stored already is left out here.
        """
        windows = getattr(self, "_sliding_window_groups", ())
        stored = [
            (group_state := status.group_states[group], group_state.next_stored_chunk_idx)
            for status in self._req_status.values()
            for group in windows
        ]
        super().reset_cache()
        for group_state, index in stored:
            group_state.next_stored_chunk_idx = index

    def _fail(self, job: Any) -> bool:
        """Notes a failure, and whether it is that of a load."""
        self.manager.tier.fail(job.keys)
        return not job.is_store


def _maximal_prefix_lookup(
    self: Any, keys: Iterable[OffloadKey], req_context: ReqContext, *rest: Any
) -> int | None:
    """How many leading chunks can be loaded; None if some of them are being stored."""
    tracker = getattr(self, "_events_tracker", None)
    if getattr(tracker, "self_describing_enabled", False):
        # Each hit is then told to the events, one by one.
        own: Callable[..., int | None] = vars(OffloadingConnectorScheduler)[
            "_maximal_prefix_lookup"
        ]
        return own(self, keys, req_context, *rest)
    ready, known = self.manager.tier.manager.lookup_prefix(keys)
    return ready if ready == known else None


def _sliding_window_lookup(
    self: Any,
    keys: Sequence[OffloadKey],
    sliding_window_size: int,
    req_context: ReqContext,  # noqa: ARG001 - the signature is vLLM's
    initial_window_size: int | None = None,
) -> int | None:
    """Where the last run of chunks that fills a window ends; None if to be asked again."""
    results = self.manager.tier.manager.lookup_each(keys).tobytes()
    return last_window(results, sliding_window_size, initial_window_size or sliding_window_size)


_LOOK_UPS: dict[str, Callable[..., int | None]] = {
    "_maximal_prefix_lookup": _maximal_prefix_lookup,
    "_sliding_window_lookup": _sliding_window_lookup,
}
_OTHER_SPEC = (
    'KvferryConnector works with the spec kvferry alone: set "spec_name": "kvferry" in '
    "kv_connector_extra_config, or use OffloadingConnector"
)
# What the classes above use of vLLM's, beyond what is public.
_PRIVATE = {
    OffloadingConnectorWorker: ("_init_worker", "get_finished", "build_connector_worker_meta"),
    OffloadingConnectorScheduler: ("update_connector_output",),
}
_ATTRIBUTES = {"worker": ("worker", "_load_jobs"), "scheduler": ("_jobs", "_req_status", "manager")}


def _fits(name: str, method: Callable[..., object]) -> bool:
    """Whether vLLM's method of this name takes what ours takes."""
    theirs = getattr(OffloadingConnectorScheduler, name, None)
    if theirs is None:
        return False
    wanted = list(inspect.signature(method).parameters.values())
    has = list(inspect.signature(theirs).parameters)
    names = [p.name for p in wanted if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    return has[: len(names)] == names and (len(has) == len(names) or len(names) < len(wanted))


class KvferryConnector(OffloadingConnector):
    """vLLM's offloading connector with kvferry's spec, recomputing what could not be loaded."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        _choose_spec(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)
        self._recovers = self._adopt()
        transfer_config = vllm_config.kv_transfer_config
        if role is KVConnectorRole.SCHEDULER and transfer_config.kv_load_failure_policy == "fail":
            logger.info(
                "kvferry: a request whose load fails will fail; "
                "kv_load_failure_policy=recompute recomputes it"
            )

        if not _FAILED_REQUESTS and len(kv_cache_config.kv_cache_groups) > 1:
            logger.warning(
                "kvferry: this vLLM recovers from failed loads with one KV-cache group alone, and "
                "the model has %d: a failed load stops the engine",
                len(kv_cache_config.kv_cache_groups),
            )

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """The requests whose transfers have ended, and which of them have not got their KV."""
        results = super().get_transfer_results(finished_req_ids)
        if self._recovers:
            results.failed_recving |= self.connector_worker.failed_requests
            self.connector_worker.failed_requests = set()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that could not be loaded, where vLLM wants to hear of blocks."""
        if not self._recovers or _FAILED_REQUESTS:
            blocks: set[int] = super().get_block_ids_with_load_errors()
            return blocks
        failed: set[int] = self.connector_worker.failed_blocks
        self.connector_worker.failed_blocks = set()
        return failed

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, *arguments: Any, **options: Any
    ) -> KVConnectorPromMetrics:
        """vLLM's metrics, for kvferry's spec."""
        _choose_spec(vllm_config)
        return super().build_prom_metrics(vllm_config, *arguments, **options)

    def _adopt(self) -> bool:
        """Puts kvferry's sides in the place of vLLM's; False, and those stay, if it cannot."""
        side: Any = self.connector_worker or self.connector_scheduler
        wanted = _ATTRIBUTES["scheduler" if self.connector_worker is None else "worker"]
        missing = [name for name in wanted if not hasattr(side, name)]
        for owner, methods in _PRIVATE.items():
            missing += [name for name in methods if not hasattr(owner, name)]
        if missing:
            logger.warning(
                "kvferry: this vLLM's connector lacks %s: a failed transfer stops the engine",
                ", ".join(missing),
            )
            return False
        if self.connector_worker is not None:
            KvferryConnectorWorker.adopt(self.connector_worker)
        else:
            KvferryConnectorScheduler.adopt(self.connector_scheduler)
        return True


# Releases without it are told of blocks instead, which they take for models with one group alone.
_FAILED_REQUESTS = hasattr(OffloadingConnector, "get_transfer_results")


def _choose_spec(vllm_config: VllmConfig) -> None:
    """Makes the spec kvferry the one of a configuration that names none."""
    plugin.register()
    vllm_config.kv_transfer_config.kv_connector_extra_config.setdefault("spec_name", plugin.SPEC)
