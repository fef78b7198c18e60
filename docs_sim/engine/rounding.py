"""Unit neurons in bfloat16, and whether their products are exact enough for the location fitted to the maxima."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from docs_sim.indices.docs import unit_columns

# Section 2 of the design promises 2e-5 of float64; the rest is left for float32 and for what the estimate neglects.
TOLERANCE = 1.6e-5
MOST_RIVALS = 1.5  # the maximum over near copies, each with noise of its own, is too large
_SIGNIFICANT_BITS = {torch.bfloat16: 8}
_DROPPED_BITS = 16  # of float32, in bfloat16
_SHIFTS = 997
_SAMPLE = 128
_KINSHIP = 2.0  # best matches share more of their coordinates than average neurons do


@dataclass(frozen=True)
class RoundedNeurons:
    """Unit neurons in bfloat16.

    Attributes:
        rows: (m, n).
        energy: (n,) mean square of each coordinate before rounding.
        error: (n,) mean square of its rounding error.
    """

    rows: Tensor
    energy: Tensor
    error: Tensor


def rounded_neurons(matrix: Tensor, device: torch.device) -> RoundedNeurons:
    """Round the non-zero columns of ``matrix`` (n, m), at length 1, up or down at random, so that no error is shared.

    Rounding to nearest moves a coordinate that all neurons share by the same error in all of them, and with it every
    product. Random rounding has mean zero for each entry; the randomness is the same in every run.

    Raises:
        ValueError: if an entry is NaN or infinite, or every column is zero.
    """
    n, m = matrix.shape
    rows, filled = torch.empty((m, n), dtype=torch.bfloat16, device=device), 0
    energy, error = (torch.zeros(n, dtype=torch.float32, device=device) for _ in range(2))
    for number, exact in enumerate(unit_columns(matrix, torch.float32, device)):
        shift = 13 * number % _SHIFTS
        noise = _noise(n, device)[: len(exact), shift : shift + n]
        bits = (exact.view(torch.int32) + noise).bitwise_and_(-(1 << _DROPPED_BITS))
        rounded = bits.view(torch.float32)
        rows[filled : filled + len(exact)] = rounded
        filled += len(exact)
        energy += exact.square().sum(0)
        error += (rounded - exact).square_().sum(0)
    if filled == 0:
        raise ValueError("holds only zero columns, which have no direction")
    return RoundedNeurons(rows[:filled], energy / filled, error / filled)


@lru_cache(maxsize=2)
def _noise(n: int, device: torch.device) -> Tensor:
    """Uniform numbers below one bfloat16 step of a float32 mantissa, wide enough to be shifted for each chunk."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1 << _DROPPED_BITS, (1024, n + _SHIFTS), dtype=torch.int32, generator=generator).to(device)


@dataclass(frozen=True)
class ProductNoise:
    """What rounding did to the products of two sets of neurons.

    Attributes:
        variance: of the error of one product, from the rounding of its two neurons.
        concentration: upper estimate of the probability that two neurons have the same best match, whose error
            they then share.
        rivals: mean number of products that noise could make the largest for a neuron, the largest included.
    """

    variance: float
    concentration: float
    rivals: float


EXACT_INPUT = ProductNoise(0.0, 0.0, 1.0)


def typical_noise(n: int, m: int) -> ProductNoise:
    """The noise of products of independent Gaussian matrices (n, m), as measured for n from 1024 to 4096."""
    return ProductNoise(2.25e-5 / n, 1 / m + 6 / _SAMPLE**2, 1.0)


def product_noise(x: RoundedNeurons, y: RoundedNeurons) -> ProductNoise:
    """Measure it: the variance from the rounding errors, the rest on a sample of each side."""
    variance = _KINSHIP * float(x.energy @ y.error + y.energy @ x.error)
    sampled = [_sample_matches(*sides, math.sqrt(variance)) for sides in ((x.rows, y.rows), (y.rows, x.rows))]
    return ProductNoise(variance, *(max(values) for values in zip(*sampled, strict=True)))


def _sample_matches(neurons: Tensor, others: Tensor, deviation: float) -> tuple[float, float]:
    """Concentration and rivals of the best matches of ``neurons`` among ``others``."""
    sample = neurons[:: max(1, len(neurons) // _SAMPLE)][:_SAMPLE]
    if len(sample) < 2:
        return 1.0, float("inf")
    products = torch.mm(sample, others.T).float().abs_()
    largest, matches = products.max(1)
    counts = torch.bincount(matches).double()
    pairs = len(sample) * (len(sample) - 1) / 2
    coincidences = float((counts * (counts - 1)).sum()) / 2
    reach = 2 * deviation + largest / (1 << _SIGNIFICANT_BITS[torch.bfloat16])
    rivals = float((products >= (largest - reach).unsqueeze(1)).sum()) / len(sample)
    return min(1.0, (coincidences + 3) / pairs), rivals  # none in N is compatible with up to 3 / N


def location_error(
    location: float, scale: float, *, samples: int, product_dtype: torch.dtype, noise: ProductNoise
) -> float:
    """Estimated error of (u_X + u_Y) / 2 when neurons and products were rounded.

    A maximum carries noise of variance v: the rounding of the product (uniform over one step, at the upper end of the
    fitted distribution) and that of the two neurons. Noise moves the location by v / (2 scale), to second order, and
    at random by sqrt(v / samples), more where neurons share a match and its error; three standard errors are counted.

    Args:
        location: of the fit, of either side.
        scale: of the fit.
        samples: m_x + m_y.
        product_dtype: in which the products are returned.
        noise: of the neurons.
    """
    if noise.rivals > MOST_RIVALS:
        return math.inf
    step_variance = _step(min(location + 2 * scale, 1.0), product_dtype) ** 2 / 12
    shift = (step_variance + noise.variance) / (2 * scale) if scale > 0 else math.inf
    of_the_mean = (step_variance + noise.variance) / samples + noise.variance * noise.concentration / 4
    return shift + 3 * math.sqrt(of_the_mean)


def _step(value: float, dtype: torch.dtype) -> float:
    """The distance between neighbouring numbers of ``dtype`` around ``value``; float32 and wider count as 0."""
    if dtype not in _SIGNIFICANT_BITS:
        return 0.0
    return float(2.0 ** (math.frexp(value)[1] - _SIGNIFICANT_BITS[dtype]))
