"""Every index on one matrix: how do they see the layers, which say nothing there, and which agree?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from docs_sim.analyses.choices import SVCCA_VARIANCE, Computation
from docs_sim.analyses.column_orthogonality import (
    MatrixOrthogonality,
    measure_orthogonality,
    orthogonality_lines,
    orthogonality_table,
)
from docs_sim.analyses.index_grid import IndexGrid, off_diagonal
from docs_sim.analyses.layer_grids import LayerGrids, check_computation, layer_grids, subject
from docs_sim.analyses.mantel import Mantel, mantel
from docs_sim.analyses.selection import Selection, open_layers
from docs_sim.checkpoint import Checkpoint
from docs_sim.engine.device import find_devices
from docs_sim.indices.table import INDICES
from docs_sim.report.grid_panels import Panel, draw_panels
from docs_sim.report.result import save_result
from docs_sim.report.text import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = {  # of the table, as people read them
    "median": "median",
    "lowest": "lowest",
    "highest": "highest",
    "gini": "Gini",
    "chance": "chance",
    "excess": "excess",
    "z": "z",
    "mantel_docs": "like DOCS",
    "mantel_p": "p",
}


@dataclass(frozen=True, eq=False)
class IndexComparison:
    """Several indices over the layers of one model.

    Attributes:
        found: the grids, and how they were computed.
        mantel: how the grids agree, in the order of ``found.grids``.
        orthogonality: of the columns of each layer: where they are orthogonal, or more than there are dimensions,
            indices of the spaces that they span say nothing.
    """

    found: LayerGrids = field(repr=False)
    mantel: Mantel = field(repr=False)
    orthogonality: list[MatrixOrthogonality] = field(repr=False)

    @property
    def grids(self) -> dict[str, IndexGrid]:
        """By index."""
        return self.found.grids

    @property
    def warnings(self) -> list[str]:
        """What was left out and what says nothing, in words."""
        return self.found.warnings

    def table(self) -> pd.DataFrame:
        """One row for each index: its values over pairs of different layers, Gini, chance, and what is degenerate.

        ``gini`` is the paper's Table 2; ``mantel_docs`` the rank correlation of its grid with that of DOCS.
        """
        names = list(self.grids)
        rows = [_row(grid) for grid in self.grids.values()]
        table = pd.DataFrame(rows, index=pd.Index(names, name="index"))
        if "docs" in names:
            table["mantel_docs"] = self.mantel.correlation[:, names.index("docs")]
            table["mantel_p"] = self.mantel.p[:, names.index("docs")]
        return table

    def summary(self) -> list[str]:
        """The table for people, and what says nothing."""
        model = self.found.model
        kind = f"{model['architecture'] or 'architecture not stated'}, {model['dtype']}"
        words = subject(self.found.matrix, self.found.settings)
        return [
            f"{model['name']} ({kind}), {words}, {len(self.found.labels)} layers",
            *_lines(self.table()),
            "  the columns of each layer among themselves:",
            *orthogonality_lines(self.orthogonality),
            f"  {self.found.seconds:.1f} s on {self.found.settings['device']}",
        ]

    def plot(self) -> "Figure":
        """All grids in one figure, each with its own colour scale; those that say nothing are pale."""
        panels = [Panel(grid.values, _title(grid), pale=grid.degenerate) for grid in self.grids.values()]
        words = subject(self.found.matrix, self.found.settings)
        return draw_panels(panels, self.found.labels, f"{self.found.model['name']}, {words}", "layer")

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values: what ``result.json`` holds (schema 1)."""
        names = list(self.grids)
        return {
            "schema": 1,
            "command": "indices",
            "docs_sim": version("docs-sim"),
            "matrix": self.found.matrix,
            "model": self.found.model,
            "labels": self.found.labels,
            "grids": [{"index": name, **grid.to_dict()} for name, grid in self.grids.items()],
            "table": self.table().reset_index().to_dict("records"),
            "mantel": {"indices": names, **vars(self.mantel)},
            "orthogonality": [one.row() for one in self.orthogonality],
            "warnings": self.warnings,
            "settings": self.found.settings,
            "seconds": round(self.found.seconds, 3),
        }

    def save(self, directory: str | Path, *, formats: str | Sequence[str] = ("png",)) -> list[Path]:
        """Write ``indices.<format>``, tables (indices, Mantel test, orthogonality, every grid) and ``result.json``.

        Raises:
            InputError: if the directory cannot be written or holds a result of something else, or a format is unknown.
        """
        tables = {
            "indices.csv": self.table().to_csv(),
            "mantel.csv": self._mantel_frame().to_csv(index=False),
            "orthogonality.csv": orthogonality_table(self.orthogonality).to_csv(index=False),
        }
        for name, grid in self.grids.items():
            frame = pd.DataFrame(grid.values, index=self.found.labels, columns=self.found.labels)
            tables[f"{name}.csv"] = frame.to_csv(index_label="layer")
        return save_result(
            directory,
            self.to_dict(),
            tables,
            {"indices": self.plot()},
            formats=formats,
            optional=[f"{name}.csv" for name in INDICES],
        )

    def _mantel_frame(self) -> pd.DataFrame:
        names = list(self.grids)
        first, second = np.triu_indices(len(names), 1)
        return pd.DataFrame(
            {
                "index_a": [names[number] for number in first],
                "index_b": [names[number] for number in second],
                "spearman": self.mantel.correlation[first, second],
                "p": self.mantel.p[first, second],
            }
        )


