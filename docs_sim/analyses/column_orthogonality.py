"""How near to orthogonal the neurons of each matrix of a model lie to each other (the paper's Figure 9)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from docs_sim.checkpoint import Checkpoint, WeightMatrix, open_checkpoint
from docs_sim.engine.columns import orthogonality_of_all
from docs_sim.engine.device import find_devices
from docs_sim.errors import InputError
from docs_sim.indices.orthogonality import Orthogonality, chance_orthogonality
from docs_sim.report.densities import DensityPanel, draw_densities
from docs_sim.report.result import save_result
from docs_sim.report.text import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURES = ("mean", "highest", "deviation")
_HEADINGS = ("mean |cos|", "chance", "largest |cos|", "chance", "|W'W - I|", "chance", "distance")


@dataclass(frozen=True, eq=False)
class MatrixOrthogonality:
    """One matrix.

    Attributes:
        matrix: that was measured.
        found: the |cos| between its columns.
        chance: what as many independent isotropic columns of this length give.
    """

    matrix: WeightMatrix
    found: Orthogonality
    chance: Orthogonality

    @property
    def kind(self) -> str:
        """What it is called in every layer: ``mlp_up``, ``encoder attn_q``, ``mlp_up of the shared expert``."""
        name = " ".join(filter(None, [self.matrix.stack, self.matrix.name]))
        part = self.matrix.block or ("experts" if isinstance(self.matrix.expert, int) else self.matrix.expert)
        return f"{name}, {part}" if part else name

    def row(self) -> dict[str, Any]:
        """Its line of a table."""
        both = {"": self.found, "_chance": self.chance}
        return {
            "key": self.matrix.key,
            "matrix": self.kind,
            "layer": self.matrix.layer,
            "n": self.matrix.shape[0],
            "m": self.found.columns,
            **{name + suffix: getattr(side, name) for name in _FIGURES for suffix, side in both.items()},
            "distance": self.found.distance(self.chance),
        }


@dataclass(frozen=True, eq=False)
class ColumnOrthogonality:
    """The matrices of one model.

    Attributes:
        model: ``name``, ``source``, ``revision``, ``architecture``.
        matrices: in the order of the checkpoint.
        warnings: what was left out.
        settings: how it was computed.
        seconds: wall time.
    """

    model: dict[str, Any]
    matrices: list[MatrixOrthogonality] = field(repr=False)
    warnings: list[str]
    settings: dict[str, Any]
    seconds: float

    def table(self) -> pd.DataFrame:
        """One row for each matrix: mean and largest |cos|, |W'W - I|_F, each with chance; the distance of both laws."""
        return orthogonality_table(self.matrices)

    def summary(self) -> list[str]:
        """One line for each kind of matrix, from the lowest to the highest over its layers."""
        return [
            f"{self.model['name']}: |cos| between the columns of each matrix, {len(self.matrices)} in all",
            *orthogonality_lines(self.matrices),
            f"  {self.seconds:.1f} s on {self.settings['device']}",
        ]

    def plot(self) -> "Figure":
        """The distributions, a panel for each kind of matrix."""
        panels = [
            DensityPanel(
                f"{kind} {members[0].matrix.shape}",
                [one.found.counts for one in members],
                [one.matrix.layer or 0 for one in members],
                members[0].chance.counts,
            )
            for kind, members in _by_kind(self.matrices).items()
        ]
        return draw_densities(panels, f"{self.model['name']}: columns of each matrix against independent ones")

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values: what ``result.json`` holds (schema 1)."""
        return {
            "schema": 1,
            "command": "inspect",
            "docs_sim": version("docs-sim"),
            "model": self.model,
            "orthogonality": [one.row() for one in self.matrices],
            "warnings": self.warnings,
            "settings": self.settings,
            "seconds": round(self.seconds, 3),
        }

    def save(self, directory: str | Path, *, formats: str | Sequence[str] = ("png",)) -> list[Path]:
        """Write ``orthogonality.<format>``, ``orthogonality.csv`` and ``result.json``.

        Raises:
            InputError: if the directory cannot be written or holds a result of something else, or a format is unknown.
        """
        tables = {"orthogonality.csv": self.table().to_csv(index=False)}
        return save_result(directory, self.to_dict(), tables, {"orthogonality": self.plot()}, formats=formats)


def column_orthogonality(
    model: str | Path | Checkpoint,
    matrix: str | None = None,
    *,
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ColumnOrthogonality:
    """Measure every matrix of a model, or those called ``matrix``.

    Args:
        model: anything that ``open_checkpoint`` takes, or a checkpoint.
        matrix: canonical name or alias; if None all matrices of layers.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``; MPS has no float64, and the CPU takes its place.
        progress: called with the matrices done and in all.

    Raises:
        InputError: whatever is wrong with the arguments or the checkpoint, in one line.

    >>> import docs_sim
    >>> len(docs_sim.column_orthogonality("demo", "mlp_up").matrices)
    8
    """
    devices = find_devices(device)
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
    matrices = [one for one in checkpoint.matrices(matrix) if matrix is not None or one.layer is not None]
    if not matrices:
        raise InputError(f"{checkpoint.name}: no matrix of a layer could be named; `docs-sim inspect` says why")
    outside = [] if matrix is not None else [one.key for one in checkpoint.matrices() if one.layer is None]
    started = time.monotonic()
    found = measure_orthogonality(matrices, devices=devices, progress=progress)
    return ColumnOrthogonality(
        model=checkpoint.describe(),
        matrices=found,
        warnings=[f"{key} left out, as it has so many columns; --matrix {key} measures it" for key in outside],
        settings={"device": ",".join(map(str, devices)), "matrix": matrix, "tower": checkpoint.tower},
        seconds=time.monotonic() - started,
    )


def measure_orthogonality(
    matrices: Sequence[WeightMatrix],
    *,
    devices: Sequence[Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[MatrixOrthogonality]:
    """Each of ``matrices`` beside chance; errors as those of ``column_orthogonality``."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, len(matrices))

    found = orthogonality_of_all(matrices, devices, advance)
    return [
        MatrixOrthogonality(matrix, one, chance_orthogonality(matrix.shape[0], one.columns))
        for matrix, one in zip(matrices, found, strict=True)
    ]


