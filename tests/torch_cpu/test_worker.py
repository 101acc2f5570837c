"""The handlers over torch tensors on the CPU: bytes, order, refusals."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import kvferry
from kvferry import (
    CpuGpuOffloadingHandlers,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    KVCacheRef,
    KVCaches,
    KVCacheTensor,
)
from torch_cpu.pools import Jobs, as_bytes, random_tensor

BLOCKS = 24
SLOTS = 8


def make_handlers(
    tensors: Any, blocks_per_chunk: int = 1, **options: Any
) -> CpuGpuOffloadingHandlers:
    options.setdefault("compute_stream", None)
    slots = options.pop("slots", SLOTS)
    return CpuGpuOffloadingHandlers(tensors, blocks_per_chunk, slots, **options)


def random_kv(dtype: torch.dtype = torch.int16, layers: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [random_tensor((BLOCKS, 3, 5), dtype, generator) for _ in range(layers)]


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("blocks_per_chunk", [1, 2, 4])
def test_what_was_stored_comes_back_byte_for_byte(
    dtype: torch.dtype, blocks_per_chunk: int
) -> None:
    tensors = random_kv(dtype)
    before = [as_bytes(tensor).clone() for tensor in tensors]
    jobs = Jobs(make_handlers(tensors, blocks_per_chunk))
    chunks = 3
    stored = np.random.default_rng(1).permutation(BLOCKS)[: chunks * blocks_per_chunk]
    slots = CPULoadStoreSpec([5, 2, 7])
    result = jobs.store(GPULoadStoreSpec(stored), slots)
    page = before[0].shape[1]
    assert result.success
    assert result.transfer_size == len(stored) * page * len(tensors)
    assert result.transfer_type == ("GPU", "CPU")
    for tensor in tensors:
        as_bytes(tensor).zero_()
    # Into other blocks than they came from.
    loaded = np.roll(stored, 1)
    result = jobs.load(slots, GPULoadStoreSpec(loaded))
    assert result.success
    assert result.transfer_time >= 0
    assert result.error is None
    for tensor, was in zip(tensors, before, strict=True):
        expected = torch.zeros_like(was)
        expected[loaded] = was[stored]
        assert torch.equal(as_bytes(tensor), expected)


def test_a_chunk_is_stored_and_loaded_in_parts() -> None:
    (tensor,) = random_kv(layers=1)
    was = as_bytes(tensor).clone()
    jobs = Jobs(make_handlers([tensor], blocks_per_chunk=4))
    # Blocks 2 to 8 of a request: the end of its first chunk, its second, the head of its third.
    device = GPULoadStoreSpec([10, 3, 4, 5, 6, 20, 21], [7], [2])
    host = CPULoadStoreSpec([1, 0, 4])
    assert jobs.store(device, host).success
    as_bytes(tensor).zero_()
    # Of these, blocks 3 to 6.
    part = GPULoadStoreSpec([0, 1, 2, 3], [4], [3])
    assert jobs.load(CPULoadStoreSpec([1, 0]), part).success
    expected = torch.zeros_like(was)
    expected[[0, 1, 2, 3]] = was[[3, 4, 5, 6]]
    assert torch.equal(as_bytes(tensor), expected)


def test_groups_share_tensors_and_copy_only_their_pages() -> None:
    """A group whose pages are shorter leaves the rest of its blocks alone."""
    generator = torch.Generator().manual_seed(3)
    tensor = random_tensor((BLOCKS, 64), torch.uint8, generator)
    was = tensor.clone()
    caches = KVCaches([KVCacheTensor(tensor, 64)], [[KVCacheRef(0, 64)], [KVCacheRef(0, 40)]])
    jobs = Jobs(make_handlers(caches))
    both = GPULoadStoreSpec([1, 2, 8, 9], [2, 2], [0, 5])
    host = CPULoadStoreSpec([0, 1, 2, 3])
    assert jobs.store(both, host).transfer_size == 2 * 64 + 2 * 40
    tensor.zero_()
    assert jobs.load(host, both).success
    expected = torch.zeros_like(was)
    expected[[1, 2]] = was[[1, 2]]
    expected[[8, 9], :40] = was[[8, 9], :40]
    assert torch.equal(tensor, expected)


def test_a_view_with_gaps_between_blocks_keeps_the_gaps() -> None:
    generator = torch.Generator().manual_seed(4)
    whole = random_tensor((BLOCKS, 2, 32), torch.int8, generator)
    was = whole.clone()
    # K and V of one tensor, as two views: the blocks of each lie 64 bytes apart.
    keys = whole[:, 0]
    jobs = Jobs(make_handlers([keys]))
    assert jobs.store(GPULoadStoreSpec([4, 6]), CPULoadStoreSpec([0, 1])).success
    assert jobs.load(CPULoadStoreSpec([0, 1]), GPULoadStoreSpec([7, 8])).success
    expected = was.clone()
    expected[[7, 8], 0] = was[[4, 6], 0]
    assert torch.equal(whole, expected)


def test_packed_keys_and_values_are_two_tensors() -> None:
    generator = torch.Generator().manual_seed(5)
    whole = random_tensor((BLOCKS, 2, 32), torch.bfloat16, generator)
    was = whole.view(torch.int16).clone()
    jobs = Jobs(make_handlers({"k": whole[:, 0], "v": whole[:, 1]}, blocks_per_chunk=2))
    assert jobs.store(GPULoadStoreSpec([1, 2, 3, 4]), CPULoadStoreSpec([3, 1])).success
    whole.zero_()
    assert jobs.load(CPULoadStoreSpec([3, 1]), GPULoadStoreSpec([1, 2, 3, 4])).success
    expected = torch.zeros_like(was)
    expected[1:5] = was[1:5]
    assert torch.equal(whole.view(torch.int16), expected)


def test_blocks_whose_elements_are_in_another_order_are_copied_as_they_lie() -> None:
    generator = torch.Generator().manual_seed(6)
    base = random_tensor((BLOCKS, 4, 6), torch.int8, generator)
    was = base.clone()
    jobs = Jobs(make_handlers([base.transpose(1, 2)]))
    assert jobs.store(GPULoadStoreSpec([0]), CPULoadStoreSpec([0])).success
    assert jobs.load(CPULoadStoreSpec([0]), GPULoadStoreSpec([9])).success
    assert torch.equal(base[9], was[0])


def test_results_come_once_in_order_and_by_direction() -> None:
    tensors = random_kv()
    handlers = make_handlers(tensors, slots=16)
    store, load = handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler
    for job in range(8):
        assert store.transfer_async(job, (GPULoadStoreSpec([job]), CPULoadStoreSpec([job])))
    assert store.wait(range(8))
    for job in range(8):
        spec = (CPULoadStoreSpec([job]), GPULoadStoreSpec([8 + job]))
        assert load.transfer_async(100 + job, spec)
    assert load.wait(range(100, 108))
    assert [result.job_id for result in load.get_finished()] == list(range(100, 108))
    assert load.get_finished() == []
    assert [result.job_id for result in store.get_finished()] == list(range(8))
    assert store.get_finished() == []


def test_an_empty_job_succeeds() -> None:
    jobs = Jobs(make_handlers(random_kv()))
    result = jobs.store(GPULoadStoreSpec([]), CPULoadStoreSpec([]))
    assert result.success
    assert result.transfer_size == 0


def test_when_as_many_jobs_as_fit_are_uncollected_the_next_is_declined() -> None:
    handler = make_handlers(random_kv(), max_jobs=2).gpu_to_cpu_handler
    specs = [(GPULoadStoreSpec([i]), CPULoadStoreSpec([i])) for i in range(3)]
    assert handler.transfer_async(0, specs[0])
    assert handler.transfer_async(1, specs[1])
    assert handler.transfer_async(2, specs[2]) is False
    assert handler.wait({0, 1, 2})
    assert len(handler.get_finished()) == 2
    assert handler.transfer_async(2, specs[2])


def test_unknown_jobs_are_not_waited_for() -> None:
    handler = make_handlers(random_kv()).cpu_to_gpu_handler
    assert handler.wait({1, 2, 3})
    assert handler.wait([], timeout=0)


BAD_TRANSFERS = {
    "block_ids": (GPULoadStoreSpec([BLOCKS]), CPULoadStoreSpec([0])),
    "slots": (GPULoadStoreSpec([0]), CPULoadStoreSpec([SLOTS])),
    "slots twice": (GPULoadStoreSpec([0, 1]), CPULoadStoreSpec([3, 3])),
    "slots missing": (GPULoadStoreSpec([0, 1]), CPULoadStoreSpec([3])),
    "group_sizes": (GPULoadStoreSpec([0, 1], [1, 1], [0, 0]), CPULoadStoreSpec([3, 4])),
}


@pytest.mark.parametrize("name", BAD_TRANSFERS)
def test_a_bad_transfer_names_its_argument_and_leaves_nothing_behind(name: str) -> None:
    tensors = random_kv()
    handlers = make_handlers(tensors)
    with pytest.raises(ValueError, match=name.split(maxsplit=1)[0]):
        handlers.gpu_to_cpu_handler.transfer_async(0, BAD_TRANSFERS[name])
    assert handlers.stats().in_flight == 0
    # The same id, slots and blocks are free.
    assert Jobs(handlers).store(GPULoadStoreSpec([0, 1]), CPULoadStoreSpec([3, 4])).success


def test_a_load_into_one_block_twice_is_refused() -> None:
    handler = make_handlers(random_kv()).cpu_to_gpu_handler
    with pytest.raises(ValueError, match="block_ids"):
        handler.transfer_async(0, (CPULoadStoreSpec([0, 1]), GPULoadStoreSpec([5, 5])))


def test_one_slot_may_be_loaded_into_several_blocks() -> None:
    (tensor,) = random_kv(layers=1)
    jobs = Jobs(make_handlers([tensor]))
    assert jobs.store(GPULoadStoreSpec([3]), CPULoadStoreSpec([2])).success
    assert jobs.load(CPULoadStoreSpec([2, 2]), GPULoadStoreSpec([5, 6])).success
    assert torch.equal(tensor[5], tensor[3])
    assert torch.equal(tensor[6], tensor[3])


def test_a_job_id_in_use_is_refused() -> None:
    handler = make_handlers(random_kv()).gpu_to_cpu_handler
    assert handler.transfer_async(7, (GPULoadStoreSpec([0]), CPULoadStoreSpec([0])))
    with pytest.raises(ValueError, match="job_id"):
        handler.transfer_async(7, (GPULoadStoreSpec([1]), CPULoadStoreSpec([1])))


@pytest.mark.parametrize("bad", [-1, 2**64, 1.5, "7", None])
def test_a_job_id_that_is_no_id_is_refused(bad: object) -> None:
    handler = make_handlers(random_kv()).gpu_to_cpu_handler
    with pytest.raises((TypeError, ValueError), match="job_id"):
        handler.transfer_async(bad, (GPULoadStoreSpec([0]), CPULoadStoreSpec([0])))


def test_specs_of_the_other_direction_are_refused() -> None:
    handlers = make_handlers(random_kv())
    device, host = GPULoadStoreSpec([0]), CPULoadStoreSpec([0])
    for handler, spec in [
        (handlers.gpu_to_cpu_handler, (host, device)),
        (handlers.cpu_to_gpu_handler, (device, host)),
        (handlers.cpu_to_gpu_handler, (host, object())),
    ]:
        with pytest.raises(TypeError, match="spec"):
            handler.transfer_async(0, spec)


def test_a_store_cannot_be_expedited_and_a_load_can() -> None:
    handlers = make_handlers(random_kv())
    device, host = GPULoadStoreSpec([0]), CPULoadStoreSpec([0])
    with pytest.raises(ValueError, match="expedited"):
        handlers.gpu_to_cpu_handler.transfer_async(0, (device, host), expedited=True)
    assert handlers.cpu_to_gpu_handler.transfer_async(0, (host, device), expedited=True)


def test_a_job_in_flight_keeps_its_blocks_and_slots_from_others() -> None:
    """Whether a job has ended when the next one is submitted is a race: tried until it has not."""
    pages = [torch.zeros(64, 1 << 20, dtype=torch.uint8) for _ in range(2)]
    handlers = make_handlers(pages, slots=64)
    store, load = handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler
    everything = np.arange(64)
    for attempt in range(100):
        job = 10 * attempt
        first = (GPULoadStoreSpec(everything), CPULoadStoreSpec(everything))
        assert store.transfer_async(job, first)
        conflict = ""
        try:
            # Reads a slot that is being written.
            load.transfer_async(job + 1, (CPULoadStoreSpec([63]), GPULoadStoreSpec([0])))
        except kvferry.TransferConflictError as error:
            conflict = str(error)
        handlers.gpu_to_cpu_handler.wait([job, job + 1])
        store.get_finished()
        load.get_finished()
        if conflict:
            assert f"job {job}" in conflict
            # What was refused left nothing behind.
            spec = (CPULoadStoreSpec([63]), GPULoadStoreSpec([0]))
            assert load.transfer_async(job + 1, spec)
            assert load.wait([job + 1])
            return
    pytest.fail("no job was in flight when the next one was submitted")


def test_other_threads_run_while_one_waits() -> None:
    pages = [torch.zeros(64, 1 << 20, dtype=torch.uint8) for _ in range(2)]
    handlers = make_handlers(pages, slots=64)
    stop, counted = threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    everything = np.arange(64)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        for job in range(1000):
            spec = (GPULoadStoreSpec(everything), CPULoadStoreSpec(everything))
            assert handlers.gpu_to_cpu_handler.transfer_async(job, spec)
            before = counted[0]
            assert handlers.gpu_to_cpu_handler.wait([job])
            handlers.gpu_to_cpu_handler.get_finished()
            if counted[0] > before:
                return
    finally:
        stop.set()
        thread.join()
    pytest.fail("the other thread never ran during a wait")


def test_after_shutdown_nothing_is_submitted_and_results_are_still_there() -> None:
    handlers = make_handlers(random_kv())
    spec = (GPULoadStoreSpec([0]), CPULoadStoreSpec([0]))
    assert handlers.gpu_to_cpu_handler.transfer_async(1, spec)
    handlers.shutdown()
    handlers.shutdown()
    with pytest.raises(kvferry.StateError):
        handlers.gpu_to_cpu_handler.transfer_async(2, spec)
    assert [result.job_id for result in handlers.gpu_to_cpu_handler.get_finished()] == [1]


def test_specs_without_groups_leave_out_the_beginning_of_the_first_chunk() -> None:
    """As in vLLM up to 0.18, whose specs have ids alone."""

    class Ids:
        def __init__(self, ids: list[int]) -> None:
            self.block_ids = np.array(ids)

    (tensor,) = random_kv(layers=1)
    was = tensor.clone()
    jobs = Jobs(make_handlers([tensor], blocks_per_chunk=2))
    assert jobs.store(Ids([0, 1, 2, 3]), Ids([0, 1])).success
    tensor.zero_()
    assert jobs.load(Ids([0, 1]), Ids([5, 6, 7])).success
    assert torch.equal(tensor[5:8], was[1:4])
    assert not tensor[:5].any()


def test_int32_ids_are_taken() -> None:
    (tensor,) = random_kv(layers=1)
    jobs = Jobs(make_handlers([tensor]))
    device, host = GPULoadStoreSpec([3]), CPULoadStoreSpec([2])
    device.block_ids = device.block_ids.astype(np.int32)
    host.block_ids = host.block_ids.astype(np.int32)
    assert jobs.store(device, host).success
    other = GPULoadStoreSpec([5])
    assert jobs.load(host, other).success
    assert torch.equal(tensor[5], tensor[3])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"slots": 0}, "slots"),
        ({"slots": -1}, "slots"),
        ({"slots": 2**62}, "slots"),
        ({"blocks_per_chunk": 0}, "blocks_per_chunk"),
        ({"max_jobs": 0}, "max_jobs"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_bad_number_is_named(options: dict, named: str) -> None:
    with pytest.raises((ValueError, MemoryError), match=named):
        make_handlers(random_kv(), **options)


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [torch.zeros(())],
        [torch.zeros(0, 4)],
        [torch.zeros(8, 6)[:, ::2]],
        [torch.zeros(4).expand(8, 4)],
        [torch.zeros(8, 4, device="meta")],
        KVCaches([KVCacheTensor(torch.zeros(8, 4), 17)], [[KVCacheRef(0, 16)]]),
        KVCaches([KVCacheTensor(torch.zeros(8, 4), 16)], [[KVCacheRef(0, 17)]]),
        KVCaches([KVCacheTensor(torch.zeros(8, 4), 16)], [[KVCacheRef(1, 16)]]),
        KVCaches([KVCacheTensor(torch.zeros(8, 4), 16)], []),
    ],
    ids=[
        "none",
        "no dimension",
        "no blocks",
        "gaps inside blocks",
        "blocks on top of each other",
        "another device",
        "page larger than block",
        "group page larger than page",
        "group of no tensor",
        "no groups",
    ],
)
def test_tensors_that_cannot_be_used_are_refused(tensors: Any) -> None:
    with pytest.raises(ValueError, match="kv_caches|tensors|groups|group"):
        make_handlers(tensors)


def test_a_negative_id_in_a_spec_of_someone_else_is_refused() -> None:
    handler = make_handlers(random_kv()).gpu_to_cpu_handler
    host = CPULoadStoreSpec([0])
    host.block_ids = np.array([-1])
    with pytest.raises(ValueError, match="slots"):
        handler.transfer_async(0, (GPULoadStoreSpec([0]), host))


def test_slots_lie_in_the_region_that_the_workers_share() -> None:
    tensors = random_kv(layers=3)
    slot_bytes = CpuGpuOffloadingHandlers.slot_bytes(tensors, 2)
    assert slot_bytes >= 2 * 3 * as_bytes(tensors[0]).shape[1]
    region = kvferry.PinnedRegion.private(SLOTS * slot_bytes, SLOTS)
    jobs = Jobs(make_handlers(tensors, blocks_per_chunk=2, region=region))
    was = [tensor.clone() for tensor in tensors]
    device, host = GPULoadStoreSpec([1, 2]), CPULoadStoreSpec([SLOTS - 1])
    assert jobs.store(device, host).success
    for tensor in tensors:
        tensor.zero_()
    # The region outlives its name here: the engine keeps it.
    del region
    assert jobs.load(host, device).success
    for tensor, before in zip(tensors, was, strict=True):
        assert torch.equal(tensor[1:3], before[1:3])


def test_a_region_that_is_too_small_or_has_no_such_rank_is_refused() -> None:
    tensors = random_kv()
    slot_bytes = CpuGpuOffloadingHandlers.slot_bytes(tensors, 1)
    region = kvferry.PinnedRegion.private((SLOTS - 1) * slot_bytes, SLOTS - 1)
    with pytest.raises(ValueError, match="region"):
        make_handlers(tensors, region=region)
    with pytest.raises(ValueError, match="rank"):
        make_handlers(tensors, slots=1, region=region, rank=1)
