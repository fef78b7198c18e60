"""Every index on one matrix: how do they see the layers, which say nothing there, and which agree?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from docs_sim.analyses.index_grid import IndexGrid, off_diagonal
from docs_sim.analyses.layer_grids import Computation, LayerGrids, check_choice, layer_grids, subject
from docs_sim.analyses.mantel import Mantel, mantel
from docs_sim.analyses.selection import Selection
from docs_sim.indices.table import INDICES
from docs_sim.report.choices import Format
from docs_sim.report.files import RESULT, check_replaceable, json_text, write_files
from docs_sim.report.grid_panels import Panel, draw_panels
from docs_sim.report.grids import figure_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class IndexComparison:
    """Several indices over the layers of one model.

    Attributes:
        found: the grids, and how they were computed.
        mantel: how the grids agree, in the order of ``found.grids``.
    """

    found: LayerGrids = field(repr=False)
    mantel: Mantel = field(repr=False)

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
            "warnings": self.warnings,
            "settings": self.found.settings,
            "seconds": round(self.found.seconds, 3),
        }

    def save(self, directory: str | Path, *, formats: str | Sequence[str] = ("png",)) -> list[Path]:
        """Write ``indices.<format>``, ``indices.csv``, ``mantel.csv``, a ``<index>.csv`` each, and ``result.json``.

        Raises:
            InputError: if the directory cannot be written or holds a result of something else, or a format is unknown.
        """
        check_replaceable(Path(directory))
        formats = [formats] if isinstance(formats, str) else formats
        for suffix in formats:
            check_choice("format", suffix, Format)
        figure = self.plot()
        contents = {f"indices.{suffix}": figure_bytes(figure, suffix) for suffix in formats}
        contents["indices.csv"] = self.table().to_csv().encode()
        contents["mantel.csv"] = self._mantel_frame().to_csv(index=False).encode()
        for name, grid in self.grids.items():
            frame = pd.DataFrame(grid.values, index=self.found.labels, columns=self.found.labels)
            contents[f"{name}.csv"] = frame.to_csv(index_label="layer").encode()
        files = [*(f"indices.{suffix}" for suffix in Format), *(f"{name}.csv" for name in INDICES)]
        contents[RESULT] = json_text(self.to_dict()).encode()
        return write_files(Path(directory), contents, [name for name in files if name not in contents])

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
    selection: Selection,
    indices: Sequence[str] = tuple(INDICES),
    computation: Computation = Computation(),  # noqa: B008 (frozen)
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> IndexComparison:
    """Every index over the layers of a selection; arguments and errors as those of ``layer_grids``."""
    found = layer_grids(selection, list(dict.fromkeys(indices)), computation, progress)
    return IndexComparison(found, mantel(np.array([grid.values for grid in found.grids.values()])))


def _row(grid: IndexGrid) -> dict[str, Any]:
    values = off_diagonal(grid.values)
    known = values[np.isfinite(values)]
    ends = {"median": np.median(known), "lowest": known.min(), "highest": known.max()} if known.size else {}
    excess = None if grid.excess is None else off_diagonal(grid.excess)
    return {
        **({"median": np.nan, "lowest": np.nan, "highest": np.nan} | ends),
        "gini": grid.gini,
        "chance": np.nan if grid.chance is None else float(np.median(off_diagonal(grid.chance))),
        "excess": np.nan if excess is None or not np.isfinite(excess).any() else float(np.nanmedian(excess)),
        "note": "undefined" if not known.size else "degenerate" if grid.degenerate else "",
    }


def _lines(table: pd.DataFrame) -> list[str]:
    """The table in columns; what is not known is left blank, and so is a column of which nothing is."""
    width = max(len(name) for name in table.index)
    shown = [name for name in table.columns if name != "note" and table[name].notna().any()]
    heading = f"  {'':{width}} " + "".join(f"{name.replace('_', ' '):>13}" for name in shown)
    lines = [
        f"  {name:{width}} "
        + "".join(f"{'' if np.isnan(row[column]) else format(row[column], '.4f'):>13}" for column in shown)
        + (f"  {row['note']}" if row["note"] else "")
        for name, row in table.iterrows()
    ]
    return [heading, *lines]


def _title(grid: IndexGrid) -> str:
    title = INDICES[grid.index].title
    if grid.degenerate:
        return f"{title}: degenerate"
    gini = "" if np.isnan(grid.gini) else f", Gini {grid.gini:.3f}"
    return f"{title}{gini}" if np.isfinite(off_diagonal(grid.values)).any() else f"{title}: undefined"
