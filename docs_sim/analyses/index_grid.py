"""One index over all pairs of a list of matrices, with what chance gives and where the number says nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from docs_sim.analyses.choices import NullName
from docs_sim.engine.factored import FactoredGrid, factored_grid, factored_pairs
from docs_sim.engine.grid import DocsGrid, docs_grid, docs_pairs
from docs_sim.engine.nulls import ByChance, gaussian, rotated
from docs_sim.engine.parts import MatrixParts, factoring, prepared_parts
from docs_sim.engine.prepared import LoadableMatrix
from docs_sim.indices.choices import SVCCA_VARIANCE
from docs_sim.indices.docs import QUANTILES, excess
from docs_sim.indices.factoring import Factoring
from docs_sim.indices.gini import mean_gini
from docs_sim.indices.table import INDICES, Property

_ROUNDING = 1e-6  # of a null that does not vary
_NAMED = 3  # matrices of which a message gives the names


@dataclass(frozen=True, eq=False)
class Null:
    """What an index gives where two matrices have nothing to do with each other, by simulation.

    Attributes:
        name: ``rotation`` (one side turned at random) or ``reinit`` (both sides Gaussian).
        repeats: how often each pair was drawn.
        mean: (L, L), symmetric; NaN on the diagonal.
        deviation: (L, L): standard deviation over the repeats, NaN for a single one.
    """

    name: str
    repeats: int
    mean: np.ndarray
    deviation: np.ndarray


@dataclass(frozen=True, eq=False)
class IndexGrid:
    """One index over all pairs of L matrices.

    Attributes:
        index: its name.
        values: (L, L), symmetric.
        analytic_chance: (L, L): value for independent isotropic matrices; None where no formula is known.
        null: the simulated value for unrelated matrices, if it was asked for.
        neurons: how the best matches of the neurons are distributed, for DOCS and its mean variant.
        factored: both directions and degenerate pairs, for the others.
        doubts: where the number is missing or says nothing, in words.
    """

    index: str
    values: np.ndarray
    analytic_chance: np.ndarray | None
    null: Null | None
    neurons: DocsGrid | None = field(repr=False)
    factored: FactoredGrid | None = field(repr=False)
    doubts: list[str]

    @property
    def chance(self) -> np.ndarray | None:
        """(L, L): what unrelated matrices give: the mean of the null, else the formula; None if there is neither."""
        return self.analytic_chance if self.null is None else self.null.mean

    @property
    def telling(self) -> np.ndarray:
        """(L, L): the values, NaN where they are degenerate: what differs there is rounding."""
        return self.values if self.factored is None else np.where(self.factored.degenerate, np.nan, self.values)

    @property
    def excess(self) -> np.ndarray | None:
        """(L, L): (S - chance) / (1 - chance), NaN where degenerate.

        None where nothing is known of chance, or the index has no bound.
        """
        bounded = np.isfinite(INDICES[self.index].highest)
        return excess(self.telling, self.chance) if self.chance is not None and bounded else None

    @property
    def z(self) -> np.ndarray | None:
        """(L, L): (S - mean of the null) / its standard deviation, NaN where degenerate; None without two repeats."""
        if self.null is None or self.null.repeats < 2:
            return None
        spread = np.where(self.null.deviation > _ROUNDING * abs(self.null.mean), self.null.deviation, np.nan)
        return np.asarray((self.telling - self.null.mean) / spread)

    @cached_property
    def gini(self) -> float:
        """Mean Gini coefficient of the rows; NaN for under three matrices, values not all positive, or degenerate."""
        return float("nan") if self.degenerate else mean_gini(self.values)

    @property
    def degenerate(self) -> bool:
        """Whether no pair of different matrices says anything of how they lie to each other."""
        return self.factored is not None and bool(off_diagonal(self.factored.degenerate).all())

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for ``result.json``."""
        levels = self.analytic_chance
        unlike = levels is not None and np.ptp(off_diagonal(levels)) > 0
        return {
            "values": self.values,
            "gini": self.gini,
            "chance_values": levels if unlike else None,
            "excess": self.excess,
            "null": None if self.null is None else vars(self.null),
            "z": self.z,
            **({} if self.neurons is None else _fit(self.neurons)),
            **({} if self.factored is None else {name: getattr(self.factored, name) for name in _OF_FACTORS}),
        }


_OF_FACTORS = ("directions", "degenerate")


def _fit(found: DocsGrid) -> dict[str, Any]:
    return {
        "fit": {
            "location": found.location,
            "scale": found.scale,
            "mean": found.mean,
            "quantiles": {str(level): found.quantiles[:, :, number] for number, level in enumerate(QUANTILES)},
        },
        "zero_columns": found.zero_columns,
    }


def off_diagonal(values: np.ndarray) -> np.ndarray:
    """The entries for two different matrices."""
    return values[~np.eye(len(values), dtype=bool)]


def index_grids(
    matrices: Sequence[LoadableMatrix],
    indices: Sequence[str],
    *,
    devices: Sequence[torch.device],
    precision: str = "auto",
    memory_budget: int | None = None,
    svcca_variance: float = SVCCA_VARIANCE,
    null: str | None = None,
    repeats: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, IndexGrid]:
    """Every index over all pairs of ``matrices``; each is factorized once for all indices.

    Args:
        matrices: at least two, with the same n.
        indices: their names.
        devices: share the work.
        precision: ``auto`` or ``highest``, for DOCS.
        memory_budget: bytes for what is kept of the matrices.
        svcca_variance: share of the variance that SVCCA keeps.
        null: ``rotation`` or ``reinit``; none if None.
        repeats: of the null.
        progress: called with the steps done and the steps in all.

    Raises:
        InputError: if the matrices do not fit together, or one holds NaN or infinity.
    """
    total, done = _steps(len(matrices), indices, 0 if null is None else repeats), 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        progress(done, total)

    draws = _Draws(matrices, null, 0 if null is None else repeats)
    factored = [index for index in indices if isinstance(INDICES[index].rule, Factoring)]
    resources = _Resources(devices, memory_budget, advance)
    grids = {
        index: _matching_grid(matrices, index, draws, resources, precision)
        for index in indices
        if index not in factored
    }
    if factored:
        grids |= _factored_grids(matrices, factored, draws, resources, svcca_variance)
    return {index: grids[index] for index in indices}


