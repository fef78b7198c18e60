"""Unit neurons in bfloat16, and whether their products are exact enough for the location fitted to the maxima."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from docs_sim.engine.match_sample import MATCHED, MatchSample, SampledSide, steps_around
from docs_sim.indices.docs import CHUNK, chance_fit, unit_columns
from docs_sim.indices.gumbel import fit_gumbel

# Section 2 of the design promises 2e-5 of float64; the rest is left for float32 and for what the estimate neglects.
TOLERANCE = 1.8e-5
MOST_RIVALS = 1.5  # the maximum over near copies, each with noise of its own, is too large
_DROPPED_BITS = 16  # of float32, in bfloat16
_SHIFTS = 997
_NEURON_NOISE = 2.25e-5  # variance of a product, times n
_LARGEST_BIAS = 1e-4  # beyond it the products tell too little of the maxima
_LEAST_SCALE = 1e-9
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
    """What rounding did to the best products of two sets of neurons.

    Attributes:
        neurons: variance of the error of one product, from the rounding of its two neurons.
        biases: what the rounding of the products moves the fitted location of each side by, measured on a sample.
        bias_error: standard error of their mean.
        concentration: upper estimate of the probability that two neurons have the same best match, whose error
            they then share.
        rivals: mean number of products that noise could make the largest for a neuron, the largest included.
    """

    neurons: float
    biases: tuple[float, float]
    bias_error: float
    concentration: float
    rivals: float


def typical_noise(n: int, m: int, product_dtype: torch.dtype) -> ProductNoise:
    """The noise to expect of independent Gaussian matrices (n, m), before anything is multiplied.

    The share of the neurons was measured for n from 1024 to 4096; that of the product is one of uniform errors.
    """
    location, scale = chance_fit(n, m)
    variance = float(steps_around(torch.tensor([location + 2 * scale]), product_dtype).square()) / 12
    # The weights of ``_location_bias`` double the variance of a mean.
    return ProductNoise(_NEURON_NOISE / n, (0.0, 0.0), math.sqrt(variance / min(m, MATCHED)), 1 / m, 1.0)


def product_noise(x: RoundedNeurons, y: RoundedNeurons, sample: MatchSample) -> ProductNoise:
    """Measure it: what the neurons lost from their rounding errors, the rest on a sample of each side."""
    variance = _KINSHIP * float(x.energy @ y.error + y.energy @ x.error)
    rivals = [side.rivals(math.sqrt(variance)) for side in sample.sides]
    (bias_x, variance_x), (bias_y, variance_y) = (
        _location_bias(side, count) for side, count in zip(sample.sides, rivals, strict=True)
    )
    return ProductNoise(
        neurons=variance,
        biases=(bias_x, bias_y),
        bias_error=math.sqrt(variance_x + variance_y) / 2,
        concentration=max(side.concentration() for side in sample.sides),
        rivals=max(rivals),
    )


def _location_bias(side: SampledSide, rivals: float) -> tuple[float, float]:
    """By how much rounding moves the location fitted to the maxima of a side, and the variance of that.

    At a given scale the location is that of the mean of exp(-x / scale), so each error counts by its exp(-x / scale).
    Among rivals, rounding may pick another than the largest, whose exact value is smaller: by (rivals - 1) / 12 of a
    step in the mean, as measured on independent matrices, within 15 %.
    """
    rounded, exact = side.values.float(), side.exact()
    both = torch.stack([rounded, exact])
    fit = fit_gumbel((both.cpu() if both.device.type == "mps" else both).double())  # MPS has no float64
    weights = torch.softmax(-exact.double().to(fit.scale.device) / fit.scale[1].clamp(min=_LEAST_SCALE), dim=0)
    errors = (rounded - exact).double().to(weights.device)
    picked = (rivals - 1) * float(steps_around(side.values, side.values.dtype).mean()) / 12
    return float(fit.location[0] - fit.location[1]) - picked, float((weights * errors).square().sum())


def location_error(scale: float, *, samples: int, noise: ProductNoise) -> float:
    """Estimated error of (u_X + u_Y) / 2 when neurons and products were rounded.

    The rounding of the neurons is noise of a variance v in the maxima, which moves the location down, by at most
    v / (2 scale) to second order (about half of that where they follow a Gumbel distribution), and at random, more
    where neurons share a match and its error. What the rounding of the products does was measured and taken off; the
    error of that remains. Three standard errors are counted.

    Args:
        scale: of the fit, the smaller of both sides.
        samples: m_x + m_y.
        noise: of the products.
    """
    if noise.rivals > MOST_RIVALS or scale <= 0 or max(map(abs, noise.biases)) > _LARGEST_BIAS:
        return math.inf
    shift = noise.neurons / (2 * scale)
    of_the_mean = noise.neurons * (1 / samples + noise.concentration / 4)
    return shift + 3 * math.sqrt(of_the_mean + noise.bias_error**2)
