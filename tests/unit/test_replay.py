"""The native replay: what it counts, what it refuses, and how it lets go of the interpreter."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from kvferry import _core

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = {
    "schema": str,
    "trace": str,
    "seed": int,
    "chunk_tokens": int,
    "policy": str,
    "capacity": str,
    "capacity_chunks": int,
    "requests": int,
    "chunks": int,
    "hit_chunks": int,
    "hit_ratio": float,
    "stored": int,
    "evicted": int,
    "seconds": float,
    "ns_per_chunk": float,
    "moved": type(None),
}


def mooncake(path: Path, *chains: list[int]) -> Path:
    """Writes a trace with these hash ids, one request a second."""
    lines = [
        json.dumps(
            {
                "timestamp": 1000 * second,
                "input_length": 512 * len(ids),
                "output_length": 1,
                "hash_ids": ids,
            }
        )
        for second, ids in enumerate(chains)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_come_for_every_policy_and_capacity_with_their_fields() -> None:
    rows = _core.replay(policies=["lru", "arc"], capacities=["5%", "2000"], seed=7)
    assert [(row["policy"], row["capacity"]) for row in rows] == [
        ("lru", "5%"),
        ("lru", "2000"),
        ("arc", "5%"),
        ("arc", "2000"),
    ]
    for row in rows:
        assert {name: type(value) for name, value in row.items()} == FIELDS
        assert row["schema"] == "kvferry-replay-1"
        assert (row["seed"], row["trace"], row["chunk_tokens"]) == (7, "built-in", 512)
        assert row["hit_ratio"] == pytest.approx(row["hit_chunks"] / row["chunks"])
        assert row["stored"] - row["evicted"] == row["capacity_chunks"]
        assert row["ns_per_chunk"] == pytest.approx(row["seconds"] * 1e9 / row["chunks"])


def test_a_seed_decides_every_count() -> None:
    def counts(seed: int) -> list[int]:
        (row,) = _core.replay(policies=["lru"], capacities=["5%"], seed=seed)
        return [row["requests"], row["chunks"], row["hit_chunks"], row["stored"]]

    assert counts(1) == counts(1)
    assert counts(1) != counts(2)


def test_a_trace_file_is_replayed_and_has_no_seed(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", [1, 2, 3], [1, 2, 3], [9], [8], [1, 2, 3])
    (row,) = _core.replay(path, policies=["lru"], capacities=["4"])
    assert row["trace"] == str(path)
    assert row["seed"] is None
    # The last request has lost its tail, the least recent chunk of four.
    assert (row["requests"], row["chunks"], row["hit_chunks"]) == (5, 11, 5)
    assert (row["stored"], row["evicted"]) == (6, 2)
    assert _core.replay(str(path), policies=["lru"], capacities=["4"])[0]["hit_chunks"] == 5


def test_a_request_longer_than_the_capacity_keeps_its_first_chunks(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    for row in _core.replay(path, policies=["lru", "arc"], capacities=["2"]):
        assert (row["chunks"], row["hit_chunks"], row["stored"]) == (10, 2, 2)


def test_a_faulty_trace_is_a_value_error_with_file_and_line(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", [1], [2])
    path.write_text(path.read_text() + '{"timestamp": -1')
    with pytest.raises(ValueError, match=r"t\.jsonl:3: malformed line: EOF"):
        _core.replay(path, policies=["lru"], capacities=["1"])


def test_what_cannot_be_opened_is_an_os_error_of_its_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        _core.replay(tmp_path / "missing", policies=["lru"], capacities=["1"])
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        _core.replay(tmp_path, policies=["lru"], capacities=["1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": ["mru"]}, 'unknown policy "mru"'),
        ({"policies": [""]}, "unknown policy"),
        ({"capacities": ["abc"]}, "expected a percentage"),
        ({"capacities": ["0%"]}, "above 0 and at most 100"),
        ({"capacities": ["150%"]}, "above 0 and at most 100"),
        ({"capacities": ["0"]}, "at least one chunk"),
        ({"chunk_tokens": 100}, "positive multiple"),
        ({"chunk_tokens": 0}, "positive multiple"),
        ({"chunk_tokens": 2**40}, "positive multiple"),
        ({"capacities": ["0.0000001%"]}, "less than one chunk"),
    ],
)
def test_options_that_make_no_sense_are_value_errors(
    options: dict[str, object], message: str
) -> None:
    good = {"policies": ["lru"], "capacities": ["5%"]}
    with pytest.raises(ValueError, match=message):
        _core.replay(**(good | options))


def test_options_are_checked_before_the_trace_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown policy"):
        _core.replay(tmp_path / "missing", policies=["mru"], capacities=["1"])


def test_progress_is_told_until_the_end() -> None:
    calls: list[tuple[str, int, int | None]] = []
    _core.replay(
        policies=["lru", "arc"],
        capacities=["5%"],
        chunk_tokens=128,
        progress=lambda what, done, total: calls.append((what, done, total)),
    )
    assert {what for what, _, _ in calls} == {"lru 5%", "arc 5%"}
    done = [done for _, done, _ in calls]
    assert done == sorted(done)
    (total,) = {total for _, _, total in calls}
    assert total is not None
    assert total / 2 < done[-1] <= total


def test_an_exception_of_progress_ends_the_replay() -> None:
    def fail(_what: str, _done: int, _total: int | None) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        _core.replay(policies=["lru"], capacities=["5%"] * 50, chunk_tokens=64, progress=fail)


def test_an_interrupt_ends_a_replay_without_progress() -> None:
    # Set by the timer's own thread, delivered to the main thread by the replay's checks alone.
    timer = threading.Timer(0.0, signal.raise_signal, [signal.SIGINT])

    def start() -> None:
        timer.start()
        _core.replay(policies=["lru"], capacities=["5%"] * 1000, chunk_tokens=64)

    with pytest.raises(KeyboardInterrupt):
        start()
    timer.join()


def test_other_threads_run_while_a_replay_does() -> None:
    class EnoughError(Exception):
        pass

    replaying = threading.Event()
    counted = threading.Event()

    def count() -> None:
        replaying.wait()
        counted.set()

    def watch(_what: str, _done: int, _total: int | None) -> None:
        if counted.is_set():
            raise EnoughError
        replaying.set()

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(EnoughError):
        _core.replay(policies=["lru"], capacities=["5%"] * 500, progress=watch)
    thread.join()


MOVED_FIELDS = {
    "chunk_bytes": int,
    "bytes_stored": int,
    "bytes_loaded": int,
    "bytes_verified": int,
    "failed_stores": int,
    "failed_loads": int,
    "declined_stores": int,
    "gb_per_second": float,
}


def test_a_replay_that_moves_bytes_says_what_it_moved_and_verified() -> None:
    (row,) = _core.replay(policies=["lru"], capacities=["5%"], chunk_tokens=4096, chunk_bytes=1024)
    moved = row["moved"]
    assert moved is not None
    assert {name: type(value) for name, value in moved.items()} == MOVED_FIELDS
    assert moved["bytes_verified"] == 1024 * row["hit_chunks"] > 0
    assert moved["bytes_stored"] == 1024 * row["stored"]


def test_with_faults_hits_fall_and_a_seed_decides_which() -> None:
    def replayed(rate: float) -> tuple[int, int]:
        (row,) = _core.replay(
            policies=["arc"],
            capacities=["5%"],
            chunk_tokens=4096,
            chunk_bytes=64,
            in_flight=1,
            fault_rate=rate,
        )
        assert row["moved"] is not None
        return row["hit_chunks"], row["moved"]["failed_loads"] + row["moved"]["failed_stores"]

    sound, faulty = replayed(0.0), replayed(0.2)
    assert sound[1] == 0
    assert faulty[1] > 0
    assert faulty[0] < sound[0]
    assert replayed(0.2) == faulty


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_bytes": 100}, "chunk_bytes: not a positive multiple of 64"),
        ({"chunk_bytes": 64, "fault_rate": 2.0}, "fault_rate: not within 0 and 1"),
        ({"chunk_bytes": 64, "device_chunks": 0}, "device_chunks: no chunk fits"),
    ],
)
def test_options_of_moving_out_of_range_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        _core.replay(policies=["lru"], capacities=["5%"], **options)


def test_pools_that_do_not_fit_in_memory_are_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="bytes"):
        _core.replay(
            policies=["lru"], capacities=["5%"], chunk_bytes=1 << 40, device_chunks=1 << 20
        )
