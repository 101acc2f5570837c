"""Bookkeeping for KV-cache offloading, with a native engine.

A scheduler asks what a host tier holds, loads what is there and stores what is not:

    >>> import kvferry
    >>> manager = kvferry.OffloadingManager(capacity=4, policy="arc")
    >>> keys = [kvferry.make_offload_key(b"block %d" % i, 0) for i in range(3)]

    >>> request = manager.begin_request()
    >>> manager.lookup_prefix(keys)
    (0, 0)
    >>> output = manager.prepare_store(keys, request)
    >>> output.block_ids
    array([0, 1, 2])
    >>> manager.complete_store(output)  # once the bytes are in host memory
    Completion(applied=3, late=0)
    >>> manager.finish_request(request)

    >>> load = manager.prepare_load(keys[:2])  # pinned until the load has ended
    >>> manager
    <OffloadingManager arc 3/4 chunks, 2 pinned>
    >>> manager.complete_load(load)
    Completion(applied=2, late=0)

One thread owns a manager; `manager.reader()` is for all others. `kvferry.vllm_014` has the same
engine behind the classes of vLLM 0.14. The wheel is for interpreters with a global lock: a
free-threaded one does not load it.
"""

from kvferry._core import (
    Completion,
    ConcurrentUseError,
    JobEngine,
    JobStats,
    KvferryError,
    LoadTicket,
    NotPinnedError,
    NotReadyError,
    NotResidentError,
    OffloadingManager,
    Pin,
    PinnedRegion,
    PrepareLoadOutput,
    PrepareStoreOutput,
    QuarantinedError,
    Reader,
    RegionError,
    RequestAccess,
    StalePinError,
    StateError,
    Stats,
    StoreTicket,
    TransferCancelledError,
    TransferConflictError,
    TransferError,
    TransferResult,
    WrongByteError,
    __version__,
)
from kvferry.caches import KVCacheRef, KVCaches, KVCacheTensor
from kvferry.keys import (
    Keys,
    OffloadKey,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from kvferry.results import LookupResult, OffloadingEvent, PinRefused, StoreRejected
from kvferry.specs import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
)
from kvferry.swap import swap_blocks
from kvferry.vllm_014 import (
    ARCOffloadingManager,
    CPUBackend,
    LRUOffloadingManager,
    OffloadingSpec,
)
from kvferry.worker import (
    ComputeStream,
    CpuGpuOffloadingHandlers,
    SingleDirectionOffloadingHandler,
    TransferSpec,
)

__all__ = [
    "ARCOffloadingManager",
    "BlockIDsLoadStoreSpec",
    "CPUBackend",
    "CPULoadStoreSpec",
    "Completion",
    "ComputeStream",
    "ConcurrentUseError",
    "CpuGpuOffloadingHandlers",
    "GPULoadStoreSpec",
    "JobEngine",
    "JobStats",
    "KVCacheRef",
    "KVCacheTensor",
    "KVCaches",
    "Keys",
    "KvferryError",
    "LRUOffloadingManager",
    "LoadStoreSpec",
    "LoadTicket",
    "LookupResult",
    "NotPinnedError",
    "NotReadyError",
    "NotResidentError",
    "OffloadKey",
    "OffloadingEvent",
    "OffloadingManager",
    "OffloadingSpec",
    "Pin",
    "PinRefused",
    "PinnedRegion",
    "PrepareLoadOutput",
    "PrepareStoreOutput",
    "QuarantinedError",
    "Reader",
    "RegionError",
    "RequestAccess",
    "SingleDirectionOffloadingHandler",
    "StalePinError",
    "StateError",
    "Stats",
    "StoreRejected",
    "StoreTicket",
    "TransferCancelledError",
    "TransferConflictError",
    "TransferError",
    "TransferResult",
    "TransferSpec",
    "WrongByteError",
    "__version__",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "make_offload_key",
    "swap_blocks",
]
