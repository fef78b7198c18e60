"""The maximum-likelihood Gumbel distribution (for maxima) of samples, batched: the last step of DOCS."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import gumbel_r, kstest
from torch import Tensor

_MAX_STEPS = 200
_RELATIVE_STEP = 1e-13


@dataclass(frozen=True)
class GumbelFit:
    """Location and scale of fitted Gumbel distributions, float64, with the batch shape of the samples."""

    location: Tensor
    scale: Tensor


def fit_gumbel(samples: Tensor) -> GumbelFit:
    """Fit ``scipy.stats.gumbel_r`` to each row by maximum likelihood.

    The scale b is the root of b - mean(x) + sum(x exp(-x/b)) / sum(exp(-x/b)), which increases in b, found by
    Newton steps kept inside a bracket; the location is -b log(mean(exp(-x/b))).

    Args:
        samples: (..., m) finite values, any floating type, m >= 1.

    Returns:
        Location and scale, shape (...). A row without spread has its value as location and scale 0.

    Raises:
        ValueError: if there are no samples, or one is not finite.

    Source: Johnson, Kotz, Balakrishnan, Continuous Univariate Distributions 2 (1995), section 22.9.
    """
    if samples.shape[-1] == 0:
        raise ValueError("cannot fit a Gumbel distribution to no samples")
    wide = samples.double()
    if not bool(torch.isfinite(wide).all()):
        raise ValueError("cannot fit a Gumbel distribution to samples with NaN or infinity")
    lowest = wide.amin(-1, keepdim=True)
    above = wide - lowest
    spread = above.amax(-1, keepdim=True)
    constant = (spread == 0).squeeze(-1)
    # In units of the spread the exponents below are the same whatever the scale of the samples.
    above = above / spread.where(spread > 0, 1.0)
    scale = _solve_scale(above)
    location = -scale * torch.log(torch.exp(-above / scale).mean(-1, keepdim=True))
    location = lowest + location * spread
    return GumbelFit(
        location=torch.where(constant, lowest.squeeze(-1), location.squeeze(-1)),
        scale=torch.where(constant, 0.0, (scale * spread).squeeze(-1)),
    )


def gumbel_distance(sample: np.ndarray, location: float, scale: float) -> float:
    """The largest difference between the distribution of ``sample`` (m,) and a Gumbel one (Kolmogorov-Smirnov).

    NaN where there is no spread. ``gumbel_distance_limit`` says how large it may be.
    """
    return float(kstest(sample, gumbel_r(location, scale).cdf).statistic) if scale > 0 else float("nan")


def gumbel_distance_limit(m: int) -> float:
    """Below it is the distance of 95 of 100 samples of ``m`` from the Gumbel distribution that is fitted to them.

    Source: Chandra, Singpurwalla and Stephens 1981 (JASA 76), table 1, both parameters unknown; for m of 20 or more.
    """
    return float(0.874 / np.sqrt(m))


def _solve_scale(above: Tensor) -> Tensor:
    """Root of the scale equation for rows whose minimum is 0; (..., 1)."""
    mean = above.mean(-1, keepdim=True)
    low, high = torch.zeros_like(mean), mean.where(mean > 0, 1.0)  # the equation is >= 0 at b = mean - min
    deviation = above.std(-1, correction=0, keepdim=True) * 6**0.5 / torch.pi
    scale = torch.minimum(deviation.where(deviation > 0, 1.0), high)
    converged = torch.zeros_like(scale, dtype=torch.bool)
    for _ in range(_MAX_STEPS):
        weights = torch.exp(-above / scale)
        weights = weights / weights.sum(-1, keepdim=True)
        weighted_mean = (weights * above).sum(-1, keepdim=True)
        weighted_variance = (weights * (above - weighted_mean) ** 2).sum(-1, keepdim=True)
        excess = scale - mean + weighted_mean
        low, high = torch.where(excess < 0, scale, low), torch.where(excess > 0, scale, high)
        newton = scale - excess / (1 + weighted_variance / scale**2)
        inside = (newton > low) & (newton < high)
        following = torch.where(inside, newton, (low + high) / 2)
        # A row that has converged stays as it is, so that its result does not depend on its company.
        following = torch.where(converged | (excess == 0), scale, following)
        converged |= (following - scale).abs() <= _RELATIVE_STEP * scale
        scale = following
        if bool(converged.all()):
            break
    return scale
