"""Orthogonal Procrustes similarity: how well a rotation of its columns lays one matrix on the other."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.factoring import Factoring, Parts, both_ways
from docs_sim.indices.linear_hsic import GRAM_FIXED


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    left, right = x["scaled_basis"].double(), y["scaled_basis"].double()
    norms = torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)
    return both_ways((torch.linalg.svdvals(left.T @ right).sum() / norms).clamp(0, 1))


PROCRUSTES = Factoring(
    ("scaled_basis",), _compare, fixed=lambda centred: centred.gram_is_centring, fixed_because=GRAM_FIXED
)


def procrustes(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """|X' Y|_* / (|X|_F |Y|_F) of the centred matrices: 1 minus half the squared distance after the best rotation.

    Args:
        x: (n, m_x), rows are samples; columns are centred here.
        y: (n, m_y).

    Returns:
        In [0, 1]; NaN, with a warning, where a side has one row or only constant columns.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Schönemann 1966; Ding et al. 2021 (arXiv 2108.01661), section 3.
    """
    return PROCRUSTES.value(x, y)
