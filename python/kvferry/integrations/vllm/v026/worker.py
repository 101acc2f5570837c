"""kvferry's transfers behind vLLM's `OffloadingWorker`."""

from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvferry.integrations.vllm.log import logger
from kvferry.integrations.vllm.transfers import Direction, Transfers
from kvferry.integrations.vllm.v026.manager import UnavailableSlots

__all__ = ["KvferryWorker"]


class KvferryWorker(OffloadingWorker):
    """The worker's side of the host tier."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._finished: list[TransferResult] = []
        self._failures: list[tuple[int, Direction]] | None = None

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Submits a store. Always True: vLLM takes anything else for a fault."""
        self._transfers.submit("store", job_id, (src_spec, dst_spec))
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        """Submits a load. Always True: vLLM takes anything else for a fault."""
        if isinstance(src_spec, UnavailableSlots):
            self._transfers.refuse("load", job_id, "its chunks are not in the host tier")
        else:
            spec = (src_spec, dst_spec)
            self._transfers.submit("load", job_id, spec, expedited=expedited)
        return True

    def get_finished(self) -> list[TransferResult]:
        """The jobs that have ended since the last call.

        With failures apart, those that `take_failures` has seen: whoever is told that a job has
        finished must have been told of its failure.
        """
        if self._failures is None:
            self._collect()
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Waits until jobs have ended, however long that takes."""
        self._transfers.wait(job_ids)

    def shutdown(self) -> None:
        """Ends all transfers."""
        self._transfers.shutdown()

    def report_failures_apart(self) -> None:
        """From now on a failed job counts as finished for vLLM, and `take_failures` names it."""
        self._failures = []

    def take_failures(self) -> list[tuple[int, Direction]]:
        """The jobs that have failed and that the next `get_finished` will call finished."""
        self._collect()
        if not self._failures:
            return []
        failures, self._failures = self._failures, []
        return failures

    def _collect(self) -> None:
        for job in self._transfers.get_finished():
            success = job.success
            if not success and self._failures is not None:
                self._failures.append((job.job_id, job.direction))
                success = True
            elif not success:
                logger.error(
                    "kvferry: vLLM's OffloadingConnector stops the engine at a failed %s. With "
                    "KvferryConnector and kv_load_failure_policy=recompute it goes on.",
                    job.direction,
                )
            self._finished.append(
                TransferResult(
                    job_id=job.job_id,
                    success=success,
                    transfer_size=job.bytes,
                    transfer_time=job.seconds,
                )
            )