@dataclass(frozen=True)
class _Resources:
    """What the engine may use, and whom it tells."""

    devices: Sequence[torch.device]
    memory_budget: int | None
    progress: Callable[[int], None]


@dataclass(frozen=True)
class _Draws:
    """Unrelated matrices in place of ``matrices``, ``repeats`` times."""

    matrices: Sequence[LoadableMatrix]
    null: str | None
    repeats: int

    @property
    def keeps_rows(self) -> bool:
        """Whether only the second of two matrices is replaced."""
        return self.null == NullName.rotation

    def __iter__(self) -> Iterator[list[ByChance]]:
        for repeat in range(self.repeats):
            first = repeat * len(self.matrices)
            yield [
                ByChance(matrix, rotated, repeat) if self.keeps_rows else ByChance(matrix, gaussian, first + number)
                for number, matrix in enumerate(self.matrices)
            ]

    def summary(self, samples: Sequence[np.ndarray]) -> Null | None:
        """Mean and deviation of (L, L) samples, of which only what is above the diagonal is read."""
        if self.null is None:
            return None
        above = np.triu(np.ones(samples[0].shape, dtype=bool), 1)
        drawn = np.array([np.where(above, sample, sample.T) for sample in samples])
        drawn[:, np.eye(len(above), dtype=bool)] = np.nan
        nothing = np.full(above.shape, np.nan)
        return Null(self.null, self.repeats, drawn.mean(0), drawn.std(0, ddof=1) if len(drawn) > 1 else nothing)


def _above(row: int, column: int) -> bool:
    return row < column


def _steps(count: int, indices: Sequence[str], repeats: int) -> int:
    """How often the engine tells of progress: pairs of each index, and factorizations of the matrices."""
    factored = [index for index in indices if isinstance(INDICES[index].rule, Factoring)]
    diagonals = sum(Property.reflexivity not in INDICES[index].properties for index in factored)
    pairs = len(indices) * count * (count - 1) // 2
    return (1 + repeats) * (pairs + count * bool(factored)) + count * diagonals


def _matching_grid(
    matrices: Sequence[LoadableMatrix], index: str, draws: _Draws, resources: _Resources, precision: str
) -> IndexGrid:
    options = vars(resources) | {"index": index, "precision": precision}
    grid = docs_grid(matrices, **options)
    samples = [
        docs_pairs(matrices, drawn, _above, **options) if draws.keeps_rows else docs_grid(drawn, **options).values
        for drawn in draws
    ]
    return IndexGrid(index, grid.values, grid.chance, draws.summary(samples), neurons=grid, factored=None, doubts=[])


def _factored_grids(
    matrices: Sequence[LoadableMatrix],
    indices: Sequence[str],
    draws: _Draws,
    resources: _Resources,
    svcca_variance: float,
) -> dict[str, IndexGrid]:
    # Chance has to fit into the memory beside what it is compared with.
    budget = resources.memory_budget
    resources = replace(resources, memory_budget=budget if budget is None or not draws.repeats else max(1, budget // 2))
    options = vars(resources)
    samples: dict[str, list[np.ndarray]] = defaultdict(list)
    with prepared_parts(matrices, indices, svcca_variance=svcca_variance, **options) as parts:
        grids = {index: factored_grid(parts, index, **options) for index in indices}
        for drawn in draws:
            with prepared_parts(drawn, indices, svcca_variance=svcca_variance, **options) as others:
                rows = parts if draws.keeps_rows else others
                for index in indices:
                    samples[index].append(factored_pairs(rows, others, _above, index, **options))
        doubts = {index: _doubts(matrices, parts, index, grids[index]) for index in indices}
    return {
        index: IndexGrid(
            index,
            grid.values,
            None,
            draws.summary(samples[index]),
            neurons=None,
            factored=grid,
            doubts=doubts[index],
        )
        for index, grid in grids.items()
    }


def _doubts(
    matrices: Sequence[LoadableMatrix], parts: Sequence[MatrixParts], index: str, grid: FactoredGrid
) -> list[str]:
    """Why an index has no value for some matrices, and for which pairs its value is fixed."""
    without: dict[str, list[str]] = defaultdict(list)
    for matrix, one in zip(matrices, parts, strict=True):
        if index in one.undefined:
            without[one.undefined[index]].append(matrix.key)
    reasons = [f"{index} has no value for {_listed(keys)}: each {reason}" for reason, keys in without.items()]
    fixed = int(np.triu(grid.degenerate, 1).sum())
    if fixed:
        pairs = len(matrices) * (len(matrices) - 1) // 2
        keys = [matrix.key for matrix, one in zip(matrices, parts, strict=True) if index in one.fixed]
        share = f"all {pairs} pairs" if fixed == pairs else f"{fixed} of {pairs} pairs, those of {_listed(keys)}"
        reasons.append(f"{index} is degenerate for {share}: {factoring(index).fixed_because}")
    return reasons


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more
