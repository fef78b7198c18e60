"""The grid of one matrix over the layers of a model: which layers resemble each other?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from docs_sim.analyses.choices import SVCCA_VARIANCE, Computation
from docs_sim.analyses.index_grid import IndexGrid, off_diagonal
from docs_sim.analyses.layer_grids import check_computation, layer_grids, subject
from docs_sim.analyses.selection import Selection, open_layers
from docs_sim.checkpoint import Checkpoint
from docs_sim.errors import InputError, check_choice
from docs_sim.indices.docs import QUANTILES
from docs_sim.indices.table import INDICES
from docs_sim.report.choices import Scale
from docs_sim.report.grids import GridFigure, draw_grid
from docs_sim.report.result import save_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Heatmap:
    """Similarities between the layers of one model.

    Attributes:
        model: ``name``, ``source``, ``revision``, ``architecture``, ``dtype``.
        index: its name.
        matrix: canonical name.
        labels: of the rows and columns: layer numbers.
        grid: everything that was found.
        warnings: what was left out and what says nothing, in words.
        settings: how it was computed.
        seconds: wall time of the computation.
    """

    model: dict[str, Any]
    index: str
    matrix: str
    labels: list[str]
    grid: IndexGrid = field(repr=False)
    warnings: list[str]
    settings: dict[str, Any]
    seconds: float

    @property
    def values(self) -> np.ndarray:
        """(L, L) similarities; the diagonal is 1, for ``docs_mean`` NaN."""
        return self.grid.values

    @property
    def excess(self) -> np.ndarray | None:
        """(L, L): (S - chance) / (1 - chance), NaN where chance is 1; None where chance is not known."""
        return self.grid.excess

    @property
    def chance(self) -> float | None:
        """What unrelated matrices of these shapes give: the median over pairs; None where that is not known."""
        return None if self.grid.chance is None else float(np.median(off_diagonal(self.grid.chance)))

    @property
    def subject(self) -> str:
        """What was compared, in words: ``mlp_up``, ``mlp_up of expert 3``, ``encoder attn_q``."""
        return subject(self.matrix, self.settings)

    @property
    def gini(self) -> float:
        """Mean Gini coefficient of the rows; NaN for fewer than three layers or values that are not all positive."""
        return self.grid.gini

    def to_frame(self) -> pd.DataFrame:
        """The similarities as a frame, labelled by layer number."""
        layers = [int(label) for label in self.labels]
        return pd.DataFrame(self.values, index=layers, columns=layers)

    def pairs(self) -> pd.DataFrame:
        """One row for each pair of layers: similarity, excess, null, and what else is known of both sides (x and y)."""
        upper = np.triu_indices(len(self.labels), 1)
        table: dict[str, Any] = {
            "layer_x": [self.labels[row] for row in upper[0]],
            "layer_y": [self.labels[column] for column in upper[1]],
            self.index: self.values[upper],
        }
        known = {"excess": self.excess, "chance": self.grid.chance, "z": self.grid.z}
        table |= {name: values[upper] for name, values in known.items() if values is not None}
        for side, where in (("x", upper), ("y", upper[::-1])):
            table |= {f"{name}_{side}": values[where] for name, values in self._of_sides().items()}
        return pd.DataFrame(table)

    def _of_sides(self) -> dict[str, np.ndarray]:
        """What differs between the sides of a pair: row i, column j is of matrix i beside matrix j."""
        if self.grid.factored is not None:
            return {} if INDICES[self.index].symmetric else {"explained": self.grid.factored.directions}
        if self.grid.neurons is None:
            return {}
        found = self.grid.neurons
        quantiles = {f"q{level:.0%}".replace("%", ""): found.quantiles[:, :, n] for n, level in enumerate(QUANTILES)}
        return {"location": found.location, "scale": found.scale, "mean": found.mean} | quantiles

    def summary(self) -> list[str]:
        """What a reader wants to know before opening the figure, a line each."""
        by = self.index if self._uniform else "excess"  # raw values of unlike shapes do not compare
        pairs = self.pairs().sort_values(by, ascending=False)
        values = pairs[self.index]
        neighbours = values[pairs["layer_y"].astype(int) - pairs["layer_x"].astype(int) == 1]
        closest = [f"{row.layer_x}-{row.layer_y} {getattr(row, by):.4f}" for row in pairs.head(3).itertuples()]
        model = f"{self.model['architecture'] or 'architecture not stated'}, {self.model['dtype']}"
        lines = [f"{self.model['name']} ({model}), {self.subject}, {len(self.labels)} layers"]
        if self.grid.degenerate:
            lines.append(f"  {self.index}: degenerate, {values.median():.4f} whatever the layers are")
        elif values.notna().any():
            lines += [
                f"  {self.index}: median {values.median():.4f}, from {values.min():.4f} to {values.max():.4f}; "
                f"chance level {self._chance_words}",
                *([f"  neighbouring layers: mean {neighbours.mean():.4f}"] if neighbours.notna().any() else []),
                f"  most similar layers{'' if self._uniform else ' by excess'}: {', '.join(closest)}",
            ]
        else:
            lines.append(f"  {self.index}: no pair has a value")
        z = pairs["z"].dropna() if "z" in pairs else pairs[self.index].iloc[:0]
        lines += [f"  z over the null: median {z.median():.1f}, from {z.min():.1f} to {z.max():.1f}"] if z.size else []
        lines += [] if np.isnan(self.gini) else [f"  Gini {self.gini:.4f}"]
        product = f" in {self.settings['product']}" if self.settings["product"] else ""
        work = "products and fits" if self.settings["product"] else "factors and pairs"
        return [*lines, f"  {work}: {self.seconds:.1f} s on {self.settings['device']}{product}"]

    @property
    def _uniform(self) -> bool:
        """Whether raw values compare: chance gives every pair the same, or nothing else is there to compare."""
        return self.excess is None or self.grid.chance is None or bool(np.ptp(off_diagonal(self.grid.chance)) == 0)

    @property
    def _chance_words(self) -> str:
        if self.grid.chance is None:
            return "not known, --null rotation simulates it"
        levels = off_diagonal(self.grid.chance)
        return f"{levels[0]:.4f}" if np.ptp(levels) == 0 else f"{levels.min():.4f} to {levels.max():.4f}"

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
            "chance": self.chance,
            **self.grid.to_dict(),
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
        check_choice("scale", scale, Scale)
        if scale == Scale.excess and self.excess is None:
            raise InputError(
                f"{self.index}: its excess over chance is not known; --null rotation simulates it for bounded indices"
            )
        title = INDICES[self.index].title
        gini = "" if np.isnan(self.gini) else f", Gini {self.gini:.3f}"
        chance = "" if self.grid.chance is None else f", chance level {self._chance_words}"
        subtitle = f"{title}, {self.subject}{gini}{chance}{', degenerate' if self.grid.degenerate else ''}"
        label = f"{title}: excess over chance" if scale == Scale.excess else title
        values = self.excess if scale == Scale.excess and self.excess is not None else self.values
        pale, name = self.grid.degenerate, str(self.model["name"])
        return draw_grid(GridFigure(values, self.labels, name, subtitle, label, "layer", vmin, vmax, pale))

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
        tables = {
            "grid.csv": self.to_frame().to_csv(index_label="layer"),
            "pairs.csv": self.pairs().to_csv(index=False),
        }
        figures = {"heatmap": self.plot(scale=scale, vmin=vmin, vmax=vmax)}
        return save_result(directory, self.to_dict(), tables, figures, formats=formats)


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
    svcca_variance: float = SVCCA_VARIANCE,
    null: str | None = None,
    null_repeats: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Heatmap:
    """Compare one matrix over all pairs of layers of a model.

    Args:
        model: anything that ``open_checkpoint`` takes, or a checkpoint.
        matrix: canonical name or alias.
        index: the name of an index.
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
        svcca_variance: share of the variance that SVCCA keeps, in (0, 1].
        null: ``rotation`` or ``reinit``: simulate what unrelated matrices give.
        null_repeats: how often; two or more give z-scores.
        progress: called with the steps done and the steps in all.

    Raises:
        InputError: whatever is wrong with the arguments or the checkpoint, in one line.

    >>> import docs_sim
    >>> docs_sim.heatmap("demo", matrix="mlp_up").values.shape
    (8, 8)
    """
    computation = Computation(device, precision, memory_budget, svcca_variance, null, null_repeats)
    check_computation(computation, [index])  # what is wrong shall not wait for the network
    selection = open_layers(
        model,
        matrix,
        layers=layers,
        experts=experts,
        stack=stack,
        tower=tower,
        layout=layout,
        revision=revision,
        offline=offline,
    )
    return compare_layers(selection, index, computation, progress)


def compare_layers(
    selection: Selection,
    index: str = "docs",
    computation: Computation = Computation(),  # noqa: B008 (frozen)
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Heatmap:
    """The heatmap of matrices that are selected already; arguments and errors as those of ``layer_grids``."""
    found = layer_grids(selection, [index], computation, progress)
    return Heatmap(
        model=found.model,
        index=index,
        matrix=found.matrix,
        labels=found.labels,
        grid=found.grids[index],
        warnings=found.warnings,
        settings=found.settings,
        seconds=found.seconds,
    )
