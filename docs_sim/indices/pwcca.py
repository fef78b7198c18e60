"""Projection-weighted CCA: canonical correlations weighted by how much of a matrix each one carries."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.factoring import Factoring, Parts


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    ranks = x["basis"].shape[1], y["basis"].shape[1]
    if len(x["basis"]) - 1 in ranks:
        return 1.0, 1.0
    left, correlations, right = torch.linalg.svd(x["basis"].T.double() @ y["basis"].double(), full_matrices=False)
    correlations = correlations.clamp_(max=1)
    return (
        _weighted(correlations, left.T @ x["coordinates"].double()),
        _weighted(correlations, right @ y["coordinates"].double()),
    )


def _weighted(correlations: Tensor, projections: Tensor) -> float:
    """``projections`` (r, m): of the columns on the canonical variates."""
    weights = projections.abs().sum(1)
    return float((weights @ correlations) / weights.sum())


PWCCA = Factoring(
    parts=("basis", "coordinates"),
    compare=_compare,
    fixed=lambda centred: centred.spans,
    fixed_because="the columns reach all n - 1 directions, so every canonical correlation is 1",
)


def pwcca(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """The mean of the correlations rho_i with weights a_i: a_i = sum_j |h_i . x_j|.

    The h_i are the canonical variates of X; those of Y give the other direction, and the value is the mean of both.
    Where canonical correlations coincide their variates, and so the weights among them, are not unique.

    Args:
        x: (n, m_x), rows are samples; columns are centred here.
        y: (n, m_y).

    Returns:
        In [0, 1]; NaN, with a warning, where a side has one row or only constant columns. ``PWCCA.directions`` gives
        both directions.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Morcos et al. 2018 (arXiv 1806.05759), equation 5.
    """
    return PWCCA.value(x, y)
