"""The DOCS grid over a list of matrices: one product for every unordered pair, on one device or several."""

import operator
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from docs_sim.engine.compare import Comparison, Pair, PairComparer
from docs_sim.engine.device import find_devices, free_memory, product_dtype
from docs_sim.engine.plan import pair_order, share
from docs_sim.engine.prepared import EXACT, LoadableMatrix, PreparedMatrices, unit_bytes
from docs_sim.engine.screening import worth_screening
from docs_sim.errors import InputError, shown
from docs_sim.indices.docs import QUANTILES
from docs_sim.indices.precision import full_float32
from docs_sim.indices.table import INDICES, Index


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
    widths = {matrix.shape[0]: matrix.key for matrix in matrices}
    if len(widths) > 1:
        differing = ", ".join(f"{key} has n = {n}" for n, key in widths.items())
        raise InputError(f"neurons of different spaces cannot be compared: {differing}")
    empty = next((matrix for matrix in matrices if 0 in matrix.shape), None)
    if empty is not None:
        raise InputError(f"{empty.key} has the shape {empty.shape}: there is nothing to compare")
    if memory_budget is not None and not _is_positive(memory_budget):
        raise InputError(f"a memory budget is a number of bytes above zero, not {shown(memory_budget)}")
    devices = list(devices or find_devices())
    screens = (
        precision != "highest" and INDICES[index].rounds and worth_screening([matrix.shape for matrix in matrices])
    )
    dtypes = [product_dtype(device) if screens else EXACT for device in devices]
    budgets = [memory_budget or free_memory(device) // 2 for device in devices]
    capacity = min(
        max(2, budget // max(unit_bytes(matrix, dtype) for matrix in matrices))
        for budget, dtype in zip(budgets, dtypes, strict=True)
    )
    runs = share(list(pair_order(len(matrices), capacity)), len(devices))
    comparers = [
        PairComparer(PreparedMatrices(matrices, device, budget, run), INDICES[index].matches, dtype, device)
        for device, budget, run, dtype in zip(devices, budgets, runs, dtypes, strict=True)
    ]
    with full_float32():
        comparisons = _compare(comparers, runs, progress)
    return _assemble(
        matrices,
        comparisons,
        INDICES[index],
        product=str(dtypes[0]).removeprefix("torch."),
        loads=sum(comparer.prepared.loads for comparer in comparers),
    )


def _is_positive(number: object) -> bool:
    try:
        return not isinstance(number, bool) and operator.index(number) > 0  # type: ignore[arg-type]
    except TypeError:
        return False


def _compare(
    comparers: Sequence[PairComparer], runs: Sequence[Sequence[Pair]], progress: Callable[[int], None]
) -> list[Comparison]:
    """Each device compares its run of the plan, in a thread of its own where there are several."""
    stop = threading.Event()
    if len(comparers) == 1:
        return comparers[0].compare(runs[0], progress, stop)
    lock = threading.Lock()

    def advance(pairs: int) -> None:
        with lock:
            progress(pairs)

    with ThreadPoolExecutor(len(comparers)) as pool:
        futures = [
            pool.submit(comparer.compare, run, advance, stop) for comparer, run in zip(comparers, runs, strict=True)
        ]
        try:
            return [comparison for future in futures for comparison in future.result()]
        finally:
            stop.set()


def _assemble(
    matrices: Sequence[LoadableMatrix], comparisons: Sequence[Comparison], index: Index, *, product: str, loads: int
) -> DocsGrid:
    count = len(matrices)
    location, scale, mean = (np.zeros((count, count)) for _ in range(3))
    quantiles = np.zeros((count, count, len(QUANTILES)))
    diagonal = np.diag_indices(count)
    location[diagonal] = mean[diagonal] = quantiles[diagonal] = index.self_value
    scale[diagonal] = 0.0 * index.self_value
    neurons = [matrix.shape[1] for matrix in matrices]
    for comparison in comparisons:
        i, j = comparison.pair
        for (row, column), side in zip(((i, j), (j, i)), comparison.sides, strict=True):
            location[row, column], scale[row, column] = side.location, side.scale
            mean[row, column], quantiles[row, column] = side.mean, side.quantiles
        neurons[i], neurons[j] = comparison.neurons
    n = matrices[0].shape[0]
    return DocsGrid(
        values=(location + location.T) / 2,
        chance=np.array([[index.chance(n, m_x, m_y) for m_y in neurons] for m_x in neurons]),
        location=location,
        scale=scale,
        mean=mean,
        quantiles=quantiles,
        zero_columns=np.array([matrix.shape[1] for matrix in matrices]) - neurons,
        product=product,
        exact_pairs=sum(comparison.exact for comparison in comparisons),
        loads=loads,
    )
