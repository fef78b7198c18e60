"""Pairs of matrices on one device: rounded products where they are exact enough, float32 elsewhere."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docs_sim.engine.device import tile_rows
from docs_sim.engine.match_sample import MatchSample
from docs_sim.engine.prepared import PreparedMatrices
from docs_sim.engine.rounding import TOLERANCE, ProductNoise, RoundedNeurons, location_error, product_noise
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
    """Both sides of one pair, how many neurons each had, and whether it was multiplied in float32."""

    pair: Pair
    sides: tuple[Side, Side]
    neurons: tuple[int, int]
    exact: bool


@dataclass(frozen=True)
class _Product:
    """What is kept of a product until its batch is fitted: s_X and s_Y, and the noise if it was rounded."""

    pair: Pair
    samples: tuple[Tensor, Tensor]
    noise: ProductNoise | None


class PairComparer:
    """Compares pairs of prepared matrices on their device; keeps its product buffers.

    Args:
        prepared: the matrices.
        matches: ``best_matches`` or ``mean_matches``.
        dtype: of the products to try first; pairs for which it is too coarse are multiplied once more in float32.
        device: where the prepared matrices are.
    """

    def __init__(self, prepared: PreparedMatrices, matches: Matches, dtype: torch.dtype, device: torch.device) -> None:
        self.prepared = prepared
        self._matches = matches
        self._dtype = dtype
        self._device = device
        self._tiles: dict[torch.dtype, Tile] = {}

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
                compared = {comparison.pair: comparison for comparison in _fit(products)}
                coarse = [product.pair for product in products if _too_coarse(product, compared[product.pair])]
                exact = _fit([self._multiply(pair, EXACT, start) for pair in coarse])
                compared |= {comparison.pair: comparison for comparison in exact}
                finished += compared.values()
        except BaseException:
            stop.set()
            raise
        return finished

    def _multiply(self, pair: Pair, dtype: torch.dtype, step: int) -> _Product:
        x, y = self.prepared.pair(pair, dtype, step)
        if isinstance(x, RoundedNeurons) and isinstance(y, RoundedNeurons):
            tile = self._tile(dtype)
            sample = MatchSample(x.rows, y.rows, tile.buffer.dtype)
            matched = self._matches(x.rows, y.rows, sample.watched(tile))
            return _Product(pair, matched, product_noise(x, y, sample))
        if self._matches is best_matches and same_neurons(x.rows, y.rows):
            return _Product(pair, (x.rows.new_ones(len(x.rows)), y.rows.new_ones(len(y.rows))), None)
        return _Product(pair, self._matches(x.rows, y.rows, self._tile(dtype)), None)

    def _tile(self, dtype: torch.dtype) -> Tile:
        product = product_result_dtype(dtype, self._device)
        if product not in self._tiles:
            rows = min(tile_rows(self._device), self.prepared.most_neurons)
            self._tiles[product] = Tile(torch.empty(rows**2, dtype=product, device=self._device), rows)
        return self._tiles[product]


def product_result_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """In which dtype a product of ``dtype`` is returned: CUDA hands out the float32 in which it accumulates."""
    return torch.float32 if device.type == "cuda" else dtype


def _too_coarse(product: _Product, comparison: Comparison) -> bool:
    if product.noise is None:
        return False
    count, scale = sum(comparison.neurons), min(side.scale for side in comparison.sides)
    return location_error(scale, samples=count, noise=product.noise) > TOLERANCE


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
        Comparison(
            product.pair,
            _without_bias((sides[2 * number], sides[2 * number + 1]), product.noise),
            (len(product.samples[0]), len(product.samples[1])),
            product.noise is None,
        )
        for number, product in enumerate(products)
    ]


def _without_bias(sides: tuple[Side, Side], noise: ProductNoise | None) -> tuple[Side, Side]:
    """The locations as they would be without the rounding of the products."""
    if noise is None:
        return sides
    x, y = (replace(side, location=side.location - bias) for side, bias in zip(sides, noise.biases, strict=True))
    return x, y


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
