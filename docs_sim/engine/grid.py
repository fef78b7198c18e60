"""The DOCS grid over a list of matrices: one product for every unordered pair, on one device or several."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from docs_sim.engine.compare import Comparison, Pair, PairComparer
from docs_sim.engine.device import find_devices, free_memory, product_dtype
from docs_sim.engine.inputs import check_comparable
from docs_sim.engine.parallel import run_together
from docs_sim.engine.plan import cross_order, pair_order, share
from docs_sim.engine.prepared import EXACT, LoadableMatrix, PreparedMatrices, unit_bytes
from docs_sim.engine.screening import worth_screening
from docs_sim.indices.docs import QUANTILES
from docs_sim.indices.precision import full_float32
from docs_sim.indices.table import INDICES, Matching


@dataclass(frozen=True, eq=False)
class DocsGrid:
    """DOCS over all pairs of L matrices.

    Attributes:
        values: (L, L) similarities, symmetric; the diagonal is 1, for ``docs_mean`` NaN (not computed).
        chance: (L, L) similarity of independent isotropic matrices of the same shapes.
        location, scale, mean: (L, L); row i, column j describes s_X for X = matrix i and Y = matrix j.
        quantiles: (L, L, 5) of the same, at ``docs_sim.indices.docs.QUANTILES``.
        zero_columns: (L,) columns without direction, left out.
        product: dtype of the products, "int8" or "float32".
        exact_pairs: how many pairs were multiplied in float32.
        loads: how many times a matrix was read and normalised.
    """

    values: np.ndarray
    chance: np.ndarray
    location: np.ndarray
    scale: np.ndarray
    mean: np.ndarray
    quantiles: np.ndarray
    zero_columns: np.ndarray
    product: str
    exact_pairs: int
    loads: int


def docs_grid(
    matrices: Sequence[LoadableMatrix],
    *,
    index: str = "docs",
    devices: Sequence[torch.device] | None = None,
    precision: str = "auto",
    memory_budget: int | None = None,
    progress: Callable[[int], None] = lambda pairs: None,
) -> DocsGrid:
    """Compare every pair of ``matrices``.

    Args:
        matrices: at least two, with the same n; m may differ.
        index: ``docs`` or ``docs_mean``.
        devices: all that there are if None.
        precision: ``auto`` screens in int8 where that is fast and exact enough, ``highest`` never.
        memory_budget: bytes for prepared matrices on each device; half of what is free if None.
        progress: called with the number of pairs that were just finished.

    Returns:
        Every number within 2e-5 of float64 on the stored weights, unless these were built against the rotation that
        comes before the rounding to int8.

    Raises:
        InputError: if n differs, a matrix holds NaN, infinity or only zero columns, or the budget is not above zero.
    """
    compared = _compare(
        matrices,
        lambda capacity: pair_order(len(matrices), capacity),
        index=index,
        devices=devices or find_devices(),
        precision=precision,
        memory_budget=memory_budget,
        progress=progress,
    )
    return _assemble(matrices, compared, _matching(index))


def docs_pairs(
    rows: Sequence[LoadableMatrix],
    columns: Sequence[LoadableMatrix],
    wanted: Callable[[int, int], bool],
    *,
    index: str = "docs",
    devices: Sequence[torch.device] | None = None,
    precision: str = "auto",
    memory_budget: int | None = None,
    progress: Callable[[int], None] = lambda pairs: None,
) -> np.ndarray:
    """Compare matrices of one list with those of another.

    Args:
        rows: at least one matrix.
        columns: at least one, with the same n.
        wanted: says of a row and a column whether to compare them.
        index: as for ``docs_grid``.
        devices: as for ``docs_grid``.
        precision: as for ``docs_grid``.
        memory_budget: as for ``docs_grid``.
        progress: as for ``docs_grid``.

    Returns:
        (R, C) similarities; NaN where not wanted.

    Raises:
        InputError: as ``docs_grid``.
    """

    def order(capacity: int) -> Iterator[Pair]:
        pairs = cross_order(len(rows), len(columns), capacity)
        return (pair for pair in pairs if wanted(pair[0], pair[1] - len(rows)))

    compared = _compare(
        [*rows, *columns],
        order,
        index=index,
        devices=devices or find_devices(),
        precision=precision,
        memory_budget=memory_budget,
        progress=progress,
    )
    values = np.full((len(rows), len(columns)), np.nan)
    for comparison in compared.comparisons:
        row, column = comparison.pair
        values[row, column - len(rows)] = sum(side.location for side in comparison.sides) / 2
    return values


@dataclass(frozen=True)
class _Compared:
    """Pairs, and how they were compared; see ``DocsGrid``."""

    comparisons: list[Comparison]
    product: str
    loads: int


def _matching(index: str) -> Matching:
    rule = INDICES[index].rule
    if not isinstance(rule, Matching):
        raise TypeError(f"{index} does not match neurons")
    return rule


def _compare(
    matrices: Sequence[LoadableMatrix],
    order: Callable[[int], Iterator[Pair]],
    *,
    index: str,
    devices: Sequence[torch.device],
    precision: str,
    memory_budget: int | None,
    progress: Callable[[int], None],
) -> _Compared:
    check_comparable(matrices, memory_budget)
    rule = _matching(index)
    screens = precision != "highest" and rule.rounds and worth_screening([matrix.shape for matrix in matrices])
    dtypes = [product_dtype(device) if screens else EXACT for device in devices]
    budgets = [memory_budget or free_memory(device) // 2 for device in devices]
    capacity = min(
        max(2, budget // max(unit_bytes(matrix, dtype) for matrix in matrices))
        for budget, dtype in zip(budgets, dtypes, strict=True)
    )
    runs = share(list(order(capacity)), len(devices))
    comparers = [
        PairComparer(PreparedMatrices(matrices, device, budget, run), rule.matches, dtype, device)
        for device, budget, run, dtype in zip(devices, budgets, runs, dtypes, strict=True)
    ]
    with full_float32():
        works = [comparer.compare(run) for comparer, run in zip(comparers, runs, strict=True)]
        comparisons = run_together(works, progress)
    loads = sum(comparer.prepared.loads for comparer in comparers)
    return _Compared(comparisons, str(dtypes[0]).removeprefix("torch."), loads)


def _assemble(matrices: Sequence[LoadableMatrix], compared: _Compared, rule: Matching) -> DocsGrid:
    count = len(matrices)
    location, scale, mean = (np.zeros((count, count)) for _ in range(3))
    quantiles = np.zeros((count, count, len(QUANTILES)))
    diagonal = np.diag_indices(count)
    location[diagonal] = mean[diagonal] = quantiles[diagonal] = rule.self_value
    scale[diagonal] = 0.0 * rule.self_value
    neurons = [matrix.shape[1] for matrix in matrices]
    for comparison in compared.comparisons:
        i, j = comparison.pair
        for (row, column), side in zip(((i, j), (j, i)), comparison.sides, strict=True):
            location[row, column], scale[row, column] = side.location, side.scale
            mean[row, column], quantiles[row, column] = side.mean, side.quantiles
        neurons[i], neurons[j] = comparison.neurons
    n = matrices[0].shape[0]
    return DocsGrid(
        values=(location + location.T) / 2,
        chance=np.array([[rule.chance(n, m_x, m_y) for m_y in neurons] for m_x in neurons]),
        location=location,
        scale=scale,
        mean=mean,
        quantiles=quantiles,
        zero_columns=np.array([matrix.shape[1] for matrix in matrices]) - neurons,
        product=compared.product,
        exact_pairs=sum(comparison.exact for comparison in compared.comparisons),
        loads=compared.loads,
    )
