"""Linear regression: the share of the variance of one matrix that the columns of the other explain."""

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import inner
from docs_sim.indices.factoring import Factoring, Parts


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    explained = inner(y["projector"], x["gram"]) / x["variance"], inner(x["projector"], y["gram"]) / y["variance"]
    return float(explained[0].clamp(0, 1)), float(explained[1].clamp(0, 1))


LINEAR_REGRESSION = Factoring(
    parts=("projector", "gram", "variance"),
    compare=_compare,
    fixed=lambda centred: centred.spans,
    fixed_by=2,
    fixed_because="the columns of both reach all n - 1 directions, so each explains the other wholly",
)


def linear_regression(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """R^2 of regressing X on Y, and of Y on X, averaged: |Q_Y' X|_F^2 / |X|_F^2 = <P_Y, X X'> / tr X X'.

    Args:
        x: (n, m_x), rows are samples; columns are centred here.
        y: (n, m_y).

    Returns:
        In [0, 1]; NaN, with a warning, where a side has one row or only constant columns.
        ``LINEAR_REGRESSION.directions`` gives both directions.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), equation 9 and Table 1.

    >>> import torch
    >>> linear_regression(torch.eye(4)[:, :2], torch.eye(4)[:, :1].sum(1, keepdim=True)) < 1
    True
    """
    return LINEAR_REGRESSION.value(x, y)
