"""Canonical correlation analysis: mean, and mean squared, canonical correlation."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import inner
from docs_sim.indices.factoring import Factoring, Parts, both_ways

_FIXED = "the columns reach all n - 1 directions, so every canonical correlation is 1"


def mean_correlation(basis_x: Tensor, basis_y: Tensor) -> float:
    """Mean singular value of U_X' U_Y, over the smaller rank; at most 1.

    Where one side spans all n - 1 directions of centred columns, that is 1 without any computation.
    """
    ranks = basis_x.shape[1], basis_y.shape[1]
    if len(basis_x) - 1 in ranks:
        return 1.0
    correlations = torch.linalg.svdvals(basis_x.T.double() @ basis_y.double())
    return float(correlations.clamp_(max=1).sum()) / min(ranks)


def mean_squared_correlation(projector_x: Tensor, projector_y: Tensor) -> float:
    """<P_X, P_Y> over the smaller rank; at most 1. A projector's trace is its rank."""
    ranks = [float(projector.diagonal().sum(dtype=torch.float64).round()) for projector in (projector_x, projector_y)]
    if len(projector_x) - 1 in ranks:
        return 1.0
    return float((inner(projector_x, projector_y) / min(ranks)).clamp(0, 1))


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways(mean_correlation(x["basis"], y["basis"]))


def _compare_r2(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways(mean_squared_correlation(x["projector"], y["projector"]))


CCA = Factoring(("basis",), _compare, fixed=lambda centred: centred.spans, fixed_because=_FIXED)
CCA_R2 = Factoring(("projector",), _compare_r2, fixed=lambda centred: centred.spans, fixed_because=_FIXED)


def cca(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """Mean canonical correlation, over the smaller of both ranks: |U_X' U_Y|_* / min(r_X, r_Y).

    Args:
        x: (n, m_x), rows are samples; columns are centred here. U is the basis of thin singular vectors, those with
            singular values under sigma_1 max(n, m) eps cut.
        y: (n, m_y).

    Returns:
        In [0, 1]; 1 where the columns of one side reach all n - 1 directions (m >= n: most weights), whatever the
        other is. NaN, with a warning, where a side has one row or only constant columns.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3 and Table 1; by Björck and Golub 1973.
    """
    return CCA.value(x, y)


def cca_r2(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """Mean squared canonical correlation, over the smaller rank: |U_X' U_Y|_F^2 / min(r_X, r_Y). Else as ``cca``."""
    return CCA_R2.value(x, y)
