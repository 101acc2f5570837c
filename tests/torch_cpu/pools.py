"""Engines' KV-cache tensors for tests, and a plain model of what jobs do to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvferry import CPULoadStoreSpec, GPULoadStoreSpec

if TYPE_CHECKING:
    from kvferry import (
        CpuGpuOffloadingHandlers,
        SingleDirectionOffloadingHandler,
        TransferResult,
        TransferSpec,
    )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each block of a contiguous tensor `(num_blocks, …)`, sharing its memory."""
    return tensor.reshape(tensor.shape[0], -1).view(torch.uint8)


def random_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    data = torch.randint(
        0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, generator=generator
    )
    return data.view(dtype)


@dataclass
class Jobs:
    """Submits jobs one at a time and waits for each."""

    handlers: CpuGpuOffloadingHandlers
    next_id: int = 0

    def store(self, device: GPULoadStoreSpec, host: CPULoadStoreSpec) -> TransferResult:
        return self._run(self.handlers.gpu_to_cpu_handler, (device, host))

    def load(self, host: CPULoadStoreSpec, device: GPULoadStoreSpec) -> TransferResult:
        return self._run(self.handlers.cpu_to_gpu_handler, (host, device))

    def _run(self, handler: SingleDirectionOffloadingHandler, spec: TransferSpec) -> TransferResult:
        job, self.next_id = self.next_id, self.next_id + 1
        assert handler.transfer_async(job, spec)
        assert handler.wait({job})
        (result,) = handler.get_finished()
        assert result.job_id == job
        return result
