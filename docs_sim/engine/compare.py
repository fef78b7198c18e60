"""Pairs of matrices on one device: screened by coarse products where that is exact enough, in float32 elsewhere."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docs_sim.engine.coarse import MOST_CLIPPED, CoarseNeurons, same_coarse_neurons
from docs_sim.engine.device import tile_rows
from docs_sim.engine.prepared import EXACT, PreparedMatrices
from docs_sim.engine.screening import Screened, Screener
from docs_sim.indices.docs import QUANTILES, Matches, Tile, best_matches, same_neurons
from docs_sim.indices.gumbel import fit_gumbel

Pair = tuple[int, int]
# Section 2 of the design promises 2e-5 of float64; the rest is left for float32 and for what the estimate neglects.
TOLERANCE = 1.8e-5
_LEAST_SCALE = 1e-9
_PRODUCTS = {torch.int8: torch.int32}


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
        dtype: of the neurons to try first; pairs for which it is too coarse are multiplied once more in float32.
        device: where the prepared matrices are.
    """

    def __init__(self, prepared: PreparedMatrices, matches: Matches, dtype: torch.dtype, device: torch.device) -> None:
        self.prepared = prepared
        self._matches = matches
        self._dtype = dtype
        rows = min(tile_rows(device), prepared.most_neurons)
        self._tile = Tile(torch.empty(rows**2, dtype=EXACT, device=device), rows)
        self._screener = Screener(rows, _product_dtype(dtype, device), device)

    def compare(
        self, pairs: Sequence[Pair], progress: Callable[[int], None], stop: threading.Event
    ) -> list[Comparison]:
        """Compare ``pairs``; ``progress`` gets 1 after each.

        Once ``stop`` is set the work ends with what is finished; an error here sets it for the others.
        """
        finished: list[Comparison] = []
        try:
            for step, pair in enumerate(pairs):
                if stop.is_set():
                    break
                finished.append(self._compared(pair, step))
                progress(1)
        except BaseException:
            stop.set()
            raise
        return finished

    def _compared(self, pair: Pair, step: int) -> Comparison:
        x, y = self.prepared.pair(pair, self._dtype, step)
        if isinstance(x, CoarseNeurons) and isinstance(y, CoarseNeurons):
            sides = self._screened(x, y)
            if sides is not None:
                return Comparison(pair, sides, (len(x.rows), len(y.rows)), exact=False)
            x, y = self.prepared.pair(pair, EXACT, step)
        if self._matches is best_matches and same_neurons(x.rows, y.rows):
            sides = _PARALLEL, _PARALLEL
        else:
            of_x, of_y = self._matches(x.rows, y.rows, self._tile)
            sides = _fit([of_x])[0], _fit([of_y])[0]
        return Comparison(pair, sides, (len(x.rows), len(y.rows)), exact=True)

    def _screened(self, x: CoarseNeurons, y: CoarseNeurons) -> tuple[Side, Side] | None:
        """Both sides by screening; None if that is too coarse."""
        if same_coarse_neurons(x, y):
            return _PARALLEL, _PARALLEL
        if max(x.clipped, y.clipped) > MOST_CLIPPED:
            return None
        (of_x, error_x), (of_y, error_y) = map(_without_shortfalls, self._screener.screen(x, y))
        return None if 3 * math.hypot(error_x, error_y) / 2 > TOLERANCE else (of_x, of_y)


def _product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """In which dtype a product of ``dtype`` is returned: CUDA hands out the float32 in which it accumulates."""
    return EXACT if device.type == "cuda" else _PRODUCTS.get(dtype, dtype)


def _without_shortfalls(screened: Screened) -> tuple[Side, float]:
    """A side as it would be if every best match had been found, and the standard error of its location.

    At a given scale the location is that of the mean of exp(-x / scale), so each shortfall counts by its
    exp(-x / scale). The fine cosines are taken to share their error: all may have the same match.
    """
    found = screened.cosines[screened.sample]
    if screened.shortfalls is not None and len(found) == len(screened.cosines):
        return _fit([found + screened.shortfalls])[0], screened.fine_error
    (side,) = _fit([screened.cosines])
    if screened.shortfalls is None or side.scale <= 0:
        return side, math.inf
    short, complete = _fit([found, found + screened.shortfalls])
    weights = torch.softmax(-found / max(complete.scale, _LEAST_SCALE), dim=0)
    unseen = 1 - len(found) / len(screened.cosines)
    variance = float((weights * screened.shortfalls).square().sum()) * unseen + screened.fine_error**2
    return _moved(side, short, complete), math.sqrt(variance)


def _moved(side: Side, before: Side, after: Side) -> Side:
    """``side``, changed as ``before`` changes to become ``after``."""
    location, scale, mean = (
        getattr(side, name) + getattr(after, name) - getattr(before, name) for name in ("location", "scale", "mean")
    )
    moves = zip(side.quantiles, before.quantiles, after.quantiles, strict=True)
    return Side(location, scale, mean, [quantile + new - old for quantile, old, new in moves])


def _fit(samples: Sequence[Tensor]) -> list[Side]:
    """Fit samples of equal length."""
    stacked = torch.stack(list(samples))
    if stacked.device.type == "mps":
        stacked = stacked.cpu()  # MPS has no float64
    stacked = stacked.double()
    fit = fit_gumbel(stacked)
    levels = torch.tensor(QUANTILES, dtype=torch.float64, device=stacked.device)
    locations: list[float] = fit.location.tolist()
    scales: list[float] = fit.scale.tolist()
    means: list[float] = stacked.mean(1).tolist()
    quantiles: list[list[float]] = torch.quantile(stacked, levels, dim=1).T.tolist()
    return [Side(*row) for row in zip(locations, scales, means, quantiles, strict=True)]
