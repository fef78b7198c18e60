"""What DOCS is fitted to: the best matches of all neurons of few layers, with the curve and how well it fits."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from docs_sim.analyses.choices import Computation
from docs_sim.analyses.layer_grids import LayerGrids, layer_grids, subject
from docs_sim.analyses.mantel import mantel
from docs_sim.analyses.selection import Selection, open_layers, parse_layers
from docs_sim.checkpoint import Checkpoint, WeightMatrix
from docs_sim.engine.device import find_devices
from docs_sim.engine.matches import matches_of_pairs
from docs_sim.errors import InputError
from docs_sim.indices.docs import chance_distribution, chance_fit, chance_level
from docs_sim.indices.gumbel import fit_gumbel, gumbel_distance, gumbel_distance_limit
from docs_sim.indices.table import INDICES
from docs_sim.report.grid_panels import Panel, draw_panels
from docs_sim.report.match_histograms import MatchPanel, draw_matches
from docs_sim.report.result import save_result
from docs_sim.report.text import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LAYERS = 4
_VARIANTS = ("docs", "docs_mean")


@dataclass(frozen=True, eq=False)
class Side:
    """The neurons of one layer, each with its best match in another layer.

    Attributes:
        layer: whose neurons these are.
        other: the layer in which they look.
        n: length of a neuron.
        partners: how many neurons the other layer has.
        matches: (m,): the largest |cos| of each neuron, zero columns left out.
        location, scale: of the Gumbel distribution fitted to them; scale 0 where there is no spread.
    """

    layer: str
    other: str
    n: int
    partners: int
    matches: np.ndarray = field(repr=False)
    location: float
    scale: float

    @property
    def distance(self) -> float:
        """Between both distributions (Kolmogorov-Smirnov); NaN without spread."""
        return gumbel_distance(self.matches, self.location, self.scale)

    @property
    def limit(self) -> float:
        """What 95 of 100 samples of a true Gumbel distribution stay below."""
        return gumbel_distance_limit(len(self.matches))

    def row(self) -> dict[str, Any]:
        """Its line of a table."""
        return {
            "layer": self.layer,
            "other": self.other,
            "neurons": len(self.matches),
            "location": self.location,
            "scale": self.scale,
            "mean": float(self.matches.mean()),
            **{f"q{level}": float(np.quantile(self.matches, level / 100)) for level in (5, 25, 50, 75, 95)},
            "distance": self.distance,
            "distance_limit": self.limit,
            "chance_location": chance_fit(self.n, self.partners)[0],
        }


@dataclass(frozen=True, eq=False)
class Histogram:
    """The best matches between few layers of one model.

    Attributes:
        model: ``name``, ``source``, ``revision``, ``architecture``, ``dtype``.
        matrix: canonical name.
        pairs: s_X and s_Y of each pair of layers.
        variants: the grids of DOCS and of its mean variant over all layers, where they were asked for.
        warnings: what was left out, in words.
        settings: how it was computed.
        seconds: wall time.
    """

    model: dict[str, Any]
    matrix: str
    pairs: list[tuple[Side, Side]] = field(repr=False)
    variants: LayerGrids | None = field(repr=False)
    warnings: list[str]
    settings: dict[str, Any]
    seconds: float

    def table(self) -> pd.DataFrame:
        """One row for each side of each pair: the fit, quantiles, how far the fit is off, what chance gives."""
        return pd.DataFrame([side.row() for pair in self.pairs for side in pair])

    def matches(self) -> pd.DataFrame:
        """One row for each neuron of each side: ``layer, other, match``."""
        sides = [side for pair in self.pairs for side in pair]
        return pd.concat(
            [pd.DataFrame({"layer": side.layer, "other": side.other, "match": side.matches}) for side in sides]
        )

    def summary(self) -> list[str]:
        """For people: the similarity of each pair, and whether the curves fit."""
        rows: list[tuple[str, ...]] = [
            ("layers", "DOCS", "chance", "location of s_X, s_Y", "scale", "distance", "limit"),
        ]
        for x, y in self.pairs:
            docs, chance = (x.location + y.location) / 2, chance_level(x.n, y.partners, x.partners)
            both = [[f"{getattr(side, name):.4f}" for side in (x, y)] for name in ("location", "scale", "distance")]
            limit = f"{min(x.limit, y.limit):.4f}"
            rows.append((f"{x.layer}-{y.layer}", f"{docs:.4f}", f"{chance:.4f}", *map(", ".join, both), limit))
        lines = [f"{self.model['name']}, {subject(self.matrix, self.settings)}"]
        lines += [f"  {line}" for line in aligned(rows, right=True)]
        return [*lines, *self._variant_lines(), f"  {self.seconds:.1f} s on {self.settings['device']}"]

    def _variant_lines(self) -> list[str]:
        if self.variants is None:
            return []
        grids = self.variants.grids
        agreement = mantel(np.array([grid.values for grid in grids.values()])).correlation[0, 1]
        words = [f"{name} Gini {grid.gini:.4f}" for name, grid in grids.items() if np.isfinite(grid.gini)]
        words += [f"rank correlation {agreement:.4f}"] if np.isfinite(agreement) else []
        return [f"  over all layers: {', '.join(words)}"] if words else []

    def plot(self) -> "Figure":
        """The histograms with their fitted curves, and the quantiles of both."""
        rows = [
            [
                MatchPanel(
                    f"layer {side.layer} in layer {side.other}: {side.location:.4f}",
                    side.matches,
                    side.location,
                    side.scale,
                    partial(chance_distribution, n=side.n, m=side.partners),
                )
                for side in pair
            ]
            for pair in self.pairs
        ]
        return draw_matches(rows, f"{self.model['name']}, {subject(self.matrix, self.settings)}: best matches")

    def plot_variants(self) -> "Figure":
        """The grids of DOCS and of its mean variant side by side.

        Raises:
            InputError: if they were not asked for.
        """
        if self.variants is None:
            raise InputError("the grids of the variants were not asked for: --variants, or variants=True")
        panels = [Panel(grid.values, INDICES[name].title) for name, grid in self.variants.grids.items()]
        title = f"{self.model['name']}, {subject(self.matrix, self.settings)}"
        return draw_panels(panels, self.variants.labels, title, "layer")

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values: what ``result.json`` holds (schema 1)."""
        variants = self.variants
        return {
            "schema": 1,
            "command": "histogram",
            "docs_sim": version("docs-sim"),
            "index": "docs",
            "matrix": self.matrix,
            "model": self.model,
            "rows": [side.row() for pair in self.pairs for side in pair],
            "labels": None if variants is None else variants.labels,
            "grids": None
            if variants is None
            else [{"index": name, **grid.to_dict()} for name, grid in variants.grids.items()],
            "warnings": self.warnings,
            "settings": self.settings,
            "seconds": round(self.seconds, 3),
        }

    def save(self, directory: str | Path, *, formats: str | Sequence[str] = ("png",)) -> list[Path]:
        """Write ``histogram.<format>``, ``fits.csv``, ``matches.csv``, ``result.json``, perhaps ``variants.<format>``.

        Raises:
            InputError: if the directory cannot be written or holds a result of something else, or a format is unknown.
        """
        tables = {
            "fits.csv": self.table().to_csv(index=False),
            "matches.csv": self.matches().to_csv(index=False),
        }
        figures = {"histogram": self.plot()} | ({} if self.variants is None else {"variants": self.plot_variants()})
        return save_result(directory, self.to_dict(), tables, figures, formats=formats, optional=["variants"])


