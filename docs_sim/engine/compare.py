"""DOCS of pairs of matrices on one device: rounded products where they are exact enough, float32 elsewhere."""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docs_sim.engine.prepared import PreparedMatrices
from docs_sim.engine.rounding import TOLERANCE, location_error
from docs_sim.indices.docs import QUANTILES, Matches, Tile, best_matches, same_neurons
from docs_sim.indices.gumbel import fit_gumbel

Pair = tuple[int, int]
EXACT = torch.float32
_PAIRS_A_BATCH = 16


@dataclass(frozen=True)
class Side:
    """The matches of one side of a pair: their Gumbel fit, mean and ``QUANTILES``."""

    location: float
    scale: float
    mean: float
    quantiles: list[float]


@dataclass(frozen=True)
class Comparison:
    """Both sides of one pair, and whether it was multiplied in float32."""

    pair: Pair
    sides: tuple[Side, Side]
    zero_columns: tuple[int, int]
    exact: bool


@dataclass(frozen=True)
class _Product:
    """What is kept of a product until its batch is fitted: s_X and s_Y, and how the unit rows were rounded."""

    pair: Pair
    samples: tuple[Tensor, Tensor]
    zero_columns: tuple[int, int]
    exact: bool
    norm_noise: float
    norm_bias: float


class PairComparer:
    """Compares pairs of prepared matrices on their device; keeps its product buffers.

    Args:
        prepared: the matrices.
        matches: ``best_matches`` or ``mean_matches``.
        dtype: of the products to try first; pairs for which it is too coarse are multiplied once more in float32.
    """

    def __init__(self, prepared: PreparedMatrices, matches: Matches, dtype: torch.dtype) -> None:
        self.prepared = prepared
        self._matches = matches
        self._dtype = dtype
        self._tiles: dict[torch.dtype, Tile] = {}

    def compare(
        self, pairs: Sequence[Pair], progress: Callable[[int], None], stop: threading.Event
    ) -> list[Comparison]:
        """Compare ``pairs`` in batches, so that fits are few; ``progress`` gets 1 after each pair.

        Once ``stop`` is set the work ends with what is finished.
        """
        finished: list[Comparison] = []
        for start in range(0, len(pairs), _PAIRS_A_BATCH):
            if stop.is_set():
                break
            batch = pairs[start : start + _PAIRS_A_BATCH]
            products = []
            for step, pair in enumerate(batch, start):
                products.append(self._multiply(pair, self._dtype, step))
                progress(1)
            compared = {comparison.pair: comparison for comparison in _fit(products)}
            coarse = [product.pair for product in products if _too_coarse(product, compared[product.pair])]
            compared |= {again.pair: again for again in _fit([self._multiply(pair, EXACT, start) for pair in coarse])}
            if len(coarse) == len(batch):
                self._dtype = EXACT  # a model of which all pairs need it shall not pay twice
            finished += compared.values()
        return finished

    def _multiply(self, pair: Pair, dtype: torch.dtype, step: int) -> _Product:
        x, y = self.prepared.pair(pair, dtype, step)
        exact = dtype == EXACT
        if exact and self._matches is best_matches and same_neurons(x.rows, y.rows):
            samples = torch.ones(len(x.rows)), torch.ones(len(y.rows))
        else:
            if dtype not in self._tiles:
                self._tiles[dtype] = Tile.like(x.rows)
            samples = self._matches(x.rows, y.rows, self._tiles[dtype])
        noise = math.hypot(x.norm_noise, y.norm_noise)
        bias = abs(x.norm_bias) + abs(y.norm_bias)
        return _Product(pair, samples, (x.zero_columns, y.zero_columns), exact, noise, bias)


def _too_coarse(product: _Product, comparison: Comparison) -> bool:
    if product.exact:
        return False
    count = sum(len(sample) for sample in product.samples)
    dtype = product.samples[0].dtype
    errors = (
        location_error(
            side.location,
            side.scale,
            samples=count,
            product_dtype=dtype,
            norm_noise=product.norm_noise,
            norm_bias=product.norm_bias,
        )
        for side in comparison.sides
    )
    return max(errors) > TOLERANCE


def _fit(products: Sequence[_Product]) -> list[Comparison]:
    """Fit all samples of a batch, those of equal length at once."""
    samples = [sample for product in products for sample in product.samples]
    by_length: dict[int, list[int]] = defaultdict(list)
    for position, sample in enumerate(samples):
        by_length[len(sample)].append(position)
    sides: dict[int, Side] = {}
    for positions in by_length.values():
        sides |= zip(positions, _fit_equal([samples[position] for position in positions]), strict=True)
    return [
        Comparison(product.pair, (sides[2 * number], sides[2 * number + 1]), product.zero_columns, product.exact)
        for number, product in enumerate(products)
    ]


def _fit_equal(samples: list[Tensor]) -> list[Side]:
    stacked = torch.stack(samples)
    if stacked.device.type == "mps":
        stacked = stacked.cpu()  # MPS has no float64
    stacked = stacked.double()
    fit = fit_gumbel(stacked)
    levels = torch.tensor(QUANTILES, dtype=torch.float64, device=stacked.device)
    quantiles = torch.quantile(stacked, levels, dim=1).T
    return [
        Side(float(fit.location[row]), float(fit.scale[row]), float(stacked[row].mean()), quantiles[row].tolist())
        for row in range(len(samples))
    ]
