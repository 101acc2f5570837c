"""Code written for vLLM 0.14's offloading classes, with only its import changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvferry
from kvferry import vllm_014
from kvferry.vllm_014 import (
    ARCOffloadingManager,
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LRUOffloadingManager,
    OffloadingEvent,
    OffloadingManager,
    OffloadingSpec,
    PrepareStoreOutput,
)

BLOCK_SIZE = 256
MANAGERS = pytest.mark.parametrize("cls", [LRUOffloadingManager, ARCOffloadingManager])
Manager = LRUOffloadingManager | ARCOffloadingManager


def hashes(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def make(cls: type[Manager], num_blocks: int, enable_events: bool = True) -> Manager:
    backend = CPUBackend(block_size=BLOCK_SIZE, num_blocks=num_blocks)
    return cls(backend, enable_events=enable_events)


def store(manager: OffloadingManager, *numbers: int) -> PrepareStoreOutput:
    output = manager.prepare_store(hashes(*numbers))
    assert output is not None
    manager.complete_store(output.block_hashes_to_store)
    return output


def events(manager: OffloadingManager) -> list[tuple[bool, list[bytes]]]:
    taken = list(manager.take_events())
    assert all((event.block_size, event.medium) == (BLOCK_SIZE, "CPU") for event in taken)
    return [(event.removed, event.block_hashes) for event in taken]


def test_the_names_are_those_of_the_package_too() -> None:
    for name in ("LRUOffloadingManager", "ARCOffloadingManager", "CPUBackend", "OffloadingSpec"):
        assert getattr(kvferry, name) is getattr(vllm_014, name)


@MANAGERS
def test_a_schedulers_round(cls: type[Manager]) -> None:
    manager = make(cls, 4)
    assert isinstance(manager, OffloadingManager)
    assert manager.lookup(hashes(1, 2)) == 0

    output = manager.prepare_store(hashes(1, 2))
    assert isinstance(output, PrepareStoreOutput)
    assert isinstance(output.store_spec, CPULoadStoreSpec)
    assert isinstance(output.store_spec, LoadStoreSpec)
    assert output.store_spec.medium() == "CPU"
    assert output == PrepareStoreOutput(hashes(1, 2), output.store_spec, [])
    slots = output.store_spec.block_ids.tolist()
    assert sorted(slots) == [0, 1]
    assert manager.lookup(hashes(1, 2)) == 0, "not before the transfer has ended"
    assert events(manager) == []
    manager.complete_store(hashes(1, 2))
    assert events(manager) == [(False, hashes(1, 2))]
    assert manager.lookup(hashes(1, 2, 3)) == 2
    assert manager.lookup(hashes(3, 1)) == 0

    output = manager.prepare_store(hashes(2, 3, 4, 5))
    assert output is not None
    assert output.block_hashes_to_store == hashes(3, 4, 5)
    assert output.block_hashes_evicted == hashes(1)
    assert events(manager) == [(True, hashes(1))]
    manager.complete_store(hashes(2, 3, 4, 5))
    assert events(manager) == [(False, hashes(3, 4, 5))]

    spec = manager.prepare_load(hashes(3, 2))
    assert spec.block_ids.dtype == np.int64
    assert spec.block_ids[1] == slots[1]
    assert manager.prepare_store(hashes(6, 7, 8)) is None, "two are being loaded"
    manager.complete_load(hashes(3, 2))
    assert manager.prepare_store(hashes(6, 7, 8)) is not None
    manager._check_invariants()


@MANAGERS
def test_a_failed_store_leaves_no_trace(cls: type[Manager]) -> None:
    manager = make(cls, 2)
    assert manager.prepare_store(hashes(1, 2)) is not None
    manager.complete_store(hashes(1), success=True)
    manager.complete_store(hashes(1, 2), success=False)
    assert manager.lookup(hashes(1)) == 1, "a ready chunk is left alone"
    assert manager.lookup(hashes(2)) == 0
    assert manager.stats().free == 1
    assert events(manager) == [(False, hashes(1))]
    manager.complete_store(hashes(9))
    manager.complete_store(hashes(9), False)
    assert manager.stats().late == 2


def test_lru_evicts_what_was_touched_least_recently() -> None:
    manager = make(LRUOffloadingManager, 4)
    store(manager, 1, 2, 3, 4)
    manager.touch(hashes(3, 1, 9))
    output = manager.prepare_store(hashes(5, 6, 7))
    assert output is not None
    assert output.block_hashes_evicted == hashes(2, 4, 1)


def test_arc_keeps_what_was_used_twice() -> None:
    manager = make(ARCOffloadingManager, 4)
    store(manager, 1, 2, 3, 4)
    manager.touch(hashes(1, 2))
    output = store(manager, 5, 6)
    assert output.block_hashes_evicted == hashes(3, 4)
    assert manager.lookup(hashes(1, 2)) == 2
    assert manager.target_t1_size == 0.0
    manager.touch(hashes(3))
    assert manager.target_t1_size == 1.0
    assert manager.cache_capacity == 4


def test_arc_touches_a_pending_chunk() -> None:
    manager = make(ARCOffloadingManager, 2)
    assert manager.prepare_store(hashes(1, 2)) is not None
    manager.touch(hashes(1, 2))
    assert manager._debug_lists()["t1"] == hashes(2, 1)


@MANAGERS
def test_a_store_never_evicts_a_chunk_of_its_own(cls: type[Manager]) -> None:
    manager = make(cls, 2)
    store(manager, 1, 2)
    output = manager.prepare_store(hashes(1, 3))
    assert output is not None
    assert output.block_hashes_evicted == hashes(2)


@MANAGERS
def test_a_store_that_does_not_fit_changes_nothing(cls: type[Manager]) -> None:
    manager = make(cls, 3)
    store(manager, 1, 2, 3)
    manager.prepare_load(hashes(3))
    before = manager._debug_lists()
    events(manager)
    assert manager.prepare_store(hashes(4, 5, 6)) is None
    assert manager._debug_lists() == before
    assert events(manager) == []


@MANAGERS
def test_a_hash_twice_in_a_store_is_stored_once(cls: type[Manager]) -> None:
    manager = make(cls, 2)
    output = store(manager, 1, 1, 2)
    assert output.block_hashes_to_store == hashes(1, 2)


@MANAGERS
def test_what_was_an_assertion_is_an_error_that_changes_nothing(cls: type[Manager]) -> None:
    manager = make(cls, 4)
    store(manager, 1)
    assert manager.prepare_store(hashes(2)) is not None
    with pytest.raises(kvferry.NotResidentError):
        manager.prepare_load(hashes(1, 9))
    with pytest.raises(kvferry.NotReadyError):
        manager.prepare_load(hashes(1, 2))
    with pytest.raises(kvferry.NotPinnedError):
        manager.complete_load(hashes(1))
    with pytest.raises(kvferry.NotResidentError):
        manager.complete_load(hashes(9))
    assert manager.stats().pinned == 0


@MANAGERS
def test_any_iterable_of_hashes_will_do(cls: type[Manager]) -> None:
    def stream(*numbers: int) -> Iterator[bytes]:
        yield from hashes(*numbers)

    manager = make(cls, 4)
    assert manager.prepare_store(stream(1, 2)) is not None
    manager.complete_store(stream(1, 2))
    manager.touch(iter(hashes(1, 2)))
    assert manager.lookup(dict.fromkeys(hashes(1, 2))) == 2
    assert manager.prepare_load(stream(1, 2)).block_ids.tolist() == [0, 1]
    manager.complete_load(stream(1, 2))


@MANAGERS
def test_hashes_have_any_length(cls: type[Manager]) -> None:
    manager = make(cls, 4)
    several = [b"1", b"1" * 8, b"1" * 32, b"1" * 40]
    assert manager.prepare_store(several) is not None
    manager.complete_store(several)
    assert manager.lookup(several) == 4
    with pytest.raises(ValueError, match=r"^block_hashes\[0\]: .*41 bytes.* 40"):
        manager.lookup([b"1" * 41])
    wide = cls(CPUBackend(BLOCK_SIZE, 4), key_bytes=64)
    assert wide.lookup([b"1" * 64]) == 0


@MANAGERS
def test_without_events_there_are_none(cls: type[Manager]) -> None:
    manager = make(cls, 4, enable_events=False)
    store(manager, 1)
    assert list(manager.take_events()) == []


@MANAGERS
def test_events_are_an_iterator_of_values(cls: type[Manager]) -> None:
    manager = make(cls, 4)
    store(manager, 1)
    taken = manager.take_events()
    assert next(iter(taken)) == OffloadingEvent(hashes(1), BLOCK_SIZE, "CPU", removed=False)
    assert list(taken) == []


@MANAGERS
def test_a_backend_counts_its_free_blocks_and_serves_one_manager(cls: type[Manager]) -> None:
    backend = CPUBackend(block_size=BLOCK_SIZE, num_blocks=4)
    assert backend.get_num_free_blocks() == 4
    manager = cls(backend)
    assert manager.backend is backend
    store(manager, 1, 2, 3)
    assert backend.get_num_free_blocks() == 1
    with pytest.raises(ValueError, match=r"^backend: belongs to another manager"):
        cls(backend)


@MANAGERS
@pytest.mark.parametrize("backend", [None, 4, SimpleNamespace(block_size=1, num_blocks=4)])
def test_another_backend_is_refused(cls: type[Manager], backend: Any) -> None:
    with pytest.raises(TypeError, match=r"^backend: expected kvferry's CPUBackend"):
        cls(backend)


@MANAGERS
def test_a_manager_without_blocks_is_refused(cls: type[Manager]) -> None:
    with pytest.raises(ValueError, match=r"^capacity 0 is not between"):
        make(cls, 0)


@MANAGERS
def test_the_verbs_are_native(cls: type[Manager]) -> None:
    verbs = ("lookup", "touch", "prepare_load", "complete_load", "prepare_store", "complete_store")
    for verb in (*verbs, "take_events"):
        assert type(getattr(cls, verb)).__name__ == "method_descriptor"


def test_a_managers_name_is_in_its_repr() -> None:
    manager = make(ARCOffloadingManager, 4)
    store(manager, 1)
    assert repr(manager) == "<ARCOffloadingManager arc 1/4 chunks, 0 pinned>"


def test_an_engine_may_bring_a_manager_of_its_own() -> None:
    class Nothing(OffloadingManager):
        def lookup(self, block_hashes: Iterable[bytes]) -> int:
            return 0

        def prepare_load(self, block_hashes: Iterable[bytes]) -> LoadStoreSpec:
            return CPULoadStoreSpec([])

        def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
            return PrepareStoreOutput(
                block_hashes_to_store=[], store_spec=CPULoadStoreSpec([]), block_hashes_evicted=[]
            )

    manager = Nothing()
    manager.touch([])
    manager.complete_load([])
    manager.complete_store([], True)
    assert list(manager.take_events()) == []
    with pytest.raises(TypeError, match="abstract"):
        OffloadingManager()  # type: ignore[abstract]


def config(extra: dict[str, object] | None) -> Any:
    transfer = None if extra is None else SimpleNamespace(kv_connector_extra_config=extra)
    return SimpleNamespace(kv_transfer_config=transfer, cache_config=SimpleNamespace(block_size=16))


class Spec(OffloadingSpec):
    def get_manager(self) -> OffloadingManager:
        return LRUOffloadingManager(CPUBackend(self.offloaded_block_size, 8))

    def get_handlers(
        self, kv_caches: Any, attn_backends: Any
    ) -> Iterator[tuple[type[LoadStoreSpec], type[LoadStoreSpec], object]]:
        yield GPULoadStoreSpec, CPULoadStoreSpec, object()


@pytest.mark.parametrize(("extra", "tokens"), [({}, 16), ({"block_size": 64}, 64)])
def test_a_spec_reads_its_sizes(extra: dict[str, object], tokens: int) -> None:
    spec = Spec(config(extra), None)
    assert spec.gpu_block_size == 16
    assert spec.offloaded_block_size == tokens
    assert spec.extra_config is extra
    assert spec.get_manager().lookup(hashes(1)) == 0
    ((source, target, _),) = spec.get_handlers({}, {})
    assert (source.medium(), target.medium()) == ("GPU", "CPU")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (None, "^vllm_config: has no kv_transfer_config"),
        ({"block_size": 24}, "^block_size: 24 is no multiple of 16"),
        ({"block_size": 0}, "^block_size: 0 is no multiple of 16"),
        ({"block_size": None}, "^block_size: None is no number"),
        ({"block_size": "big"}, "^block_size: 'big' is no number"),
    ],
)
def test_a_spec_refuses_sizes_that_do_not_fit(
    extra: dict[str, object] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Spec(config(extra))