def orthogonality_table(matrices: Sequence[MatrixOrthogonality]) -> pd.DataFrame:
    """One row for each matrix."""
    return pd.DataFrame([one.row() for one in matrices])


def orthogonality_lines(matrices: Sequence[MatrixOrthogonality]) -> list[str]:
    """One line for each kind of matrix, for people."""
    rows: list[tuple[str, ...]] = [("", "matrices", "shape", *_HEADINGS)]
    for kind, members in _by_kind(matrices).items():
        table = orthogonality_table(members)
        cells = [_range(table[name + suffix]) for name in _FIGURES for suffix in ("", "_chance")]
        rows.append((kind, str(len(members)), str(members[0].matrix.shape), *cells, _range(table["distance"])))
    return [f"  {line}" for line in aligned(rows, right=True)]


def _by_kind(matrices: Sequence[MatrixOrthogonality]) -> dict[str, list[MatrixOrthogonality]]:
    kinds: dict[str, list[MatrixOrthogonality]] = {}
    shapes: dict[str, set[tuple[int, int]]] = {}
    for one in matrices:
        shapes.setdefault(one.kind, set()).add(one.matrix.shape)
    for one in matrices:
        shape = f" {one.matrix.shape}" if len(shapes[one.kind]) > 1 else ""
        kinds.setdefault(one.kind + shape, []).append(one)
    return kinds


def _range(values: "pd.Series[float]") -> str:
    known = values.dropna()
    if known.empty:
        return ""
    low, high = (_short(float(end)) for end in (known.min(), known.max()))
    return low if low == high else f"{low}-{high}"


def _short(value: float) -> str:
    """Four digits, or one decimal of what is large."""
    return f"{value:.1f}" if value >= 10 or np.isclose(value, 0) else f"{value:.3f}"
