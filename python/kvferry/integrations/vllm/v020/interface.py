"""Where each release keeps its names: one module since 0.21, three before."""

from typing import Any

try:
    from vllm.v1.kv_offload import base as _manager
    from vllm.v1.kv_offload import base as _medium
    from vllm.v1.kv_offload import base as _spec
except ImportError:
    from vllm.v1.kv_offload import abstract as _manager
    from vllm.v1.kv_offload import mediums as _medium
    from vllm.v1.kv_offload import spec as _spec

__all__ = [
    "BlockIDsLoadStoreSpec",
    "GPULoadStoreSpec",
    "OffloadingEvent",
    "OffloadingManager",
    "OffloadingSpec",
    "PrepareStoreOutput",
    "RequestOffloadingContext",
]

BlockIDsLoadStoreSpec: Any = _medium.BlockIDsLoadStoreSpec
GPULoadStoreSpec: Any = _medium.GPULoadStoreSpec
OffloadingEvent: Any = _manager.OffloadingEvent
OffloadingManager: Any = _manager.OffloadingManager
OffloadingSpec: Any = _spec.OffloadingSpec
PrepareStoreOutput: Any = _manager.PrepareStoreOutput
# Since 0.23.
RequestOffloadingContext: Any = getattr(_manager, "RequestOffloadingContext", None)
