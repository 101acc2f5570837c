"""The interface of vLLM 0.14's offloading, with kvferry's engine behind it.

Code written for that release's `vllm.v1.kv_offload` runs with only the import changed:

    from kvferry.vllm_014 import CPUBackend, LRUOffloadingManager

    manager = LRUOffloadingManager(CPUBackend(block_size=256, num_blocks=4096), enable_events=True)

Nothing here imports vLLM. What differs, on purpose:

* A missing or pending chunk in `prepare_load`, or one that is not pinned in `complete_load`, raises
  `kvferry.StateError` and changes nothing.
* `prepare_store` never evicts a chunk of its own call, stores a hash that the call names twice
  once, and changes nothing when it returns None.
* `complete_store` leaves ready chunks alone and ignores unknown ones, whatever `success` is.
* ARC's `touch` makes a pending chunk the most recent of T1.
* One thread at a time may use a manager; a second one gets `kvferry.ConcurrentUseError`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvferry._core import BlockHashManager, Reader
from kvferry.specs import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
)

__all__ = [
    "ARCOffloadingManager",
    "BlockIDsLoadStoreSpec",
    "CPUBackend",
    "CPULoadStoreSpec",
    "GPULoadStoreSpec",
    "LRUOffloadingManager",
    "LoadStoreSpec",
    "OffloadingEvent",
    "OffloadingManager",
    "OffloadingSpec",
    "PrepareStoreOutput",
]

LONGEST_HASH = 40
"""Bytes of the longest block hash by default: as many as a chunk's record has in one cache line."""


@dataclass
class PrepareStoreOutput:
    """What a store transfers, and what left for it.

    Attributes:
        block_hashes_to_store: The chunks to store, in call order.
        store_spec: Where to store each of them.
        block_hashes_evicted: The chunks that left, in the order of their leaving.
    """

    block_hashes_to_store: list[bytes]
    store_spec: LoadStoreSpec
    block_hashes_evicted: list[bytes]


@dataclass
class OffloadingEvent:
    """One change of the tier.

    Attributes:
        block_hashes: The chunks that it is about.
        block_size: Tokens of a chunk.
        medium: Where the chunks are.
        removed: Whether they have left, rather than become loadable.
    """

    block_hashes: list[bytes]
    block_size: int
    medium: str
    removed: bool


class OffloadingManager(ABC):
    """Keeps track of what is offloaded and where, for the scheduler."""

    @abstractmethod
    def lookup(self, block_hashes: Iterable[bytes]) -> int:
        """The length of the longest leading run of chunks that may be loaded."""

    @abstractmethod
    def prepare_load(self, block_hashes: Iterable[bytes]) -> LoadStoreSpec:
        """Says where chunks are, and keeps them there until `complete_load`."""

    def touch(self, block_hashes: Iterable[bytes]) -> None:  # noqa: B027 - optional, as in vLLM
        """Marks chunks as used."""

    def complete_load(self, block_hashes: Iterable[bytes]) -> None:  # noqa: B027 - optional
        """Ends a load."""

    @abstractmethod
    def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
        """Makes room for those of the chunks that are missing; None if they do not fit."""

    def complete_store(  # noqa: B027 - optional, as in vLLM
        self, block_hashes: Iterable[bytes], success: bool = True
    ) -> None:
        """Ends a store: its chunks are loadable from now on, or gone."""

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What changed since the last call."""
        return ()


class CPUBackend:
    """Host memory for `num_blocks` chunks. It belongs to the one manager that it is given to.

    Attributes:
        block_size: Tokens of a chunk.
        num_blocks: How many chunks there are.
        medium: `CPU`.
    """

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.medium = CPULoadStoreSpec.medium()
        self._reader: Reader | None = None

    def get_num_free_blocks(self) -> int:
        """How many chunks can be stored before one has to leave."""
        return self.num_blocks if self._reader is None else self._reader.stats().free

    def attach(self, reader: Reader) -> None:
        """Takes note of the manager that this memory belongs to. Called by the manager.

        Raises:
            ValueError: It belongs to another one already.
        """
        if self._reader is not None:
            raise ValueError("backend: belongs to another manager")
        self._reader = reader


class _NativeManager(BlockHashManager, OffloadingManager):
    """What the two managers share: the engine's verbs are their methods."""

    _policy: str

    def __init__(
        self, backend: CPUBackend, enable_events: bool = False, *, key_bytes: int = LONGEST_HASH
    ) -> None:
        """Takes the backend's memory over.

        Args:
            backend: Says how many chunks there are.
            enable_events: Whether `take_events` has anything to say.
            key_bytes: Length of the longest block hash.

        Raises:
            TypeError: The backend is none of kvferry's, or another argument has the wrong type.
            ValueError: The backend belongs to another manager, or has no chunks.
        """
        if not isinstance(backend, CPUBackend):
            raise TypeError(f"backend: expected kvferry's CPUBackend, got {type(backend).__name__}")
        super().__init__(
            backend.num_blocks,
            policy=self._policy,
            block_size=backend.block_size,
            medium=backend.medium,
            enable_events=enable_events,
            key_bytes=key_bytes,
        )
        backend.attach(self.reader())
        self.backend = backend


class LRUOffloadingManager(_NativeManager):
    """Evicts the chunk that was used least recently."""

    _policy = "lru"


class ARCOffloadingManager(_NativeManager):
    """Evicts by adaptive replacement: recency and frequency, weighed by what was missed."""

    _policy = "arc"


class _TransferConfig(Protocol):
    @property
    def kv_connector_extra_config(self) -> Mapping[str, object]: ...


class _CacheConfig(Protocol):
    @property
    def block_size(self) -> int: ...


class _VllmConfig(Protocol):
    @property
    def kv_transfer_config(self) -> _TransferConfig | None: ...

    @property
    def cache_config(self) -> _CacheConfig: ...


class OffloadingSpec(ABC):
    """How an engine offloads: its manager, and the handlers that move bytes.

    Attributes:
        vllm_config: The engine's configuration.
        kv_cache_config: That of its KV cache.
        extra_config: What the user configured for offloading.
        gpu_block_size: Tokens of a block.
        offloaded_block_size: Tokens of a chunk.
    """

    def __init__(self, vllm_config: _VllmConfig, kv_cache_config: object = None) -> None:
        """Reads the sizes out of the configuration.

        Raises:
            ValueError: There is no configuration of a transfer, or a chunk is no whole number of
                blocks.
        """
        if vllm_config.kv_transfer_config is None:
            raise ValueError("vllm_config: has no kv_transfer_config")
        self.vllm_config = vllm_config
        self.kv_cache_config = kv_cache_config
        self.extra_config = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.gpu_block_size = vllm_config.cache_config.block_size
        block_size = self.extra_config.get("block_size", self.gpu_block_size)
        try:
            self.offloaded_block_size = int(str(block_size))
        except ValueError:
            raise ValueError(f"block_size: {block_size!r} is no number of tokens") from None
        if self.offloaded_block_size <= 0 or self.offloaded_block_size % self.gpu_block_size:
            raise ValueError(
                f"block_size: {self.offloaded_block_size} is no multiple of {self.gpu_block_size}"
            )

    @abstractmethod
    def get_manager(self) -> OffloadingManager:
        """The scheduler's side."""

    @abstractmethod
    def get_handlers(
        self, kv_caches: Mapping[str, object], attn_backends: Mapping[str, object]
    ) -> Iterator[tuple[type[LoadStoreSpec], type[LoadStoreSpec], object]]:
        """The worker's side: source, destination and handler of each direction."""
