"""Distributions of |cos| beside the law of chance: one panel for each kind of matrix, one line for each matrix."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from docs_sim.report.grids import COLOURS, STYLE
from docs_sim.report.text import printable

_COLUMNS = 4
_POINTS = 60  # of a line: bins are put together until there are no more
_BEYOND = 1.3  # times the largest value: where the axis ends


@dataclass(frozen=True)
class DensityPanel:
    """One kind of matrix.

    Attributes:
        title: above the panel.
        counts: of each matrix, (bins,) of equal width from 0 to 1.
        layers: of each matrix, for its colour.
        chance: (bins,) as expected by chance.
    """

    title: str
    counts: Sequence[np.ndarray]
    layers: Sequence[int]
    chance: np.ndarray


def draw_densities(panels: Sequence[DensityPanel], title: str) -> Figure:
    """Probability densities on a logarithmic axis, coloured by layer; dashed what chance gives. Needs no display."""
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    layers = [layer for panel in panels for layer in panel.layers]
    colours = ScalarMappable(Normalize(min(layers), max(*layers, min(layers) + 1)), COLOURS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * columns + 0.9, 2.5 * rows + 0.5), layout="constrained", dpi=150)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            _draw(axes, panel, colours)
            if number % columns == 0:
                axes.set_ylabel("density", fontsize=8)
            if number + columns >= len(panels):
                axes.set_xlabel("|cos| of two columns", fontsize=8)
        grid.flat[0].legend(fontsize=7)
        if len(set(layers)) > 1:
            figure.colorbar(colours, ax=grid, label="layer", shrink=0.85)
        figure.suptitle(textwrap.fill(printable(title), 30 * columns, max_lines=2, placeholder=" ..."), fontsize=11)
    return figure


def _draw(axes: Axes, panel: DensityPanel, colours: ScalarMappable) -> None:
    every = [*panel.counts, panel.chance]
    end = max(np.flatnonzero(counts >= 0.5).max(initial=0) for counts in every) + 1
    width = max(1, math.ceil(min(end * _BEYOND, len(panel.chance)) / _POINTS))
    bins = len(panel.chance) // width * width
    middles = (np.arange(bins // width) + 0.5) * width / len(panel.chance)
    for counts, layer in zip(panel.counts, panel.layers, strict=True):
        axes.plot(middles, _density(counts[:bins], width), color=colours.to_rgba(np.array(layer)), linewidth=0.8)
    axes.plot(middles, _density(panel.chance[:bins], width), "k--", linewidth=1.2, label="independent columns")
    axes.set_yscale("log")
    axes.set_xlim(0, min(1.0, end * _BEYOND / len(panel.chance)))
    axes.set_ylim(bottom=0.5 * len(panel.chance) / width / max(panel.chance.sum(), 1))
    axes.tick_params(labelsize=7)
    axes.set_title(panel.title, fontsize=8.5)


def _density(counts: np.ndarray, width: int) -> np.ndarray:
    """Of bins put together; NaN where nothing is, which a logarithmic axis cannot show."""
    together = counts.reshape(-1, width).sum(1)
    density = together / max(counts.sum(), 1) * len(counts) / width
    return np.where(density > 0, density, np.nan)
