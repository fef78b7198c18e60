"""The grid of one matrix over the layers of a model: which layers resemble each other?"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from docs_sim.analyses.choices import Precision
from docs_sim.analyses.selection import Selection, select_layers
from docs_sim.checkpoint import Checkpoint, WeightMatrix, open_checkpoint
from docs_sim.checkpoint.header import FLOATS
from docs_sim.engine.device import find_devices
from docs_sim.engine.grid import DocsGrid, docs_grid
from docs_sim.errors import InputError, shown
from docs_sim.indices.docs import QUANTILES, excess
from docs_sim.indices.gini import mean_gini
from docs_sim.indices.table import INDICES
from docs_sim.report.choices import Format, Scale
from docs_sim.report.files import RESULT, check_replaceable, json_text, write_files
from docs_sim.report.grids import GridFigure, draw_grid, figure_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_ACCIDENT = -0.005  # mean excess; that of random experts as small as (64, 40) is above


@dataclass(frozen=True, eq=False)
class Heatmap:
    """Similarities between the layers of one model.

    Attributes:
        model: ``name``, ``source``, ``revision``, ``architecture``, ``dtype``.
        index: ``docs`` or ``docs_mean``.
        matrix: canonical name.
        labels: of the rows and columns: layer numbers.
        grid: everything that the engine found.
        warnings: what was left out, in words.
        settings: how it was computed.
        seconds: wall time of the computation.
    """

    model: dict[str, Any]
    index: str
    matrix: str
    labels: list[str]
    grid: DocsGrid = field(repr=False)
    warnings: list[str]
    settings: dict[str, Any]
    seconds: float

    @property
    def values(self) -> np.ndarray:
        """(L, L) similarities; the diagonal is 1, for ``docs_mean`` NaN."""
        return self.grid.values

    @property
    def excess(self) -> np.ndarray:
        """(L, L): (S - chance) / (1 - chance), NaN where chance is 1."""
        return excess(self.values, self.grid.chance)

    @property
    def chance(self) -> float:
        """What independent random matrices of these shapes give: the median over pairs where shapes differ."""
        return float(np.median(_off_diagonal(self.grid.chance)))

    @property
    def subject(self) -> str:
        """What was compared, in words: ``mlp_up``, ``mlp_up of expert 3``, ``encoder attn_q``, ``vision attn_q``."""
        tower, chosen, layout = (self.settings[choice] for choice in ("tower", "experts", "layout"))
        words = [*([] if tower == "language" else [tower]), self.settings["stack"], self.matrix]
        experts = {"concat": "of all experts", "shared": "of the shared experts"}
        if chosen is not None:
            words.append(experts.get(chosen, f"of expert {chosen}" if chosen.isdecimal() else f"of {chosen}"))
        return " ".join([*filter(None, words), *([] if layout is None else [f"by {Path(layout).name}"])])

    @cached_property
    def gini(self) -> float:
        """Mean Gini coefficient of the rows; NaN for fewer than three layers."""
        return mean_gini(self.values)

    def to_frame(self) -> pd.DataFrame:
        """The similarities as a frame, labelled by layer number."""
        layers = [int(label) for label in self.labels]
        return pd.DataFrame(self.values, index=layers, columns=layers)

    def pairs(self) -> pd.DataFrame:
        """One row for each pair of layers: similarity, excess, and the Gumbel fit of both sides (x and y)."""
        rows, columns = np.triu_indices(len(self.labels), 1)
        table: dict[str, Any] = {
            "layer_x": [self.labels[row] for row in rows],
            "layer_y": [self.labels[column] for column in columns],
            self.index: self.values[rows, columns],
            "excess": self.excess[rows, columns],
            "chance": self.grid.chance[rows, columns],
        }
        for side, where in (("x", (rows, columns)), ("y", (columns, rows))):
            for name in ("location", "scale", "mean"):
                table[f"{name}_{side}"] = getattr(self.grid, name)[where]
            for number, level in enumerate(QUANTILES):
                table[f"q{level:.0%}_{side}".replace("%", "")] = self.grid.quantiles[(*where, number)]
        return pd.DataFrame(table)

    def summary(self) -> list[str]:
        """What a reader wants to know before opening the figure, a line each."""
        by = self.index if self._uniform else "excess"  # raw values of unlike shapes do not compare
        pairs = self.pairs().sort_values(by, ascending=False)
        values = pairs[self.index]
        neighbours = values[pairs["layer_y"].astype(int) - pairs["layer_x"].astype(int) == 1]
        closest = [f"{row.layer_x}-{row.layer_y} {getattr(row, by):.4f}" for row in pairs.head(3).itertuples()]
        model = f"{self.model['architecture'] or 'architecture not stated'}, {self.model['dtype']}"
        return [
            f"{self.model['name']} ({model}), {self.subject}, {len(self.labels)} layers",
            f"  {self.index}: median {values.median():.4f}, from {values.min():.4f} to {values.max():.4f}; "
            f"chance level {self._chance_words}",
            *([f"  neighbouring layers: mean {neighbours.mean():.4f}"] if len(neighbours) else []),
            f"  most similar layers{'' if self._uniform else ' by excess'}: {', '.join(closest)}",
            *([] if np.isnan(self.gini) else [f"  Gini {self.gini:.4f}"]),
            f"  products and fits: {self.seconds:.1f} s on {self.settings['device']} in {self.settings['product']}",
        ]

    @property
    def _uniform(self) -> bool:
        """Whether chance gives every pair the same."""
        return bool(np.ptp(_off_diagonal(self.grid.chance)) == 0)

    @property
    def _chance_words(self) -> str:
        levels = _off_diagonal(self.grid.chance)
        return f"{self.chance:.4f}" if self._uniform else f"{levels.min():.4f} to {levels.max():.4f}"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values: what ``result.json`` holds (schema 1)."""
        return {
            "schema": 1,
            "command": "heatmap",
            "docs_sim": version("docs-sim"),
            "index": self.index,
            "matrix": self.matrix,
            "model": self.model,
            "labels": self.labels,
            "values": self.values,
            "gini": self.gini,
            "chance": self.chance,
            "chance_values": None if self._uniform else self.grid.chance,
            "excess": self.excess,
            "fit": {
                "location": self.grid.location,
                "scale": self.grid.scale,
                "mean": self.grid.mean,
                "quantiles": {str(level): self.grid.quantiles[:, :, number] for number, level in enumerate(QUANTILES)},
            },
            "zero_columns": self.grid.zero_columns,
            "warnings": self.warnings,
            "settings": self.settings,
            "seconds": round(self.seconds, 3),
        }

    def plot(self, *, scale: str = "raw", vmin: float | None = None, vmax: float | None = None) -> "Figure":
        """Draw the grid.

        Args:
            scale: ``raw`` colours by similarity, ``excess`` by the excess over chance.
            vmin: lower end of the colour scale; the smallest value off the diagonal if None.
            vmax: upper end; the largest value off the diagonal if None.

        Raises:
            InputError: if ``vmin`` is not below ``vmax``, or there is no such scale.
        """
        _check_choice("scale", scale, Scale)
        title = INDICES[self.index].title
        gini = "" if np.isnan(self.gini) else f"Gini {self.gini:.3f}, "
        subtitle = f"{title}, {self.subject}, {gini}chance level {self._chance_words}"
        label = f"{title}: excess over chance" if scale == "excess" else title
        values = self.excess if scale == "excess" else self.values
        return draw_grid(GridFigure(values, self.labels, str(self.model["name"]), subtitle, label, "layer", vmin, vmax))

    def save(
        self,
        directory: str | Path,
        *,
        formats: str | Sequence[str] = ("png",),
        scale: str = "raw",
        vmin: float | None = None,
        vmax: float | None = None,
    ) -> list[Path]:
        """Write ``grid.csv``, ``pairs.csv``, ``heatmap.<format>`` and ``result.json``: each whole, the last one last.

        Raises:
            InputError: if the directory cannot be written or holds a result of something else, or an argument is
                unknown.
        """
        check_replaceable(Path(directory))
        formats = [formats] if isinstance(formats, str) else formats
        for suffix in formats:
            _check_choice("format", suffix, Format)
        figure = self.plot(scale=scale, vmin=vmin, vmax=vmax)
        contents = {f"heatmap.{suffix}": figure_bytes(figure, suffix) for suffix in formats}
        stale = [name for suffix in Format if (name := f"heatmap.{suffix}") not in contents]
        contents["grid.csv"] = self.to_frame().to_csv(index_label="layer").encode()
        contents["pairs.csv"] = self.pairs().to_csv(index=False).encode()
        contents[RESULT] = json_text(self.to_dict()).encode()
        return write_files(Path(directory), contents, stale)


