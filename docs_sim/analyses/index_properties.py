"""What the indices promise, tried out: the paper's Table 1, computed, with a witness where the value changes."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.linalg import hadamard
from torch import Tensor

from docs_sim.analyses.layer_grids import check_indices
from docs_sim.engine.nulls import random_rotation
from docs_sim.indices.table import INDICES, Property
from docs_sim.report.result import save_result
from docs_sim.report.text import aligned

_SAME = 1e-6  # a larger change of the value is one
_WIDTH, _NEURONS = 64, 16  # of the tall orthogonal matrices


@dataclass(frozen=True)
class Trial:
    """One index and one property, over all pairs of matrices that were tried.

    Attributes:
        index: its name.
        promise: the property that was tried.
        claimed: whether the table of indices claims it.
        change: the largest change of the value, as a share of it where the index has no upper bound; NaN if it has
            no value anywhere.
        witness: the pair of matrices where that was.
    """

    index: str
    promise: str
    claimed: bool
    change: float
    witness: str

    @property
    def holds(self) -> bool:
        """Whether the value never changed."""
        return self.change <= _SAME


@dataclass(frozen=True)
class OrthogonalPair:
    """One index on two matrices with orthonormal columns.

    Attributes:
        index: its name.
        pair: which matrices.
        value: of the pair; NaN if there is none.
        value_of_equals: of the first matrix and itself.
    """

    index: str
    pair: str
    value: float
    value_of_equals: float

    @property
    def told_apart(self) -> bool:
        """Whether the index sees that the matrices are not equal."""
        return abs(self.value - self.value_of_equals) > _SAME


@dataclass(frozen=True)
class IndexProperties:
    """Properties of indices.

    Attributes:
        trials: of each index and property.
        orthogonal_pairs: of each index and pair.
    """

    trials: list[Trial]
    orthogonal_pairs: list[OrthogonalPair]

    @property
    def warnings(self) -> list[str]:
        """Where the table of indices is wrong: nothing, as the tests say."""
        return [
            f"{trial.index} is declared {'' if trial.claimed else 'not '}to keep its value under {trial.promise}, and "
            f"changed by {trial.change:.2g} on {trial.witness}"
            for trial in self.trials
            if trial.claimed != trial.holds
        ]

    def table(self) -> pd.DataFrame:
        """One row for each index and property or pair: ``index, property, holds, change, value, witness``."""
        tried = [
            {"index": one.index, "property": one.promise, "holds": one.holds, "change": one.change}
            | {"value": np.nan, "witness": one.witness}
            for one in self.trials
        ]
        told = [
            {"index": one.index, "property": "discrimination", "holds": one.told_apart}
            | {"change": abs(one.value - one.value_of_equals), "value": one.value, "witness": one.pair}
            for one in self.orthogonal_pairs
        ]
        return pd.DataFrame(tried + told)

    def summary(self) -> list[str]:
        """Both tables for people."""
        trials = {(one.index, one.promise): "yes" if one.holds else f"{one.change:.2g}" for one in self.trials}
        pairs = {
            (one.index, one.pair): f"{one.value:.4f}" if np.isfinite(one.value) else "undefined"
            for one in self.orthogonal_pairs
        }
        return [
            "The value stays (yes), or changes by as much as this on a witness:",
            *_cells(trials),
            "",
            f"Two matrices with orthonormal columns: square ({_WIDTH}, {_WIDTH}), tall ({_WIDTH}, {_NEURONS}):",
            *_cells(pairs),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values: what ``result.json`` holds (schema 1)."""
        return {
            "schema": 1,
            "command": "indices",
            "docs_sim": version("docs-sim"),
            "properties": [vars(one) | {"holds": one.holds} for one in self.trials],
            "orthogonal_pairs": [vars(one) | {"told_apart": one.told_apart} for one in self.orthogonal_pairs],
            "warnings": self.warnings,
        }

    def save(self, directory: str | Path) -> list[Path]:
        """Write ``properties.csv`` and ``result.json``.

        Raises:
            InputError: if the directory cannot be written or holds a result of something else.
        """
        return save_result(directory, self.to_dict(), {"properties.csv": self.table().to_csv(index=False)}, {})


def index_properties(indices: Sequence[str] = tuple(INDICES)) -> IndexProperties:
    """Try every property of ``indices`` on random and structured pairs of matrices, in float64.

    Raises:
        InputError: if there is no such index, or none is given.

    Source: DOCS (arXiv 2501.16650), Table 1, Definitions 1-3, Theorem 1.
    """
    check_indices(indices)
    return IndexProperties(
        [_try(index, one) for index in indices for one in Property],
        [
            OrthogonalPair(index, name, _value(index, x, y), _value(index, x, x))
            for index in indices
            for name, (x, y) in _orthogonal_pairs().items()
        ],
    )


