"""Centred kernel alignment with linear kernels."""

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import inner
from docs_sim.indices.factoring import Factoring, Parts, both_ways
from docs_sim.indices.linear_hsic import GRAM_FIXED


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways((inner(x["gram"], y["gram"]) / (x["gram_norm"] * y["gram_norm"])).clamp(0, 1))


LINEAR_CKA = Factoring(
    ("gram", "gram_norm"), _compare, fixed=lambda centred: centred.gram_is_centring, fixed_because=GRAM_FIXED
)


def linear_cka(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """|Y' X|_F^2 / (|X' X|_F |Y' Y|_F) = <X X', Y Y'> / (|X X'|_F |Y Y'|_F) of the centred matrices.

    Biased: independent Gaussian matrices (n, m) give about m / (n + m), so it is high wherever m exceeds n.

    Args:
        x: (n, m_x), rows are samples; columns are centred here.
        y: (n, m_y).

    Returns:
        In [0, 1]; NaN, with a warning, where a side has one row or only constant columns.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), equations 4 and 5.

    >>> import torch
    >>> round(linear_cka(torch.eye(4), torch.eye(4) * 3), 6)
    1.0
    """
    return LINEAR_CKA.value(x, y)
