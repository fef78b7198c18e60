"""Centred kernel alignment with linear kernels and the unbiased estimate of HSIC: about 0 for independent matrices."""

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import Centred, inner
from docs_sim.indices.factoring import Factoring, Parts, both_ways


def _lacking(centred: Centred) -> str | None:
    if centred.n < 4:
        return f"has {centred.n} rows; the unbiased estimate needs 4"
    if centred.u_centred_vanishes:
        return "has orthogonal rows, of which the unbiased estimate leaves only rounding"
    return None


def _compare(x: Parts, y: Parts) -> tuple[float, float]:
    return both_ways((inner(x["u_centred"], y["u_centred"]) / (x["u_norm"] * y["u_norm"])).clamp(-1, 1))


LINEAR_CKA_DEBIASED = Factoring(
    parts=("u_centred", "u_norm"),
    compare=_compare,
    lacking=_lacking,
    fixed_because="never: where its value would be fixed it has none",
)


def linear_cka_debiased(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """``linear_cka`` with the unbiased HSIC_1 of Song et al.: <A, B> / (|A|_F |B|_F) of U-centred Gram matrices.

    Args:
        x: (n, m_x), rows are samples.
        y: (n, m_y).

    Returns:
        In [-1, 1]: negative values are as meaningful as positive ones. NaN, with a warning, where a side has fewer
        than 4 rows, only constant columns, or orthogonal rows, of whatever length (nothing but rounding is left).

    Raises:
        ValueError: if the shapes do not fit or an entry is NaN or infinite.

    Source: Song et al. 2012 (JMLR 13), equation 5; U-centring as in Székely and Rizzo 2014.
    """
    return LINEAR_CKA_DEBIASED.value(x, y)
