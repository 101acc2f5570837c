"""The worker's side: jobs that copy chunks between KV-cache tensors and the host tier."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from kvferry import _core
from kvferry._core import JobEngine, JobStats, PinnedRegion, TransferResult
from kvferry.caches import KVCaches, Tensor, address_table, device_type

__all__ = [
    "ComputeStream",
    "CpuGpuOffloadingHandlers",
    "SingleDirectionOffloadingHandler",
    "TransferSpec",
]

# Gives the handle of the stream that computes on the tensors, at the time of the call.
ComputeStream = Callable[[], int]


class _BlockIds(Protocol):
    @property
    def block_ids(self) -> npt.NDArray[np.integer]: ...


# Source and destination: a `GPULoadStoreSpec` and a `CPULoadStoreSpec`, or the reverse. vLLM's own
# classes of these names are taken too.
TransferSpec = tuple[_BlockIds, _BlockIds]


class SingleDirectionOffloadingHandler:
    """The jobs of one direction. They complete in the order of submission.

    Made by `CpuGpuOffloadingHandlers`.
    """

    def __init__(
        self,
        jobs: JobEngine,
        direction: Literal["store", "load"],
        blocks_per_chunk: int,
        compute_stream: ComputeStream | None,
    ) -> None:
        self._jobs = jobs
        self._direction: Literal["store", "load"] = direction
        self._blocks_per_chunk = blocks_per_chunk
        self._compute_stream = compute_stream

    @property
    def gpu_to_cpu(self) -> bool:
        """Whether these are stores."""
        return self._direction == "store"

    def transfer_async(self, job_id: int, spec: TransferSpec, *, expedited: bool = False) -> bool:
        """Submits a job; it never waits for a copy.

        Until the job has ended, nothing else may use its blocks and slots: another job that would
        is refused.

        Args:
            job_id: 0 to 2^64 - 1, never used before.
            spec: source and destination.
            expedited: a load that may overtake the loads before it.

        Returns:
            False if as many jobs as fit are in flight or have not been collected by
            `get_finished`. Nothing was submitted, and the same call may succeed later.

        Raises:
            TypeError: The specs are not those of this direction.
            ValueError: Ids are out of range, do not match, or a destination is there twice; the
                job id is in use.
            TransferConflictError: A job in flight uses one of the blocks or slots.
            StateError: The handler was shut down, or this process was forked from its own.
        """
        source, destination = spec
        device, host = (source, destination) if self.gpu_to_cpu else (destination, source)
        # Checked by what they have: a spec of vLLM is no instance of ours.
        if hasattr(host, "group_sizes") or not (
            hasattr(host, "block_ids") and hasattr(device, "block_ids")
        ):
            expected = "blocks to slots" if self.gpu_to_cpu else "slots to blocks"
            raise TypeError(
                f"spec: expected {expected}, "
                f"got {type(source).__name__} to {type(destination).__name__}"
            )
        group_sizes: Sequence[int] | None = getattr(device, "group_sizes", None)
        block_indices: Sequence[int] | None = getattr(device, "block_indices", None)
        if group_sizes is None:
            group_sizes = [len(device.block_ids)]
        if block_indices is None:
            # A spec without indices leaves out blocks at the beginning of its first chunk.
            missing = len(host.block_ids) * self._blocks_per_chunk - len(device.block_ids)
            block_indices = [max(0, missing)] + [0] * (len(group_sizes) - 1)
        return self._jobs.submit(
            self._direction,
            job_id,
            block_ids=device.block_ids,
            group_sizes=group_sizes,
            block_indices=block_indices,
            slots=host.block_ids,
            compute_stream=None if self._compute_stream is None else self._compute_stream(),
            expedited=expedited,
        )

    def get_finished(self) -> list[TransferResult]:
        """The jobs that have ended since the last call, each once, in the order of submission."""
        return self._jobs.poll_finished(self._direction)

    def wait(self, job_ids: Iterable[int], timeout: float | None = None) -> bool:
        """Waits until the jobs have ended. Ids of no job are ignored.

        Args:
            job_ids: jobs of any direction.
            timeout: seconds; without one, as long as it takes.

        Returns:
            False if time ran out first.
        """
        return self._jobs.wait(job_ids, timeout)

    def shutdown(self) -> None:
        """Ends both directions: nothing more is submitted, what is in flight is waited for."""
        self._jobs.shutdown()


class CpuGpuOffloadingHandlers:
    """Both directions between KV-cache tensors and a host tier of this process.

    Attributes:
        gpu_to_cpu_handler: stores.
        cpu_to_gpu_handler: loads.
    """

    def __init__(  # noqa: PLR0913 - the keyword arguments are options
        self,
        kv_caches: KVCaches | Mapping[str, Tensor] | Sequence[Tensor],
        blocks_per_chunk: int,
        num_cpu_blocks: int,
        *,
        compute_stream: ComputeStream | None,
        max_jobs: int = 1024,
        threads: int | None = None,
        region: PinnedRegion | None = None,
        rank: int = 0,
    ) -> None:
        """Allocates the host tier, unless it is to lie in a region.

        Args:
            kv_caches: the tensors; a sequence or mapping of tensors `(num_blocks, …)` is one group
                that uses all of each. They are kept alive.
            blocks_per_chunk: blocks of a chunk.
            num_cpu_blocks: slots of the host tier, one chunk each.
            compute_stream: gives the raw handle of the stream that computes on the tensors, such
                as `lambda: torch.cuda.current_stream(device).cuda_stream`: a job waits for what
                was enqueued there before its submit. None for tensors on the CPU, where the caller
                submits once the computation has ended.
            max_jobs: jobs that are in flight or not yet collected.
            threads: threads that copy; by default, chosen by the number of CPUs.
            region: memory that the workers of the engine share; `slot_bytes` tells how large its
                slots have to be. Without one, the host tier has memory of its own.
            rank: in whose area of the region the slots lie.

        Raises:
            ValueError: The tensors, or a number, cannot be used; the message says which.
            TypeError: An argument has the wrong type, or the stream is missing.
            MemoryError: There is no memory for the host tier.
        """
        caches = KVCaches.of(kv_caches)
        where = device_type(caches)
        if where != "cpu":
            raise ValueError(f"kv_caches: tensors on {where}: this build copies those on cpu")
        self._jobs = JobEngine(
            address_table(caches),
            _groups(caches),
            blocks_per_chunk,
            num_cpu_blocks,
            owner=[entry.tensor for entry in caches.tensors],
            max_jobs=max_jobs,
            threads=threads,
            region=region,
            rank=rank,
        )
        self.gpu_to_cpu_handler = SingleDirectionOffloadingHandler(
            self._jobs, "store", blocks_per_chunk, compute_stream
        )
        self.cpu_to_gpu_handler = SingleDirectionOffloadingHandler(
            self._jobs, "load", blocks_per_chunk, compute_stream
        )

    @staticmethod
    def slot_bytes(
        kv_caches: KVCaches | Mapping[str, Tensor] | Sequence[Tensor], blocks_per_chunk: int
    ) -> int:
        """Bytes of host memory that a slot takes: a chunk of the largest group, in whole pages."""
        return _core.slot_bytes(_groups(KVCaches.of(kv_caches)), blocks_per_chunk)

    def stats(self) -> JobStats:
        """Counters of the jobs of both directions."""
        return self._jobs.stats()

    def shutdown(self) -> None:
        """Ends both directions: nothing more is submitted, what is in flight is waited for."""
        self._jobs.shutdown()


def _groups(caches: KVCaches) -> list[list[tuple[int, int]]]:
    """For each group, the tensors that it uses, with the bytes of their pages."""
    return [
        [(it.tensor_idx, it.page_size_bytes) for it in group] for group in caches.group_data_refs
    ]
