"""Centred kernel alignment with Gaussian kernels of the distances between rows."""

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import Centred, inner
from docs_sim.indices.factoring import Factoring, Parts, both_ways


def _lacking(centred: Centred) -> str | None:
    return None if centred.median_distance > 0 else "has more than half of its pairs of rows equal: no bandwidth"


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways((inner(x["rbf_gram"], y["rbf_gram"]) / (x["rbf_norm"] * y["rbf_norm"])).clamp(0, 1))


RBF_CKA = Factoring(
    parts=("rbf_gram", "rbf_norm"),
    compare=_compare,
    lacking=_lacking,
    fixed=lambda centred: centred.rbf_gram_is_centring,
    fixed_because="all its rows lie equally far from each other, so the kernel says nothing of directions",
)


def rbf_cka(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """CKA with k(a, b) = exp(-|a - b|^2 / (2 s^2)), s = 0.8 times the median distance between two different rows.

    Args:
        x: (n, m_x), rows are samples.
        y: (n, m_y).

    Returns:
        In [0, 1]; NaN, with a warning, where a side has one row, only constant columns, or more than half of its
        pairs of rows equal.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Kornblith et al. 2019 (arXiv 1905.00414), section 3 and Table 2.
    """
    return RBF_CKA.value(x, y)