def compare_indices(
    model: str | Path | Checkpoint,
    matrix: str = "mlp_up",
    *,
    indices: Sequence[str] = tuple(INDICES),
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
) -> IndexComparison:
    """Compare one matrix over all pairs of layers of a model with several indices, and these with each other.

    Args:
        model: anything that ``open_checkpoint`` takes, or a checkpoint.
        matrix: canonical name or alias.
        indices: their names; all if not given.
        layers: as for ``heatmap``, and so are all others.
        experts: as there.
        stack: as there.
        tower: as there.
        layout: as there.
        revision: as there.
        offline: as there.
        device: as there.
        precision: as there.
        memory_budget: as there.
        svcca_variance: as there.
        null: as there.
        null_repeats: as there.
        progress: as there.

    Raises:
        InputError: whatever is wrong with the arguments or the checkpoint, in one line.

    >>> import docs_sim
    >>> list(docs_sim.compare_indices("demo", indices=["docs", "linear_cka"]).grids)
    ['docs', 'linear_cka']
    """
    computation = Computation(device, precision, memory_budget, svcca_variance, null, null_repeats)
    check_computation(computation, indices)
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
    return indices_over_layers(selection, indices, computation, progress)


def indices_over_layers(
    selection: Selection,
    indices: Sequence[str] = tuple(INDICES),
    computation: Computation = Computation(),  # noqa: B008 (frozen)
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> IndexComparison:
    """``compare_indices`` of matrices that are selected already; arguments and errors as those of ``layer_grids``."""
    found = layer_grids(selection, list(dict.fromkeys(indices)), computation, progress)
    return IndexComparison(
        found,
        mantel(np.array([grid.telling for grid in found.grids.values()])),
        measure_orthogonality(selection.matrices, devices=find_devices(computation.device)),
    )


def _row(grid: IndexGrid) -> dict[str, Any]:
    known = _known(grid.values)
    return {
        "median": _median(grid.values),
        "lowest": known.min() if known.size else np.nan,
        "highest": known.max() if known.size else np.nan,
        "gini": grid.gini,
        "chance": _median(grid.chance),
        "excess": _median(grid.excess),
        "z": _median(grid.z),
        "note": "undefined" if not known.size else "degenerate" if grid.degenerate else "",
    }


def _known(values: np.ndarray) -> np.ndarray:
    different = off_diagonal(values)
    return np.asarray(different[np.isfinite(different)])


def _median(values: np.ndarray | None) -> float:
    """Over pairs of different layers that have a value; NaN if none has."""
    return float(np.median(known)) if values is not None and (known := _known(values)).size else float("nan")


def _lines(table: pd.DataFrame) -> list[str]:
    """The table in columns; what is not known is left blank, and so is a column of which nothing is."""
    columns = {name: heading for name, heading in _COLUMNS.items() if name in table and table[name].notna().any()}
    rows = [(str(name), *(_number(row[column]) for column in columns), row["note"]) for name, row in table.iterrows()]
    return [f"  {line}" for line in aligned([("", *columns.values(), ""), *rows], right=True)]


def _number(value: float) -> str:
    """In four decimals, or as a power of ten where these show nothing."""
    return "" if np.isnan(value) else f"{value:.4f}" if value == 0 or abs(value) >= 5e-4 else f"{value:.1e}"


def _title(grid: IndexGrid) -> str:
    title = INDICES[grid.index].title
    if grid.degenerate:
        return f"{title}: degenerate"
    gini = "" if np.isnan(grid.gini) else f", Gini {grid.gini:.3f}"
    return f"{title}{gini}" if np.isfinite(off_diagonal(grid.values)).any() else f"{title}: undefined"
