"""Histograms of best matches with their fitted Gumbel curves, and how well these fit: a row for each pair of layers."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gumbel_r

from docs_sim.report.grids import STYLE
from docs_sim.report.text import printable

_MOST_BINS = 60  # fewer for few neurons, by the square-root rule
_POINTS = 400  # of a curve
_SHOWN = (0.001, 0.999)  # quantiles of a Q-Q plot between which lies what the eye should compare
_MARGIN = 0.03
_TEXT = {"fontsize": 8}


@dataclass(frozen=True)
class MatchPanel:
    """The best matches of the neurons of one side.

    Attributes:
        title: above the panel.
        matches: (m,).
        location, scale: of the Gumbel distribution that is fitted; scale 0 where there is no spread.
        chance: the share of neurons below a value, for independent columns.
    """

    title: str
    matches: np.ndarray
    location: float
    scale: float
    chance: Callable[[np.ndarray], np.ndarray]


def draw_matches(rows: Sequence[Sequence[MatchPanel]], title: str) -> Figure:
    """A row for each pair of layers: both sides, and their quantiles against those of the fits. Needs no display."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 2.6 * len(rows) + 0.5), layout="constrained", dpi=150)
        grid = figure.subplots(len(rows), 3, squeeze=False)
        for axes, sides in zip(grid, rows, strict=True):
            for place, side in zip(axes, sides, strict=False):
                _draw_side(place, side)
            axes[0].set_ylabel("density", **_TEXT)
            _draw_quantiles(axes[2], sides)
        for place in grid[-1][:2]:
            place.set_xlabel("best |cos| of a neuron", **_TEXT)
        grid[-1][2].set_xlabel("fitted Gumbel quantile", **_TEXT)
        for column in (0, 2):
            if labelled := [place for place in grid[:, column] if place.get_legend_handles_labels()[1]]:
                labelled[0].legend(fontsize=7)
        figure.suptitle(textwrap.fill(printable(title), 90, max_lines=2, placeholder=" ..."), fontsize=11)
    return figure


def _draw_side(axes: Axes, side: MatchPanel) -> None:
    axes.hist(side.matches, bins=min(_MOST_BINS, math.ceil(len(side.matches) ** 0.5)), density=True, color="0.8")
    low, high = axes.get_xlim()
    ends = np.linspace(min(low, _reached(side, 0.001)), max(high, _reached(side, 0.999)), _POINTS)
    if side.scale > 0:
        axes.plot(ends, gumbel_r.pdf(ends, side.location, side.scale), "C0", linewidth=1.2, label="Gumbel fit")
    between = np.diff(side.chance(ends)) / np.diff(ends)
    axes.plot((ends[1:] + ends[:-1]) / 2, between, "k--", linewidth=1.0, label="independent columns")
    axes.axvline(side.location, color="C0", linewidth=0.8, linestyle=":", label="location")
    axes.tick_params(labelsize=7)
    axes.set_title(side.title, fontsize=8.5)


def _reached(side: MatchPanel, share: float) -> float:
    """Where the law of chance has this share of the neurons."""
    values = np.linspace(0, 1, 2001)
    return float(values[side.chance(values) <= share].max())


def _draw_quantiles(axes: Axes, sides: Sequence[MatchPanel]) -> None:
    axes.tick_params(labelsize=7)
    axes.set_title("quantiles of the matches against the fit", fontsize=8.5)
    ends = []
    for side, name, colour in zip(sides, ("s_X", "s_Y"), ("C0", "C1"), strict=True):
        if side.scale <= 0:
            continue
        levels = np.linspace(*_SHOWN, _POINTS)
        expected = gumbel_r.ppf(levels, side.location, side.scale)
        axes.plot(expected, np.quantile(side.matches, levels), ".", color=colour, markersize=2.5, label=name)
        ends += [expected[0], expected[-1]]
    if ends:
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="0.5", linewidth=0.8, label="perfect fit")
