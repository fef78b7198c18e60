"""Singular vector CCA: canonical correlations of the directions that hold most of the variance."""

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.cca import mean_correlation, mean_squared_correlation
from docs_sim.indices.choices import SVCCA_VARIANCE
from docs_sim.indices.factoring import Factoring, Parts, both_ways

_FIXED = "the leading directions are all n - 1 that there are, so every canonical correlation is 1"


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways(mean_correlation(x["leading_basis"], y["leading_basis"]))


def _compare_r2(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways(mean_squared_correlation(x["leading_projector"], y["leading_projector"]))


SVCCA = Factoring(("leading_basis",), _compare, fixed=lambda centred: centred.leading_spans, fixed_because=_FIXED)
SVCCA_R2 = Factoring(
    ("leading_projector",), _compare_r2, fixed=lambda centred: centred.leading_spans, fixed_because=_FIXED
)


def _share(variance: float) -> float:
    if not 0 < variance <= 1:
        raise ValueError(f"variance is a share in (0, 1], not {variance}")
    return variance


def svcca(x: ArrayLike | Tensor, y: ArrayLike | Tensor, *, variance: float = SVCCA_VARIANCE) -> float:
    """``cca`` of the fewest leading singular directions of each side that hold ``variance`` of its squared values.

    Args:
        x: (n, m_x), rows are samples; columns are centred here.
        y: (n, m_y).
        variance: share of the sum of squared singular values, in (0, 1].

    Returns:
        In [0, 1], over the smaller number of directions kept; NaN, with a warning, where a side has one row or only
        constant columns.

    Raises:
        ValueError: if the shapes do not fit, an entry is NaN or infinite, or ``variance`` is not in (0, 1].

    Source: Raghu et al. 2017 (arXiv 1706.05806); Kornblith et al. 2019, Table 1.
    """
    return SVCCA.value(x, y, svcca_variance=_share(variance))


def svcca_r2(x: ArrayLike | Tensor, y: ArrayLike | Tensor, *, variance: float = SVCCA_VARIANCE) -> float:
    """``cca_r2`` of the leading directions. Arguments, range and errors as ``svcca``."""
    return SVCCA_R2.value(x, y, svcca_variance=_share(variance))
