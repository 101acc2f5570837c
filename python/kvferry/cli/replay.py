"""`kvferry replay`: what each policy and capacity would have hit on a trace."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from kvferry import WrongByteError, _core
from kvferry.cli import plot
from kvferry.cli.output import OutputFile
from kvferry.cli.table import print_rows

if TYPE_CHECKING:
    from kvferry.cli.rows import Row

__all__ = ["replay"]

_MOST_TOKENS = 2**32 - 1
_LARGEST_SEED = 2**64 - 1


def replay(  # noqa: PLR0913, PLR0917 - an argument for each option
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="Mooncake or kvtrace-1 file, plain or zstd-compressed; "
            "without one, the built-in workload of agents and chats is replayed.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Policies to replay with, separated by commas."),
    ] = "lru,arc",
    capacity: Annotated[
        str,
        typer.Option(
            metavar="SIZE,...",
            help="Capacities, separated by commas: percentages of the trace's unique chunks, "
            "or numbers of chunks.",
        ),
    ] = "1%,2.5%,5%,10%,20%,40%",
    chunk_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MOST_TOKENS,
            metavar="N",
            help="Tokens of a chunk, a multiple of the trace's block.",
        ),
    ] = 512,
    block_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MOST_TOKENS,
            metavar="N",
            help="Tokens behind each hash id of a Mooncake trace.",
        ),
    ] = 512,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_LARGEST_SEED,
            metavar="N",
            help="Seed of the built-in workload.",
            show_default="0",
        ),
    ] = None,
    move_bytes: Annotated[
        bool,
        typer.Option(
            "--move-bytes",
            help="Move each chunk's bytes between a device-side and a host pool in memory, with "
            "several requests in flight, and compare every byte that is loaded.",
        ),
    ] = False,
    chunk_bytes: Annotated[
        int,
        typer.Option(
            min=64,
            metavar="N",
            help="With --move-bytes: bytes of a chunk, a multiple of 64.",
        ),
    ] = 32_768,
    device_chunks: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="With --move-bytes: chunks that the device-side pool holds."
        ),
    ] = 4096,
    in_flight: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="With --move-bytes: requests in flight at once."),
    ] = 8,
    fault_rate: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="RATE",
            help="With --move-bytes: share of the transfers that fail.",
        ),
    ] = 0.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the results to this file as JSON."),
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw hit ratio over capacity to this file, .png or .svg.",
        ),
    ] = None,
) -> None:
    """Replays a trace of requests and prints the share of chunks that the host tier would hold.

    A request counts its longest stored prefix as hits, loads it, offers all its chunks, and ends.
    Status 1 means that a byte came back wrong.
    """
    errors = Console(stderr=True)
    if trace is not None and seed is not None:
        errors.print("note: --seed is for the built-in workload and has no effect on a trace file")
    if fault_rate and not move_bytes:
        errors.print("note: --fault-rate has no effect without --move-bytes")
    with ExitStack() as files:
        try:
            json_output = json_file and files.enter_context(OutputFile(json_file))
            plot_output = plot_file and files.enter_context(_plot_output(plot_file))
            with _progress(errors) as progress:
                rows: list[Row] = _core.replay(
                    trace,
                    policies=policy.split(","),
                    capacities=capacity.split(","),
                    chunk_tokens=chunk_tokens,
                    block_tokens=block_tokens,
                    seed=seed or 0,
                    progress=progress,
                    chunk_bytes=chunk_bytes if move_bytes else None,
                    device_chunks=device_chunks,
                    in_flight=in_flight,
                    fault_rate=fault_rate,
                )
            if json_output:
                json_output.write(json.dumps(rows, indent=1).encode() + b"\n")
            if plot_output:
                plot_output.write(plot.draw_hit_ratios(rows, plot_output.path))
        except WrongByteError as error:
            _fail(errors, str(error), status=1)
        except (ValueError, OSError, MemoryError) as error:
            _fail(errors, str(error))
        except KeyboardInterrupt:
            _fail(errors, "interrupted", status=128 + signal.SIGINT)
    # Wider than any table: where a terminal is too narrow, it wraps lines and no figure is cut.
    print_rows(rows, Console(highlight=False, width=1000))


def _plot_output(path: Path) -> OutputFile:
    """The file of the plot, if it can be drawn.

    Raises:
        ValueError: The extension is unknown, or matplotlib is not installed.
    """
    if path.suffix.lower() not in plot.FORMATS:
        raise ValueError(f"--plot {path}: expected a name ending in {' or '.join(plot.FORMATS)}")
    plot.load_matplotlib()
    return OutputFile(path)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield update


def _fail(console: Console, message: str, status: int = 2) -> NoReturn:
    console.print(f"kvferry: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)
