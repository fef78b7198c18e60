"""The DOCS grid over a list of matrices: one product for every unordered pair, on one device or several."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from docs_sim.engine.compare import EXACT, Comparison, Pair, PairComparer
from docs_sim.engine.device import find_devices, free_memory, product_dtype
from docs_sim.engine.plan import pair_order, share
from docs_sim.engine.prepared import LoadableMatrix, PreparedMatrices, unit_bytes
from docs_sim.engine.rounding import TOLERANCE, location_error
from docs_sim.errors import InputError
from docs_sim.indices import INDICES
from docs_sim.indices.docs import QUANTILES, chance_level


@dataclass(frozen=True)
class DocsGrid:
    """DOCS over all pairs of L matrices.

    Attributes:
        values: (L, L) similarities, symmetric, diagonal 1 (NaN for ``docs_mean``).
        chance: (L, L) similarity of independent isotropic matrices of the same shapes.
        location, scale, mean: (L, L); row i, column j describes s_X for X = matrix i and Y = matrix j.
        quantiles: (L, L, 5) of the same, at ``docs_sim.indices.docs.QUANTILES``.
        zero_columns: (L,) columns without direction, left out.
        product: dtype of the products, "bfloat16" or "float32".
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
        precision: ``auto`` multiplies in bfloat16 where that is fast and exact enough, ``highest`` in float32.
        memory_budget: bytes for prepared matrices on each device; half of what is free if None.
        progress: called with the number of pairs that were just finished.

    Returns:
        Similarities within 2e-5 of float64 on the stored weights.

    Raises:
        InputError: if n differs, or a matrix holds NaN, infinity or only zero columns.
    """
    widths = {matrix.shape[0]: matrix.key for matrix in matrices}
    if len(widths) > 1:
        differing = ", ".join(f"{key} has n = {n}" for n, key in widths.items())
        raise InputError(f"neurons of different spaces cannot be compared: {differing}")
    devices = list(devices or find_devices())
    rounded = precision == "auto" and index == "docs" and _rounding_is_promising(matrices)
    dtype = product_dtype(devices[0]) if rounded else EXACT
    budgets = [memory_budget or free_memory(device) // 2 for device in devices]
    capacity = max(2, min(budgets) // max(unit_bytes(matrix, dtype) for matrix in matrices))
    runs = share(list(pair_order(len(matrices), capacity)), len(devices))
    comparers = [
        PairComparer(PreparedMatrices(matrices, device, budget, run), INDICES[index].matches, dtype)
        for device, budget, run in zip(devices, budgets, runs, strict=True)
    ]
    with _full_float32():
        comparisons = _compare(comparers, runs, progress)
    loads = sum(comparer.prepared.loads for comparer in comparers)
    return _assemble(matrices, comparisons, INDICES[index].chance, str(dtype).removeprefix("torch."), loads)


def _rounding_is_promising(matrices: Sequence[LoadableMatrix]) -> bool:
    """Whether even the least error of a rounded product, at chance level, is small enough for these shapes."""
    n, m = matrices[0].shape[0], min(matrix.shape[1] for matrix in matrices)
    return location_error(chance_level(n, m, m), np.inf, samples=2 * m, product_dtype=torch.bfloat16) <= TOLERANCE


@contextmanager
def _full_float32() -> Iterator[None]:
    """TF32 and bfloat16 inside float32 products, which a program may have allowed, are off while this runs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _compare(
    comparers: Sequence[PairComparer], runs: Sequence[Sequence[Pair]], progress: Callable[[int], None]
) -> list[Comparison]:
    """Each device compares its run of the plan, in a thread of its own where there are several."""
    stop = threading.Event()
    if len(comparers) == 1:
        return comparers[0].compare(runs[0], progress, stop)
    with ThreadPoolExecutor(len(comparers)) as pool:
        futures = [
            pool.submit(comparer.compare, run, progress, stop) for comparer, run in zip(comparers, runs, strict=True)
        ]
        try:
            return [comparison for future in futures for comparison in future.result()]
        finally:
            stop.set()


def _assemble(
    matrices: Sequence[LoadableMatrix],
    comparisons: Sequence[Comparison],
    chance: Callable[[int, int, int], float],
    product: str,
    loads: int,
) -> DocsGrid:
    count = len(matrices)
    location, scale, mean = np.ones((count, count)), np.zeros((count, count)), np.ones((count, count))
    quantiles = np.ones((count, count, len(QUANTILES)))
    zero_columns = np.zeros(count, dtype=int)
    for comparison in comparisons:
        i, j = comparison.pair
        for (row, column), side in zip(((i, j), (j, i)), comparison.sides, strict=True):
            location[row, column], scale[row, column] = side.location, side.scale
            mean[row, column], quantiles[row, column] = side.mean, side.quantiles
        zero_columns[[i, j]] = comparison.zero_columns
    n, neurons = matrices[0].shape[0], [matrix.shape[1] for matrix in matrices]
    return DocsGrid(
        values=(location + location.T) / 2,
        chance=np.array([[chance(n, m_x, m_y) for m_y in neurons] for m_x in neurons]),
        location=location,
        scale=scale,
        mean=mean,
        quantiles=quantiles,
        zero_columns=zero_columns,
        product=product,
        exact_pairs=sum(comparison.exact for comparison in comparisons),
        loads=loads,
    )
