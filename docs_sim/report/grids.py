"""Heatmaps of similarity grids, readable from two layers to some hundreds."""

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import seaborn
from matplotlib.figure import Figure

from docs_sim.errors import InputError
from docs_sim.report.text import printable

# A result looks the same whatever the user's matplotlibrc says (LaTeX that is not installed, 20,000 dots an inch).
STYLE = dict(matplotlib.rcParamsDefault) | {
    "backend": "agg",
    "svg.hashsalt": "docs-sim",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
_MAX_TICKS, _MAX_LONG_TICKS = 24, 16  # long labels have three characters or more
COLOURS = "viridis"  # even in lightness and safe for colour-blind readers, also in print
_TITLE_WIDTH = 64
NOTHING = "0.82"
_FARTHEST = 1e6  # of an end of the colour scale; beyond it matplotlib runs out of digits


@dataclass(frozen=True)
class GridFigure:
    """What to draw.

    Attributes:
        values: (L, L); the diagonal is not coloured and does not enter the scale.
        labels: of rows and columns.
        title: first line.
        subtitle: second line.
        colour_label: what the colours mean.
        axis_label: what rows and columns are.
        vmin, vmax: ends of the colour scale; those of the values if None.
        pale: whether to show it pale: its values say nothing.
    """

    values: np.ndarray
    labels: Sequence[str]
    title: str
    subtitle: str
    colour_label: str
    axis_label: str
    vmin: float | None = None
    vmax: float | None = None
    pale: bool = False


def draw_grid(grid: GridFigure) -> Figure:
    """A square heatmap with thinned ticks and a stated colour scale. Needs no display.

    Raises:
        InputError: if the ends of the colour scale are not in order.
    """
    check_colour_range(grid.vmin, grid.vmax)
    with matplotlib.rc_context(STYLE):
        return _draw(grid)


def _draw(grid: GridFigure) -> Figure:
    count = len(grid.labels)
    diagonal = np.eye(count, dtype=bool)
    low, high = _colour_range(grid, grid.values[~diagonal])
    figure = Figure(figsize=(6.4, 5.6), layout="constrained", dpi=150)
    axes = figure.subplots()
    axes.set_facecolor(NOTHING)
    step = math.ceil(count / (_MAX_LONG_TICKS if max(map(len, grid.labels)) > 2 else _MAX_TICKS))
    seaborn.heatmap(
        grid.values,
        mask=diagonal | ~np.isfinite(grid.values),
        ax=axes,
        square=True,
        cmap=COLOURS,
        vmin=low,
        vmax=high,
        alpha=0.3 if grid.pale else 1.0,
        xticklabels=False,
        yticklabels=False,
        cbar_kws={"label": grid.colour_label, "extend": _beyond(grid.values[~diagonal], low, high), "shrink": 0.85},
        rasterized=True,  # viewers draw hairlines between the cells of a vector grid
    )
    positions = range(0, count, step)
    shown = [grid.labels[position] for position in positions]
    axes.set_xticks([position + 0.5 for position in positions], shown, rotation=0, fontsize=8)
    axes.set_yticks([position + 0.5 for position in positions], shown, rotation=0, fontsize=8)
    axes.set_xlabel(grid.axis_label)
    axes.set_ylabel(grid.axis_label)
    title = textwrap.fill(printable(grid.title), _TITLE_WIDTH, max_lines=3, placeholder=" ...")
    axes.set_title(f"{title}\n{grid.subtitle}", fontsize=10, parse_math=False)
    return figure


def check_colour_range(vmin: float | None, vmax: float | None) -> None:
    """Refuse a colour scale without extent, before the work and not after it.

    Raises:
        InputError: if ``vmin`` is not below ``vmax``, or one is no number or far from every similarity.
    """
    ends = [end for end in (vmin, vmax) if end is not None]
    if not all(abs(end) <= _FARTHEST for end in ends) or (len(ends) == 2 and ends[0] >= ends[1]):
        ends_in_words = " to ".join("the data" if end is None else str(end) for end in (vmin, vmax))
        raise InputError(
            f"no colour scale runs from {ends_in_words}: vmin must be a number below vmax, both within {_FARTHEST:,.0f}"
        )


def _colour_range(grid: GridFigure, values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low = grid.vmin if grid.vmin is not None else float(finite.min(initial=np.inf))
    high = grid.vmax if grid.vmax is not None else float(finite.max(initial=-np.inf))
    if not finite.size:
        low, high = (0.0 if grid.vmin is None else low), (1.0 if grid.vmax is None else high)
    if low < high:
        return low, high
    # No extent: an end that was asked for stays, the other gives way.
    extent = max(low - high, abs(low) * 0.01, 1e-6)
    return (low if grid.vmin is not None else high - extent, high if grid.vmax is not None else low + extent)


def _beyond(values: np.ndarray, low: float, high: float) -> str:
    """Which ends of the colour bar need an arrow, because values lie beyond a chosen limit."""
    below, above = bool(np.any(values < low)), bool(np.any(values > high))  # NaN is neither
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """The figure as a file of this format, the same bytes for the same figure."""
    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in letters that the font lacks
        figure.savefig(buffer, format=suffix, metadata=metadata, dpi=150 if suffix == "png" else 300)
    return buffer.getvalue()