Pair = tuple[Tensor, Tensor]


def _pairs() -> dict[str, Pair]:
    """Matrices of all shapes, unrelated and related, with plain and with lopsided spectra."""
    shapes = {"tall": (24, 6, 6), "square": (12, 12, 12), "wide": (8, 20, 20), "tall, unequal m": (24, 5, 9)}
    pairs = {}
    for number, (name, (n, m_x, m_y)) in enumerate(shapes.items()):
        x, noise = _gaussian(n, m_x, number), _gaussian(n, m_y, 100 + number)
        lopsided = x * torch.logspace(0, 2, m_x, dtype=torch.float64)
        pairs[f"independent Gaussian, {name} ({n}, {m_x})"] = (x, noise)
        related = torch.cat([x, noise], dim=1)[:, :m_y] + 0.3 * noise
        pairs[f"one the other with noise, {name} ({n}, {m_x})"] = (lopsided, related)
    return pairs


def _orthogonal_pairs() -> dict[str, Pair]:
    rotation = random_rotation(_WIDTH, 0).double()
    tall = torch.eye(_WIDTH, dtype=torch.float64)[:, :_NEURONS]
    square = torch.eye(_WIDTH, dtype=torch.float64)
    return {
        "square: equal": (square, square),
        "square: I, Hadamard": (square, torch.from_numpy(hadamard(_WIDTH, dtype=np.float64) / np.sqrt(_WIDTH))),
        "square: I, random": (square, rotation),
        "tall: equal": (tall, tall),
        "tall: same span": (tall, tall @ random_rotation(_NEURONS, 1).double()),
        "tall: random": (tall, rotation[:, :_NEURONS]),
    }


def _gaussian(n: int, m: int, seed: int) -> Tensor:
    return torch.randn((n, m), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mixed(matrix: Tensor, seed: int) -> Tensor:
    """Columns mixed by an invertible matrix with condition number 10."""
    m = matrix.shape[1]
    scales = torch.logspace(-0.5, 0.5, m, dtype=torch.float64)
    return matrix @ (random_rotation(m, seed).double() * scales) @ random_rotation(m, seed + 1).double()


def _signed(m: int, seed: int) -> Tensor:
    numbers = _gaussian(1, m, seed)
    return numbers + numbers.sign()


def _permuted(matrix: Tensor, seed: int) -> Tensor:
    return matrix[:, torch.randperm(matrix.shape[1], generator=torch.Generator().manual_seed(seed))]


_ON_EACH_SIDE: dict[Property, Callable[[Tensor, int], Tensor]] = {
    Property.permutation: _permuted,
    Property.scaling: lambda matrix, seed: matrix * (-3.7 if seed % 2 else 0.02),
    Property.column_scaling: lambda matrix, seed: matrix * _signed(matrix.shape[1], seed),
    Property.translation: lambda matrix, seed: matrix + _signed(matrix.shape[1], seed),
    Property.orthogonal: lambda matrix, seed: matrix @ random_rotation(matrix.shape[1], seed).double(),
    Property.invertible: _mixed,
    Property.rotation: lambda matrix, seed: random_rotation(matrix.shape[0], 7).double() @ matrix,
}


def _try(index: str, wanted: Property) -> Trial:
    changes = {name: _change(index, before, after) for name, before, after in _values(index, wanted)}
    known = {name: change for name, change in changes.items() if np.isfinite(change)}
    witness = max(known, key=lambda name: known[name], default="")
    return Trial(index, str(wanted), wanted in INDICES[index].properties, known.get(witness, float("nan")), witness)


def _values(index: str, wanted: Property) -> Iterator[tuple[str, float, float]]:
    """What should be equal, for each pair of matrices."""
    for name, (x, y) in _pairs().items():
        if wanted == Property.reflexivity:
            yield name, 1.0, _value(index, x, x)
        elif wanted == Property.symmetry:
            yield name, *INDICES[index].directions(x, y)
        else:
            act = _ON_EACH_SIDE[wanted]
            yield name, _value(index, x, y), _value(index, act(x, 10), act(y, 21))


def _change(index: str, before: float, after: float) -> float:
    change = abs(after - before)
    return change if np.isfinite(INDICES[index].highest) else change / max(abs(before), abs(after))


def _value(index: str, x: Tensor, y: Tensor) -> float:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "undefined")  # it is shown as such
        return INDICES[index].function(x, y)


def _cells(cells: dict[tuple[str, str], str]) -> list[str]:
    """(row, column) -> text, as a table."""
    rows, columns = dict.fromkeys(row for row, _ in cells), dict.fromkeys(column for _, column in cells)
    return aligned([("", *columns), *((row, *(cells[row, column] for column in columns)) for row in rows)], right=True)
