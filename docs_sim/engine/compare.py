"""Pairs of matrices on one device: screened by coarse products where that is exact enough, in float32 elsewhere."""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
_PAIRS_A_BATCH = 16
_LEAST_SCALE = 1e-9
_PRODUCTS = {torch.int8: torch.int32}


@dataclass(frozen=True)
class Side:
    """The matches of one side of a pair: their Gumbel fit, mean and ``QUANTILES``."""

    location: float
    scale: float
    mean: float
    quantiles: list[float]


@dataclass(frozen=True)
class Comparison:
    """Both sides of one pair, how many neurons each had, and whether it was multiplied in float32."""

    pair: Pair
    sides: tuple[Side, Side]
    neurons: tuple[int, int]
    exact: bool


@dataclass(frozen=True)
class _Product:
    """What is kept of a product until its batch is fitted: s_X and s_Y, and what screening tells of them."""

    pair: Pair
    samples: tuple[Tensor, Tensor]
    screened: tuple[Screened, Screened] | None


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
        """Compare ``pairs`` in batches, so that fits are few; ``progress`` gets 1 after each pair.

        Once ``stop`` is set the work ends with what is finished; an error here sets it for the others.
        """
        finished: list[Comparison] = []
        try:
            for start in range(0, len(pairs), _PAIRS_A_BATCH):
                products = []
                for step, pair in enumerate(pairs[start : start + _PAIRS_A_BATCH], start):
                    if stop.is_set():
                        return finished
                    products.append(self._multiply(pair, self._dtype, step))
                    progress(1)
                trusted, doubtful = _fit(products)
                finished += trusted
                finished += _fit([self._multiply(pair, EXACT, start) for pair in doubtful])[0]
        except BaseException:
            stop.set()
            raise
        return finished

    def _multiply(self, pair: Pair, dtype: torch.dtype, step: int) -> _Product:
        x, y = self.prepared.pair(pair, dtype, step)
        if isinstance(x, CoarseNeurons) and isinstance(y, CoarseNeurons):
            if same_coarse_neurons(x, y):
                return _ones(pair, x.fine, y.fine)
            if max(x.clipped, y.clipped) > MOST_CLIPPED:
                return self._multiply(pair, EXACT, step)
            sides = self._screener.screen(x, y)
            return _Product(pair, (sides[0].cosines, sides[1].cosines), sides)
        if self._matches is best_matches and same_neurons(x.rows, y.rows):
            return _ones(pair, x.rows, y.rows)
        return _Product(pair, self._matches(x.rows, y.rows, self._tile), None)


def _ones(pair: Pair, x: Tensor, y: Tensor) -> _Product:
    ones = partial(torch.ones, dtype=EXACT, device=x.device)
    return _Product(pair, (ones(len(x)), ones(len(y))), None)


def _product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """In which dtype a product of ``dtype`` is returned: CUDA hands out the float32 in which it accumulates."""
    return EXACT if device.type == "cuda" else _PRODUCTS.get(dtype, dtype)


def _fit(products: Sequence[_Product]) -> tuple[list[Comparison], list[Pair]]:
    """The comparisons that are exact enough, and the pairs for which screening was too coarse."""
    sides = _fit_all([sample for product in products for sample in product.samples])
    comparisons, doubtful = [], []
    for product, fitted in zip(products, zip(sides[::2], sides[1::2], strict=True), strict=True):
        both, error = (fitted, 0.0) if product.screened is None else _without_shortfalls(fitted, product.screened)
        if error > TOLERANCE:
            doubtful.append(product.pair)
            continue
        neurons = len(product.samples[0]), len(product.samples[1])
        comparisons.append(Comparison(product.pair, both, neurons, product.screened is None))
    return comparisons, doubtful


def _without_shortfalls(
    sides: tuple[Side, Side], screened: tuple[Screened, Screened]
) -> tuple[tuple[Side, Side], float]:
    """The fits as they would be if every best match had been found, and three standard errors of their mean."""
    (x, error_x), (y, error_y) = (_without_shortfall(*side) for side in zip(sides, screened, strict=True))
    return (x, y), 3 * math.hypot(error_x, error_y) / 2


def _without_shortfall(side: Side, screened: Screened) -> tuple[Side, float]:
    """The side as it would be if every best match had been found, and the standard error of its location.

    At a given scale the location is that of the mean of exp(-x / scale), so each shortfall counts by its
    exp(-x / scale). The fine cosines are taken to share their error: all may have the same match.
    """
    if screened.shortfalls is None or side.scale <= 0:
        return side, math.inf
    found = screened.cosines[screened.sample]
    short, complete = _fit_equal([found, found + screened.shortfalls])
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


def _fit_all(samples: Sequence[Tensor]) -> list[Side]:
    """Fit samples, those of equal length at once."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for position, sample in enumerate(samples):
        by_length[len(sample)].append(position)
    sides: dict[int, Side] = {}
    for positions in by_length.values():
        sides |= zip(positions, _fit_equal([samples[position] for position in positions]), strict=True)
    return [sides[position] for position in range(len(samples))]


def _fit_equal(samples: list[Tensor]) -> list[Side]:
    stacked = torch.stack(samples)
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
