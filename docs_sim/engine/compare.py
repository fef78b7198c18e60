"""Pairs of matrices on one device: screened by coarse products where that is exact enough, in float32 elsewhere."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from docs_sim.engine.coarse import CoarseNeurons, same_coarse_neurons
from docs_sim.engine.device import tile_rows
from docs_sim.engine.prepared import EXACT, PreparedMatrices
from docs_sim.engine.screening import Screener
from docs_sim.indices.docs import QUANTILES, Matches, Tile, best_matches, same_neurons
from docs_sim.indices.gumbel import fit_gumbel

Pair = tuple[int, int]
# Every number shall be within 2e-5 of float64; the rest is left for float32.
_TOLERANCE = 1.8e-5
_ERRORS = 3  # standard errors that have to fit into it


@dataclass(frozen=True)
class Side:
    """The matches of one side of a pair: their Gumbel fit, mean and ``QUANTILES``."""

    location: float
    scale: float
    mean: float
    quantiles: list[float]


_PARALLEL = Side(1.0, 0.0, 1.0, [1.0] * len(QUANTILES))  # every neuron has its like on the other side


@dataclass(frozen=True)
class Comparison:
    """Both sides of one pair, how many neurons each had, and whether it was multiplied in float32."""

    pair: Pair
    sides: tuple[Side, Side]
    neurons: tuple[int, int]
    exact: bool


class PairComparer:
    """Compares pairs of prepared matrices on their device; keeps its product buffers.

    Args:
        prepared: the matrices.
        matches: ``best_matches`` or ``mean_matches``.
        dtype: int8 to screen best matches, with float32 for pairs for which that is too coarse, or float32.
        device: where the prepared matrices are.
    """

    def __init__(self, prepared: PreparedMatrices, matches: Matches, dtype: torch.dtype, device: torch.device) -> None:
        self.prepared = prepared
        self._matches = matches
        self._dtype = dtype
        rows = min(tile_rows(device), prepared.most_neurons)
        self._tile = Tile(torch.empty(rows**2, dtype=EXACT, device=device), rows)
        self._device = device

    @cached_property
    def _screener(self) -> Screener:
        return Screener(tile_rows(self._device), self.prepared.most_neurons, self._device)

    def compare(self, pairs: Sequence[Pair]) -> Iterator[Comparison]:
        """Compare ``pairs``, one after the other."""
        for step, pair in enumerate(pairs):
            yield self._compared(pair, step)

    def _compared(self, pair: Pair, step: int) -> Comparison:
        x, y = self.prepared.pair(pair, self._dtype, step)
        if isinstance(x, CoarseNeurons) and isinstance(y, CoarseNeurons):
            sides = self._screened(x, y)
            if sides is not None:
                return Comparison(pair, sides, (x.count, y.count), exact=False)
            x, y = self.prepared.pair(pair, EXACT, step)
        if self._matches is best_matches and same_neurons(x.rows, y.rows):
            sides = _PARALLEL, _PARALLEL
        else:
            of_x, of_y = self._matches(x.rows, y.rows, self._tile)
            sides = _fit(of_x), _fit(of_y)
        return Comparison(pair, sides, (x.count, y.count), exact=True)

    def _screened(self, x: CoarseNeurons, y: CoarseNeurons) -> tuple[Side, Side] | None:
        """Both sides by screening; None if that is too coarse."""
        if same_coarse_neurons(x, y):
            return _PARALLEL, _PARALLEL
        # The error of a neuron that is the best match of many does not average out: it counts in full.
        if not _ERRORS * math.hypot(x.fine_error, y.fine_error) <= _TOLERANCE:
            return None
        matches = self._screener.best_matches(x, y)
        return None if matches is None else (_fit(matches[0]), _fit(matches[1]))


def _fit(matches: Tensor) -> Side:
    if matches.device.type == "mps":
        matches = matches.cpu()  # MPS has no float64
    matches = matches.double()
    fit = fit_gumbel(matches)
    levels = torch.tensor(QUANTILES, dtype=torch.float64, device=matches.device)
    quantiles: list[float] = torch.quantile(matches, levels).tolist()
    return Side(float(fit.location), float(fit.scale), float(matches.mean()), quantiles)
