"""Unit neurons in bfloat16, and whether their products are exact enough for the location fitted to the maxima."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from docs_sim.engine.match_sample import MATCHED, MatchSample
from docs_sim.indices.docs import CHUNK, chance_fit, unit_columns

# Section 2 of the design promises 2e-5 of float64; the rest is left for float32 and for what the estimate neglects.
TOLERANCE = 1.8e-5
MOST_RIVALS = 1.5  # the maximum over near copies, each with noise of its own, is too large
_SIGNIFICANT_BITS = {torch.bfloat16: 8}
_DROPPED_BITS = 16  # of float32, in bfloat16
_SHIFTS = 997
_NEURON_NOISE = 2.25e-5  # variance of a product, times n
_THINNING = 4  # of the neurons whose rounding errors are measured
_KINSHIP = 2.0  # best matches share more of their coordinates than average neurons do


@dataclass(frozen=True)
class RoundedNeurons:
    """Unit neurons in bfloat16.

    Attributes:
        rows: (m, n).
        energy: (n,) mean square of each coordinate before rounding, over every fourth neuron.
        error: (n,) mean square of its rounding error, over the same.
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
    measured = 0
    energy, error = (torch.zeros(n, dtype=torch.float32, device=device) for _ in range(2))
    random = _noise(n, device)
    for number, exact in enumerate(unit_columns(matrix, torch.float32, device)):
        shift = 13 * number % _SHIFTS
        noise = random[: len(exact), shift : shift + n]
        bits = (exact.view(torch.int32) + noise).bitwise_and_(-(1 << _DROPPED_BITS))
        rounded = bits.view(torch.float32)
        rows[filled : filled + len(exact)] = rounded
        filled += len(exact)
        thinned = exact[::_THINNING]
        energy += thinned.square().sum(0)
        error += (rounded[::_THINNING] - thinned).square_().sum(0)
        measured += len(thinned)
    if filled == 0:
        raise ValueError("holds only zero columns, which have no direction")
    return RoundedNeurons(rows[:filled], energy / measured, error / measured)


@lru_cache(maxsize=8)  # one for each device
def _noise(n: int, device: torch.device) -> Tensor:
    """Uniform numbers below one bfloat16 step of a float32 mantissa, wide enough to be shifted for each chunk."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1 << _DROPPED_BITS, (CHUNK, n + _SHIFTS), dtype=torch.int32, generator=generator).to(device)


@dataclass(frozen=True)
class ProductNoise:
    """What rounding did to the products of two sets of neurons.

    Attributes:
        neurons: variance of the error of one product, from the rounding of its two neurons.
        product: the same of a best product, from the rounding of the product itself, if uniform over one step.
        bias: upper estimate of the mean error from the rounding of the product, two standard errors included.
        concentration: upper estimate of the probability that two neurons have the same best match, whose error
            they then share.
        rivals: mean number of products that noise could make the largest for a neuron, the largest included.
    """

    neurons: float
    product: float
    bias: float
    concentration: float
    rivals: float


def typical_noise(n: int, m: int, product_dtype: torch.dtype) -> ProductNoise:
    """The noise to expect of independent Gaussian matrices (n, m), before anything is multiplied.

    The share of the neurons was measured for n from 1024 to 4096; that of the product is one of uniform errors.
    """
    location, scale = chance_fit(n, m)
    steps = _steps(torch.tensor([location + 2 * scale]), product_dtype)
    variance = _uniform_variance(steps)
    return ProductNoise(_NEURON_NOISE / n, variance, 3 * math.sqrt(variance / (2 * min(m, MATCHED))), 1 / m, 1.0)


def product_noise(x: RoundedNeurons, y: RoundedNeurons, sample: MatchSample) -> ProductNoise:
    """Measure it: what the neurons lost from their rounding errors, the rest on a sample of each side."""
    variance = _KINSHIP * float(x.energy @ y.error + y.energy @ x.error)
    steps = [_steps(side.values, side.values.dtype) for side in sample.sides]
    errors = torch.cat([side.errors() for side in sample.sides])
    unresolved = 2 * float(errors.std(correction=0)) / math.sqrt(len(errors))
    return ProductNoise(
        neurons=variance,
        product=_uniform_variance(torch.cat(steps)),
        bias=abs(float(errors.mean())) + unresolved,
        concentration=max(side.concentration() for side in sample.sides),
        rivals=max(side.rivals(math.sqrt(variance), step) for side, step in zip(sample.sides, steps, strict=True)),
    )


def location_error(scale: float, *, samples: int, noise: ProductNoise) -> float:
    """Estimated error of (u_X + u_Y) / 2 when neurons and products were rounded.

    Noise of variance v in the maxima moves the location by at most v / (2 scale), to second order (about half of that
    where they follow a Gumbel distribution). The rounding of the neurons moves it at random, more where neurons share
    a match and its error; three standard errors are counted. The bias of the products moves it as a whole.

    Args:
        scale: of the fit, the smaller of both sides.
        samples: m_x + m_y.
        noise: of the products.
    """
    if noise.rivals > MOST_RIVALS:
        return math.inf
    shift = (noise.product + noise.neurons) / (2 * scale) if scale > 0 else math.inf
    of_the_mean = noise.neurons * (1 / samples + noise.concentration / 4)
    return noise.bias + shift + 3 * math.sqrt(of_the_mean)


def _steps(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of ``dtype`` around ``values``; float32 and wider count as 0."""
    if dtype not in _SIGNIFICANT_BITS:
        return torch.zeros_like(values, dtype=torch.float32)
    return torch.exp2((torch.frexp(values.float()).exponent - _SIGNIFICANT_BITS[dtype]).float())


def _uniform_variance(steps: Tensor) -> float:
    """Mean square of errors that are uniform over one step."""
    return float(steps.square().mean()) / 12
