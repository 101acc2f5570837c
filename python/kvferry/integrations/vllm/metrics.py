"""What the host tier reports to vLLM's metrics, in words that every generation can translate.

The figures that vLLM's own host tier has keep their names, so that dashboards go on working. All
others begin with `vllm:kvferry_`: where an engine follows another in one process, vLLM clears what
begins with `vllm:` from the registry, and anything else would be there twice, which is an error.

Nothing here imports vLLM.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvferry._core import Stats
from kvferry.integrations.vllm.tier import Counts, Tier

__all__ = ["ALLOCATION_SIZE", "METRICS", "Metric", "Readings"]

ALLOCATION_SIZE = "vllm:kv_offload_cpu_allocation_size"
_SKIPPED = "vllm:kv_offload_stores_skipped"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        kind: What it is to Prometheus.
        text: What it means.
        buckets: Those of a histogram.
    """

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    buckets: tuple[float, ...] | None = None


METRICS = {
    "vllm:kv_offload_cpu_cache_usage_perc": Metric(
        "gauge", "Share of the host tier that transfers hold: 0 is idle, 1 is all of it."
    ),
    "vllm:kv_offload_cpu_cache_write_usage_perc": Metric(
        "gauge", "Share of the host tier that stores hold."
    ),
    "vllm:kv_offload_cpu_cache_read_usage_perc": Metric(
        "gauge", "Share of the host tier that loads hold."
    ),
    ALLOCATION_SIZE: Metric(
        "histogram",
        "Chunks that a store needed room for.",
        (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144),
    ),
    _SKIPPED: Metric(
        "counter", "Chunks not stored because they were not offered often enough yet."
    ),
    "vllm:kvferry_host_chunks": Metric("gauge", "Chunks that the host tier has room for."),
    "vllm:kvferry_host_chunks_resident": Metric("gauge", "Chunks in the host tier."),
    "vllm:kvferry_host_chunks_free": Metric("gauge", "Chunks that fit without an eviction."),
    "vllm:kvferry_host_chunks_pending": Metric("gauge", "Chunks being stored."),
    "vllm:kvferry_host_chunks_pinned": Metric("gauge", "Chunks being loaded."),
    "vllm:kvferry_host_chunks_draining": Metric(
        "gauge", "Places of given up chunks whose transfer has not ended."
    ),
    "vllm:kvferry_host_chunks_held_when_idle": Metric(
        "gauge", "Chunks held although no transfer is in flight. Not 0 is a fault: report it."
    ),
    "vllm:kvferry_longest_pending_seconds": Metric("gauge", "Age of the oldest store in flight."),
    "vllm:kvferry_hits": Metric("counter", "Chunks reused, once per request."),
    "vllm:kvferry_misses": Metric("counter", "Chunks missing when offered, once per request."),
    "vllm:kvferry_stored": Metric("counter", "Chunks stored."),
    "vllm:kvferry_evicted": Metric("counter", "Chunks that left to make room."),
    "vllm:kvferry_stores_declined": Metric("counter", "Stores that found no room."),
    "vllm:kvferry_stores_failed": Metric("counter", "Stores that failed."),
    "vllm:kvferry_loads_failed": Metric("counter", "Loads that failed; their chunks were dropped."),
    "vllm:kvferry_pending_expired": Metric("counter", "Chunks whose store missed its deadline."),
    "vllm:kvferry_completions_late": Metric(
        "counter", "Completions of what was given up or is gone."
    ),
    "vllm:kvferry_events_lost": Metric("counter", "KV events that did not fit between two steps."),
}


class Readings:
    """Takes readings of a tier: gauges as they are, counters as what came since the last time."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._before: dict[str, float] = {}

    def take(self) -> Iterator[tuple[str, Literal["counter", "gauge"], float]]:
        """Each metric that is no histogram: its name, its kind and its value."""
        stats = self._tier.manager.stats()
        capacity = stats.capacity
        held = stats.pinned + stats.pending + stats.draining
        yield "vllm:kv_offload_cpu_cache_usage_perc", "gauge", held / capacity
        yield "vllm:kv_offload_cpu_cache_write_usage_perc", "gauge", stats.pending / capacity
        yield "vllm:kv_offload_cpu_cache_read_usage_perc", "gauge", stats.pinned / capacity
        yield "vllm:kvferry_host_chunks", "gauge", capacity
        yield "vllm:kvferry_host_chunks_resident", "gauge", stats.resident
        yield "vllm:kvferry_host_chunks_free", "gauge", stats.free
        yield "vllm:kvferry_host_chunks_pending", "gauge", stats.pending
        yield "vllm:kvferry_host_chunks_pinned", "gauge", stats.pinned
        yield "vllm:kvferry_host_chunks_draining", "gauge", stats.draining
        idle = self._tier.held_when_idle(stats)
        yield "vllm:kvferry_host_chunks_held_when_idle", "gauge", idle
        yield "vllm:kvferry_longest_pending_seconds", "gauge", stats.longest_pending_us / 1e6
        for name, total in _totals(stats, self._tier.counts).items():
            since = total - self._before.get(name, 0)
            self._before[name] = total
            if since:
                yield name, "counter", since


def _totals(stats: Stats, counts: Counts) -> dict[str, float]:
    return {
        _SKIPPED: stats.declined_threshold,
        "vllm:kvferry_hits": stats.hits,
        "vllm:kvferry_misses": stats.misses,
        "vllm:kvferry_stored": stats.stored,
        "vllm:kvferry_evicted": stats.evicted,
        "vllm:kvferry_stores_declined": stats.declined_full + stats.declined_index,
        "vllm:kvferry_stores_failed": counts.failed_stores,
        "vllm:kvferry_loads_failed": counts.failed_loads + counts.unavailable_loads,
        "vllm:kvferry_pending_expired": counts.expired,
        "vllm:kvferry_completions_late": stats.late + counts.unmatched,
        "vllm:kvferry_events_lost": stats.events_lost,
    }
