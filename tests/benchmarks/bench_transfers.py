"""Measures the host backend beside one large `memcpy` and beside torch's indexing.

One run prints one table: for each measure the median of its rounds and where the middle 80 % of
them lie, the ratio of the medians, and the target. Rounds of the two take turns. Times are those
that pass on the clock: several threads copy.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks import table
from benchmarks.rows import Row, in_turn
from kvferry import CpuGpuOffloadingHandlers, CPULoadStoreSpec, GPULoadStoreSpec

clock = time.perf_counter_ns
MIB = 1 << 20


def timed_ms(run: Callable[[], object]) -> float:
    started = clock()
    run()
    return (clock() - started) / 1e6


@dataclass
class Pools:
    """Tensors of one size each, and handlers over them."""

    tensors: list[torch.Tensor]
    handlers: CpuGpuOffloadingHandlers
    next_job: int = 0

    @classmethod
    def make(cls, tensors: int, blocks: int, page_bytes: int, slots: int) -> Pools:
        pool = [torch.ones(blocks, page_bytes, dtype=torch.uint8) for _ in range(tensors)]
        return cls(pool, CpuGpuOffloadingHandlers(pool, 1, slots, compute_stream=None))

    def run(self, direction: str, blocks: np.ndarray, slots: np.ndarray) -> None:
        """Submits a job and waits until it is seen finished."""
        device, host = GPULoadStoreSpec(blocks), CPULoadStoreSpec(slots)
        store = direction == "store"
        handler = self.handlers.gpu_to_cpu_handler if store else self.handlers.cpu_to_gpu_handler
        job, self.next_job = self.next_job, self.next_job + 1
        if not handler.transfer_async(job, (device, host) if store else (host, device)):
            raise SystemExit("the job was declined")
        handler.wait([job])
        (result,) = handler.get_finished()
        if not result.success:
            raise SystemExit(f"the job failed: {result.error}")


class LargeCopy:
    """One area copied to another, each thread its share, by the C library's `memcpy`."""

    def __init__(self, size: int, threads: int) -> None:
        self._source = torch.ones(size, dtype=torch.uint8)
        self._destination = torch.ones(size, dtype=torch.uint8)
        self._shares = [(i * size // threads, (i + 1) * size // threads) for i in range(threads)]
        self._threads = ThreadPoolExecutor(threads)

    def run(self) -> None:
        source, destination = self._source.data_ptr(), self._destination.data_ptr()

        def copy(share: tuple[int, int]) -> None:
            begin, end = share
            ctypes.memmove(destination + begin, source + begin, end - begin)

        list(self._threads.map(copy, self._shares))


def beside_memcpy(fragment: int, direction: str, total: int, rounds: int) -> Row:
    """Fragments that cannot be merged: blocks and slots in orders of their own."""
    count = total // fragment
    pools = Pools.make(1, count, fragment, count)
    rng = np.random.default_rng(fragment)
    blocks, slots = rng.permutation(count), rng.permutation(count)
    large = LargeCopy(total, os.cpu_count() or 1)
    pools.run("store", blocks, slots)
    large.run()
    measured = in_turn(
        rounds,
        lambda _: timed_ms(large.run),
        lambda _: timed_ms(lambda: pools.run(direction, blocks, slots)),
    )
    name = f"{direction} of {total // MIB} MiB in fragments of {fragment >> 10} KiB"
    least = 0.6 if fragment < 16 << 10 else 0.9 if fragment >= 64 << 10 else None
    return Row(name, "", "ms", *measured, least_ratio=least)


def beside_torch(
    rounds: int, chunks: int = 1024, layers: int = 32, page: int = 16 << 10
) -> list[Row]:
    pools = Pools.make(layers, 2 * chunks, page, 2 * chunks)
    host = [torch.ones(2 * chunks, page, dtype=torch.uint8) for _ in range(layers)]
    rng = np.random.default_rng(1)
    blocks, slots = rng.permutation(2 * chunks)[:chunks], rng.permutation(2 * chunks)[:chunks]
    from_blocks, to_slots = torch.from_numpy(blocks), torch.from_numpy(slots)

    def select_and_copy() -> None:
        for device, there in zip(pools.tensors, host, strict=True):
            there.index_copy_(0, to_slots, device.index_select(0, from_blocks))

    def select_into() -> None:
        for device, there in zip(pools.tensors, host, strict=True):
            torch.index_select(device, 0, from_blocks, out=there[:chunks])

    def ours(_: int) -> float:
        return timed_ms(lambda: pools.run("store", blocks, slots))

    select_and_copy()
    ours(0)
    what = f"store of {chunks:,} chunks in {layers} layers, {page >> 10} KiB each, beside "
    against = (
        ("index_copy_(index_select)", select_and_copy, 3.0),
        ("index_select(out=)", select_into, 1.2),
    )
    return [
        Row(
            what + name,
            "",
            "ms",
            *in_turn(rounds, lambda _, run=run: timed_ms(run), ours),
            least_ratio=least,
        )
        for name, run, least in against
    ]


def write_alone(rounds: int, total: int) -> str:
    """How fast the machine writes, reading nothing: no copy can be faster."""
    area = torch.ones(total, dtype=torch.uint8)
    took = statistics.median(timed_ms(lambda: area.fill_(1)) for _ in range(rounds))
    return f"* writing {total // MIB} MiB and reading nothing (torch's `fill_`): {took:.1f} ms"


def submit(rounds: int, count: int = 8192) -> Row:
    """Pages as small as they come: the copies of a submit are not to disturb the next one."""
    pools = Pools.make(1, count, 64, count)
    rng = np.random.default_rng(2)
    blocks, slots = (
        GPULoadStoreSpec(rng.permutation(count)),
        CPULoadStoreSpec(rng.permutation(count)),
    )
    handler = pools.handlers.gpu_to_cpu_handler
    times = []
    for job in range(rounds):
        started = clock()
        accepted = handler.transfer_async(job, (blocks, slots))
        times.append((clock() - started) / 1e3)
        if not accepted:
            raise SystemExit("the job was declined")
        handler.wait([job])
        handler.get_finished()
    return Row(f"submit of {count:,} blocks, one tensor", "", "µs", [], times, at_most=300)


def one_block(rounds: int, page: int) -> Row:
    pools = Pools.make(1, 1024, page, 1024)
    store, times = pools.handlers.gpu_to_cpu_handler, []
    specs = [(GPULoadStoreSpec([i]), CPULoadStoreSpec([1023 - i])) for i in range(1024)]
    for job in range(rounds):
        spec = specs[job % 1024]
        started = clock()
        store.transfer_async(job, spec)
        while not store.get_finished():
            pass
        times.append((clock() - started) / 1e3)
    what = f"one block of {page >> 10} KiB, submit to seen finished"
    return Row(what, "", "µs", [], times, at_most=15)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds: for a trial")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the file that keeps the table")
    options = parser.parse_args(given)
    rounds = 5 if options.quick else 21
    head = table.machine(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    rows = []
    for fragment in (4 << 10, 16 << 10, 64 << 10, 256 << 10, MIB):
        for direction in ("store", "load"):
            print(f"{direction} {fragment >> 10} KiB", file=sys.stderr, flush=True)
            rows.append(beside_memcpy(fragment, direction, 256 * MIB, rounds))
    print("beside torch", file=sys.stderr, flush=True)
    rows += beside_torch(rounds)
    head.append(write_alone(rounds, 512 * MIB))
    rows.append(submit(20 * rounds))
    rows += [one_block(1000 * rounds, page) for page in (4 << 10, 32 << 10, 256 << 10)]
    lines = ["", *head, "", *table.table(rows, "baseline"), "", *table.outcome(rows)]
    print("\n".join(lines))
    if options.write:
        table.write(options.write, lines, Path(__file__).name)


if __name__ == "__main__":
    main()
