"""Several grids over the same layers in one figure, each with its own colour scale."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs_sim.report.grids import COLOURS, NOTHING, STYLE
from docs_sim.report.text import printable

_SIDE = 2.9  # inches, of a panel
_TICKS = 8
_ROUNDING = 1e-6  # of single precision: no difference that a colour should show
_WIDTH = 34  # characters of a panel's title


@dataclass(frozen=True)
class Panel:
    """One grid.

    Attributes:
        values: (L, L); the diagonal and what is not finite is grey.
        title: above it, in one or two lines.
        pale: whether to show it pale: its values say nothing.
    """

    values: np.ndarray
    title: str
    pale: bool = False


def draw_panels(panels: Sequence[Panel], labels: Sequence[str], title: str, axis_label: str) -> Figure:
    """Square heatmaps side by side, in about as many columns as rows. Needs no display.

    Args:
        panels: at least one.
        labels: of the rows and columns of each.
        title: of the figure.
        axis_label: what rows and columns are.
    """
    square = math.ceil(math.sqrt(len(panels)))
    columns = min(square, square + 1, key=lambda count: -len(panels) % count)  # the fewest empty places
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_SIDE * 1.15 * columns, _SIDE * rows + 0.4), layout="constrained", dpi=150)
        grid = figure.subplots(rows, columns, squeeze=False)
        places = list(grid.flat)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
            _draw(axes, panel, labels)
            if number + columns >= len(panels):
                axes.set_xlabel(axis_label, fontsize=8)
            if number % columns == 0:
                axes.set_ylabel(axis_label, fontsize=8)
        figure.suptitle(textwrap.fill(printable(title), 40 * columns, max_lines=2, placeholder=" ..."), fontsize=11)
    return figure


def _draw(axes: Axes, panel: Panel, labels: Sequence[str]) -> None:
    count = len(labels)
    mask = np.eye(count, dtype=bool) | ~np.isfinite(panel.values)
    shown = panel.values[~mask]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
    constant = high - low <= _ROUNDING * abs(high)
    margin = max(abs(high) * 0.01, 1e-6) if constant else 0.0
    axes.set_facecolor(NOTHING)
    seaborn.heatmap(
        panel.values,
        mask=mask,
        ax=axes,
        square=True,
        cmap=COLOURS,
        vmin=low - margin,
        vmax=high + margin,
        alpha=0.3 if panel.pale else 1.0,
        xticklabels=False,
        yticklabels=False,
        cbar_kws={"shrink": 0.8, "ticks": [high] if constant else None},
        rasterized=True,
    )
    if (bar := axes.collections[0].colorbar) is not None:
        bar.ax.tick_params(labelsize=7)
        bar.ax.ticklabel_format(useOffset=False)
    positions = range(0, count, math.ceil(count / _TICKS))
    places, names = [position + 0.5 for position in positions], [labels[position] for position in positions]
    axes.set_xticks(places, names, rotation=0, fontsize=7)
    axes.set_yticks(places, names, rotation=0, fontsize=7)
    axes.set_title(textwrap.fill(panel.title, _WIDTH), fontsize=8.5, color="0.45" if panel.pale else "black")
