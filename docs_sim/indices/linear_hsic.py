"""The Hilbert-Schmidt independence criterion with linear kernels: CKA without its normalisation."""

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import inner
from docs_sim.indices.factoring import Factoring, Parts, both_ways

GRAM_FIXED = "its rows are orthogonal and of one length once centred, so X X' says nothing of directions"


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    scale = (x["scale"] * y["scale"]) / (len(x["gram"]) - 1)
    return both_ways(inner(x["gram"], y["gram"]).clamp(min=0) * scale * scale)


LINEAR_HSIC = Factoring(
    ("gram", "scale"), _compare, fixed=lambda centred: centred.gram_is_centring, fixed_because=GRAM_FIXED
)


def linear_hsic(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """|Y' X|_F^2 / (n - 1)^2 = <X X', Y Y'> / (n - 1)^2 of the centred matrices.

    Args:
        x: (n, m_x), rows are samples; columns are centred here.
        y: (n, m_y).

    Returns:
        At least 0, without upper bound: it grows with the size of the weights. NaN, with a warning, where a side has
        one row or only constant columns.

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Gretton et al. 2005; Kornblith et al. 2019 (arXiv 1905.00414), equation 3 and Table 1.
    """
    return LINEAR_HSIC.value(x, y)