def heatmap(
    model: str | Path | Checkpoint,
    matrix: str = "mlp_up",
    *,
    index: str = "docs",
    layers: str | int | Sequence[int] | None = None,
    experts: str | int = "concat",
    stack: str | None = None,
    tower: str = "language",
    layout: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    device: str = "auto",
    precision: str = "auto",
    memory_budget: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Heatmap:
    """Compare one matrix over all pairs of layers of a model.

    Args:
        model: anything that ``open_checkpoint`` takes, or a checkpoint.
        matrix: canonical name or alias.
        index: ``docs`` or ``docs_mean``.
        layers: ``"0-15,20"``, a number or numbers; all if None.
        experts: of mixture-of-experts layers: ``concat``, ``shared`` or a number; where a layer has several blocks,
            the name of one (``sub0``, or ``dense`` for what stands beside the experts).
        stack: ``encoder`` or ``decoder``, of a model that has both.
        tower: of a multimodal model: ``language``, ``vision`` or ``audio``.
        layout: a TOML file that says how this model names its tensors.
        revision: branch, tag or commit of a Hub id.
        offline: whether to do without the network.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        precision: ``auto`` or ``highest`` (float32 products everywhere).
        memory_budget: bytes for prepared matrices; half of the free memory if None.
        progress: called with the pairs done and the pairs in all.

    Raises:
        InputError: whatever is wrong with the arguments or the checkpoint, in one line.

    >>> import docs_sim
    >>> docs_sim.heatmap("demo", matrix="mlp_up").values.shape
    (8, 8)
    """
    _check_choice("index", index, INDICES)
    _check_choice("precision", precision, Precision)
    find_devices(device)  # a wrong name shall not wait for the network
    if isinstance(model, Checkpoint):
        _refuse_opening(revision=revision, tower=tower != "language", layout=layout, offline=offline)
        checkpoint = model
    else:
        checkpoint = open_checkpoint(model, revision, offline=offline, tower=tower, layout=layout)
    return compare_layers(
        select_layers(checkpoint, matrix, layers, experts, stack),
        index=index,
        device=device,
        precision=precision,
        memory_budget=memory_budget,
        progress=progress,
    )


def compare_layers(
    selection: Selection,
    *,
    index: str = "docs",
    device: str = "auto",
    precision: str = "auto",
    memory_budget: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Heatmap:
    """The heatmap of matrices that are selected already; the other arguments are those of ``heatmap``.

    Raises:
        InputError: if an argument is unknown, there are fewer than two layers, or a weight cannot be compared.
    """
    _check_choice("index", index, INDICES)
    _check_choice("precision", precision, Precision)
    devices = find_devices(device)
    checkpoint, matrices = selection.checkpoint, selection.matrices
    if len(matrices) < 2:
        raise InputError(
            f"{checkpoint.name}: a heatmap needs at least two layers with {matrices[0].name}; "
            f"there is one, layer {matrices[0].layer}"
        )
    total, done = len(matrices) * (len(matrices) - 1) // 2, 0

    def advance(pairs: int) -> None:
        nonlocal done
        done += pairs
        progress(done, total)

    started = time.monotonic()
    grid = docs_grid(
        matrices,
        index=index,
        devices=devices,
        precision=precision,
        memory_budget=memory_budget,
        progress=advance,
    )
    return Heatmap(
        model=checkpoint.describe() | {"dtype": _stored_as(matrices)},
        index=index,
        matrix=matrices[0].name,
        labels=[str(one.layer) for one in matrices],
        grid=grid,
        warnings=[*selection.notes, *_below_chance(selection, grid), *_zero_columns(matrices, grid)],
        settings={
            "device": ",".join(map(str, devices)),
            "precision": precision,
            "product": grid.product,
            "exact_pairs": grid.exact_pairs,
            "memory_budget": memory_budget,
            "tower": checkpoint.tower,
            "layout": None if checkpoint.layout_file is None else str(checkpoint.layout_file),
            "stack": matrices[0].stack,
            "experts": None if selection.experts is None else str(selection.experts),
            "sample": None,
        },
        seconds=time.monotonic() - started,
    )


def _check_choice(what: str, choice: str, known: Iterable[str]) -> None:
    if choice not in list(known):
        raise InputError(f"unknown {what} {shown(choice)}; known: {', '.join(known)}")


def _refuse_opening(**given: object) -> None:
    """What says how to open a model says nothing of a checkpoint that is open."""
    for name, value in given.items():
        if value:
            raise InputError(
                f"{name} is of a model to be opened, and this checkpoint is open: give it to open_checkpoint"
            )


def _below_chance(selection: Selection, grid: DocsGrid) -> list[str]:
    """Why layers of experts side by side may be less alike than chance, if they are, and by more than by accident."""
    above = _off_diagonal(excess(grid.values, grid.chance))
    above = above[np.isfinite(above)]  # where chance is 1 nothing is above it
    if selection.experts != "concat" or not above.size or above.mean() > _BY_ACCIDENT:
        return []
    return [
        "the layers are less alike than chance, which counts the neurons of all experts as independent: experts of a "
        "layer that are near copies of each other count as fewer; --experts 0 compares one of each layer"
    ]


def _stored_as(matrices: Sequence[WeightMatrix]) -> str:
    dtypes = list(dict.fromkeys(matrix.dtype for matrix in matrices))
    dequantized = [dtype for dtype in dtypes if dtype not in FLOATS]
    return f"dequantized from {', '.join(dequantized)}" if dequantized else ", ".join(dtypes)


def _zero_columns(matrices: Sequence[WeightMatrix], grid: DocsGrid) -> list[str]:
    return [
        f"{matrix.key}: {count} of {matrix.shape[1]} columns are zero and were left out"
        for matrix, count in zip(matrices, grid.zero_columns, strict=True)
        if count
    ]


def _off_diagonal(values: np.ndarray) -> np.ndarray:
    return values[~np.eye(len(values), dtype=bool)]