def histogram(
    model: str | Path | Checkpoint,
    matrix: str = "mlp_up",
    *,
    layers: str | int | Sequence[int] | None = None,
    variants: bool = False,
    experts: str | int = "concat",
    stack: str | None = None,
    tower: str = "language",
    layout: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    device: str = "auto",
    memory_budget: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Histogram:
    """The best matches between the neurons of two to four layers.

    Args:
        model: anything that ``open_checkpoint`` takes, or a checkpoint.
        matrix: canonical name or alias.
        layers: ``"4,8"`` or numbers, two to four; the first, the middle and the last if None.
        variants: whether to compute the grids of DOCS and of its mean variant too, over all layers.
        experts: as for ``heatmap``.
        stack: as there.
        tower: as there.
        layout: as there.
        revision: as there.
        offline: as there.
        device: as there; the pairs are computed on the first one.
        memory_budget: as there, for the grids.
        progress: called with the pairs done and in all.

    Raises:
        InputError: whatever is wrong with the arguments or the checkpoint, in one line.

    Source: DOCS (arXiv 2501.16650), Figures 12 and 13.

    >>> import docs_sim
    >>> docs_sim.histogram("demo", layers="2,3").table()["location"].round(1).tolist()
    [0.3, 0.3]
    """
    find_devices(device)
    selection = open_layers(
        model,
        matrix,
        layers=None,
        experts=experts,
        stack=stack,
        tower=tower,
        layout=layout,
        revision=revision,
        offline=offline,
    )
    return histogram_of_layers(selection, layers, variants, Computation(device, memory_budget=memory_budget), progress)


def histogram_of_layers(
    selection: Selection,
    layers: str | int | Sequence[int] | None = None,
    variants: bool = False,
    computation: Computation = Computation(),  # noqa: B008 (frozen)
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Histogram:
    """``histogram`` of matrices that are selected already, all layers of them; arguments and errors as there."""
    devices = find_devices(computation.device)
    matrices = _chosen(selection, layers)
    total, done = len(matrices) * (len(matrices) - 1) // 2, 0

    def advance(pairs: int) -> None:
        nonlocal done
        done += pairs
        progress(done, total)

    started = time.monotonic()
    found = matches_of_pairs(matrices, devices[0], advance)
    pairs = [
        (_side(matrices[i], matrices[j], x, len(y)), _side(matrices[j], matrices[i], y, len(x)))
        for (i, j), (x, y) in found.items()
    ]
    grids = layer_grids(selection, _VARIANTS, computation, progress) if variants else None
    columns = {one.layer: found[pair][side] for pair in found for side, one in enumerate(matrices[n] for n in pair)}
    zero = {one.key: one.shape[1] - len(columns[one.layer]) for one in matrices}
    return Histogram(
        model=selection.model(),
        matrix=matrices[0].name,
        pairs=pairs,
        variants=grids,
        warnings=[
            *selection.notes,
            *(f"{key}: {count} zero columns were left out" for key, count in zero.items() if count),
        ],
        settings={
            "device": str(devices[0]),
            "layers": [one.layer for one in matrices],
            "variants": variants,
            "memory_budget": computation.memory_budget,
            **selection.settings(),
        },
        seconds=time.monotonic() - started,
    )


def _chosen(selection: Selection, layers: str | int | Sequence[int] | None) -> list[WeightMatrix]:
    by_layer = {one.layer: one for one in selection.matrices if one.layer is not None}
    available = sorted(by_layer)
    ends = dict.fromkeys([available[0], available[(len(available) - 1) // 2], available[-1]])
    try:
        wanted = list(ends) if layers is None else parse_layers(layers, available)
    except InputError as error:
        raise InputError(f"{selection.checkpoint.name}: {error}") from error
    if not 2 <= len(wanted) <= _MOST_LAYERS:
        raise InputError(
            f"{selection.checkpoint.name}: histograms compare 2 to {_MOST_LAYERS} layers, not {len(wanted)}; "
            f"choose with --layers 4,8"
        )
    return [by_layer[layer] for layer in wanted]


def _side(matrix: WeightMatrix, other: WeightMatrix, matches: np.ndarray, partners: int) -> Side:
    fit = fit_gumbel(torch.from_numpy(matches))
    return Side(
        str(matrix.layer), str(other.layer), matrix.shape[0], partners, matches, float(fit.location), float(fit.scale)
    )
