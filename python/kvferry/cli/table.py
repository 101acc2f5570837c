"""The result of a replay as tables for people."""

from collections.abc import Callable, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from kvferry.cli.rows import Row, capacities_of, policies_of

__all__ = ["print_rows"]


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Prints hit ratios and stored chunks: a line for each policy, a column for each capacity."""
    first = rows[0]
    source = first["trace"]
    if first["seed"] is not None:
        source = f"{source} workload, seed {first['seed']}"
    console.print(
        f"{source}: {first['requests']:,} requests, "
        f"{first['chunks']:,} chunks of {first['chunk_tokens']} tokens",
        markup=False,
        soft_wrap=True,
    )
    best = {
        capacity: max(row["hit_chunks"] for row in rows if _capacity(row) == capacity)
        for capacity in capacities_of(rows)
    }

    def hit_ratio(row: Row) -> str:
        text = f"{100 * row['hit_ratio']:.2f}"
        return f"[bold]{text}[/bold]" if row["hit_chunks"] == best[_capacity(row)] else text

    hits = _matrix("hit ratio, %", rows)
    hits.add_column("ns/chunk", justify="right")
    for policy in policies_of(rows):
        times = [row["ns_per_chunk"] for row in rows if row["policy"] == policy]
        hits.add_row(policy, *_cells(rows, policy, hit_ratio), f"{median(times):.0f}")
    stored = _matrix("chunks stored", rows)
    for policy in policies_of(rows):
        stored.add_row(policy, *_cells(rows, policy, lambda row: f"{row['stored']:,}"))
    console.print(hits, stored, sep="\n")
    if first["moved"]:
        console.print(_moved(rows))


def _moved(rows: Sequence[Row]) -> Table:
    """What was moved: a line for each policy and capacity."""
    table = Table(
        title="bytes moved, and each loaded byte compared",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    for header in ("policy", "capacity"):
        table.add_column(header, no_wrap=True)
    for header in ("GB stored", "GB loaded", "bytes verified", "GB/s", "failed"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        moved = row["moved"]
        if moved:
            failed = moved["failed_stores"] + moved["failed_loads"]
            table.add_row(
                row["policy"],
                row["capacity"],
                f"{moved['bytes_stored'] / 1e9:.2f}",
                f"{moved['bytes_loaded'] / 1e9:.2f}",
                f"{moved['bytes_verified']:,}",
                f"{moved['gb_per_second']:.2f}",
                f"{failed:,}",
            )
    return table


def _capacity(row: Row) -> tuple[str, int]:
    return row["capacity"], row["capacity_chunks"]


def _matrix(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for given, chunks in capacities_of(rows):
        header = f"{given}\n{chunks:,}" if given.endswith("%") else f"{chunks:,}"
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _cells(rows: Sequence[Row], policy: str, cell: Callable[[Row], str]) -> list[str]:
    found = {_capacity(row): cell(row) for row in rows if row["policy"] == policy}
    return [found[capacity] for capacity in capacities_of(rows)]
