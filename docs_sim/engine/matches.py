"""The best match of every neuron, for few pairs of matrices: what DOCS is fitted to, kept whole."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from docs_sim.engine.device import tile_rows
from docs_sim.engine.inputs import check_comparable
from docs_sim.engine.prepared import EXACT, LoadableMatrix, naming_tensors
from docs_sim.indices.docs import Tile, best_matches, same_neurons, unit_neurons
from docs_sim.indices.precision import full_float32

Pair = tuple[int, int]


def matches_of_pairs(
    matrices: Sequence[LoadableMatrix],
    device: torch.device,
    progress: Callable[[int], None] = lambda pairs: None,
) -> dict[Pair, tuple[np.ndarray, np.ndarray]]:
    """Compare every pair of ``matrices`` in float32.

    Args:
        matrices: with the same n; two of them are held at once.
        device: to work on.
        progress: called with 1 after each pair.

    Returns:
        (i, j), i < j -> s_X of matrix i and s_Y of matrix j, float64, without zero columns.

    Raises:
        InputError: if n differs, or a matrix is empty or holds NaN, infinity or only zero columns.
    """
    check_comparable(matrices, None)
    rows = min(tile_rows(device), max(matrix.shape[1] for matrix in matrices))
    tile = Tile(torch.empty(rows**2, dtype=EXACT, device=device), rows)
    found = {}
    with full_float32():
        for i, first in enumerate(matrices[:-1]):
            neurons = _unit_neurons(first, device)
            for j, second in enumerate(matrices[i + 1 :], i + 1):
                found[i, j] = _matches(neurons, _unit_neurons(second, device), tile)
                progress(1)
    return found


def _unit_neurons(matrix: LoadableMatrix, device: torch.device) -> Tensor:
    with naming_tensors(matrix):
        return unit_neurons(matrix.load(), EXACT, device)


def _matches(neurons_x: Tensor, neurons_y: Tensor, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    if same_neurons(neurons_x, neurons_y):
        return np.ones(len(neurons_x)), np.ones(len(neurons_y))
    s_x, s_y = (side.cpu().double().numpy() for side in best_matches(neurons_x, neurons_y, tile))
    return s_x, s_y
