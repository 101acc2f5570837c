"""Hit ratio over capacity as a picture."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvferry.cli.rows import Row, policies_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FORMATS", "draw_hit_ratios", "load_matplotlib"]

FORMATS = (".png", ".svg")

# Okabe and Ito's palette, without its yellow and its black: told apart by colour-blind readers.
# Markers differ too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LABEL_POINTS = 10
_SIZE_INCHES = (8, 5)
# The axes take about four fifths of the height, for 100 per cent.
_POINTS_PER_PERCENT = 0.8 * 72 * _SIZE_INCHES[1] / 100


def load_matplotlib() -> None:
    """Imports what drawing needs.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        message = "--plot needs matplotlib, which is not installed: pip install 'kvferry[cli]'"
        raise ValueError(message) from error


def draw_hit_ratios(rows: Sequence[Row], path: Path) -> bytes:
    """Draws one line for each policy, in the format of `path`'s extension."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # The salt and the missing date make equal results equal files.
    with mpl.rc_context({"svg.hashsalt": "kvferry", "font.size": 10}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        in_shares = all(row["capacity"].endswith("%") for row in rows)
        _frame(axes, rows, in_shares)
        ends = [
            _line(axes, [row for row in rows if row["policy"] == policy], index, in_shares)
            for index, policy in enumerate(policies_of(rows))
        ]
        _label_ends(axes, max(_position(row, in_shares) for row in rows), ends)
        picture = io.BytesIO()
        kind = path.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(picture, format=kind, dpi=150, metadata=metadata)
    return picture.getvalue()


def _frame(axes: "Axes", rows: Sequence[Row], in_shares: bool) -> None:
    """Titles, scales and grid."""
    from matplotlib.ticker import FixedLocator, NullLocator

    first = rows[0]
    axes.set_title(
        "Hit ratio over host-tier capacity\n"
        f"{_source(first)}: {first['chunks']:,} chunks of {first['chunk_tokens']} tokens",
        loc="left",
        fontsize=11,
        parse_math=False,
    )
    axes.set_xlabel(
        "host-tier capacity, % of the trace's unique chunks (log scale)"
        if in_shares
        else "host-tier capacity, chunks (log scale)"
    )
    axes.set_ylabel("hit ratio, % of chunks")
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    ticks = {_position(row, in_shares): _tick(row, in_shares) for row in rows}
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([ticks[x] for x in sorted(ticks)])
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: "Axes", rows: Sequence[Row], index: int, in_shares: bool) -> "_End":
    """Draws the line of one policy."""
    points = sorted((_position(row, in_shares), 100 * row["hit_ratio"]) for row in rows)
    colour = _COLOURS[index % len(_COLOURS)]
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        marker=_MARKERS[index % len(_MARKERS)],
        linewidth=1.8,
        markersize=5,
    )
    return _End(points[-1][1], rows[0]["policy"], colour)


class _End(NamedTuple):
    """Where a policy's line ends."""

    y: float
    policy: str
    colour: str


def _source(row: Row) -> str:
    if row["seed"] is not None:
        return f"{row['trace']} workload, seed {row['seed']}"
    return Path(row["trace"]).name


def _position(row: Row, in_shares: bool) -> float:
    return float(row["capacity"].removesuffix("%")) if in_shares else row["capacity_chunks"]


def _tick(row: Row, in_shares: bool) -> str:
    return row["capacity"] if in_shares else f"{row['capacity_chunks']:,}"


def _label_ends(axes: "Axes", right: float, ends: Sequence[_End]) -> None:
    """Writes each policy's name beside the end of its line, moved apart where lines meet."""
    gap = 1.2 * _LABEL_POINTS / _POINTS_PER_PERCENT
    at = 100 + gap
    for end in sorted(ends, reverse=True):
        at = min(end.y, at - gap)
        axes.annotate(
            end.policy,
            xy=(right, end.y),
            xytext=(12, (at - end.y) * _POINTS_PER_PERCENT),
            textcoords="offset points",
            va="center",
            color=end.colour,
            fontsize=_LABEL_POINTS,
            fontweight="bold",
            annotation_clip=False,
        )
