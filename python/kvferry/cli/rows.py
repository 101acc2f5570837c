"""What a replay reports for one policy and one capacity."""

from collections.abc import Iterable, Sequence
from typing import TypedDict

__all__ = ["Moved", "Row", "capacities_of", "policies_of"]


class Moved(TypedDict):
    """What a replay moved."""

    chunk_bytes: int
    bytes_stored: int
    bytes_loaded: int
    bytes_verified: int
    failed_stores: int
    failed_loads: int
    declined_stores: int
    gb_per_second: float


class Row(TypedDict):
    """One replay: an object of the `--json` file, field by field."""

    schema: str
    trace: str
    seed: int | None
    chunk_tokens: int
    policy: str
    capacity: str
    capacity_chunks: int
    requests: int
    chunks: int
    hit_chunks: int
    hit_ratio: float
    stored: int
    evicted: int
    seconds: float
    ns_per_chunk: float
    moved: Moved | None


def policies_of(rows: Iterable[Row]) -> Sequence[str]:
    """The policies in the order of the rows, each once."""
    return list(dict.fromkeys(row["policy"] for row in rows))


def capacities_of(rows: Iterable[Row]) -> Sequence[tuple[str, int]]:
    """The capacities as given and in chunks, in the order of the rows, each once."""
    return list(dict.fromkeys((row["capacity"], row["capacity_chunks"]) for row in rows))
