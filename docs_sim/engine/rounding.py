"""Whether a bfloat16 product is exact enough for the Gumbel location that is fitted to its maxima."""

import math

import torch

# Section 2 of the design promises 2e-5 of float64; the rest is left for float32 and for what the estimate neglects.
TOLERANCE = 1.5e-5
_SIGNIFICANT_BITS = {torch.bfloat16: 8}


def location_error(
    location: float,
    scale: float,
    *,
    samples: int,
    product_dtype: torch.dtype,
    norm_noise: float = 0.0,
    norm_bias: float = 0.0,
) -> float:
    """Estimated error of (u_X + u_Y) / 2 when unit rows and products were rounded.

    The maxima carry independent noise of variance v: the rounding of the product (a uniform error over one step, at
    the upper end of the fitted distribution) and of the rows' norms. Noise moves the location by -v / (2 scale), to
    second order, and at random by sqrt(v / samples), of which three are counted. Norms that are wrong on average
    (columns that share a dominant coordinate) move it in proportion.

    Args:
        location: of the fit, of either side.
        scale: of the fit; infinity asks for the least error that any fit of these samples could have.
        samples: m_x + m_y.
        product_dtype: in which the products are returned.
        norm_noise: root mean square of |row| - 1 of both sides together.
        norm_bias: mean of |row| - 1, absolute, both sides added.
    """
    upper = location if math.isinf(scale) else min(location + 2 * scale, 1.0)
    variance = _step(upper, product_dtype) ** 2 / 12 + (location * norm_noise) ** 2
    shift = variance / (2 * scale) if scale > 0 else math.inf
    return shift + 3 * math.sqrt(variance / samples) + location * norm_bias


def _step(value: float, dtype: torch.dtype) -> float:
    """The distance between neighbouring numbers of ``dtype`` around ``value``; float32 and wider count as 0."""
    if dtype not in _SIGNIFICANT_BITS:
        return 0.0
    return 2.0 ** (math.frexp(value)[1] - _SIGNIFICANT_BITS[dtype])
