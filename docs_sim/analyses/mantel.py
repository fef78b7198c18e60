"""The Mantel test: do two similarity grids over the same layers agree, beyond what relabelling the layers gives?"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata


@dataclass(frozen=True, eq=False)
class Mantel:
    """Agreement of G grids.

    Attributes:
        correlation: (G, G), in [-1, 1]: rank correlation over pairs of layers; NaN where a grid is constant or has a
            pair without value.
        p: (G, G), symmetric, NaN on the diagonal: share of relabellings, the true one among them, with a correlation as
            high.
        permutations: how many relabellings were drawn.
    """

    correlation: np.ndarray
    p: np.ndarray
    permutations: int


def mantel(grids: np.ndarray, permutations: int = 999, seed: int = 0) -> Mantel:
    """Test each grid against each other by permuting rows and columns of one of them together.

    Args:
        grids: (G, L, L), symmetric; the diagonals are not read.
        permutations: relabellings to draw; the least p is 1 / (permutations + 1).
        seed: of the draws.

    Source: Mantel 1967 (Cancer Research 27), with Spearman's correlation as in Legendre and Legendre 2012, 10.5.1.
    """
    count = grids.shape[1]
    upper = np.triu_indices(count, 1)
    usable = np.isfinite(grids[:, *upper]).all(axis=1)
    usable[usable] &= np.ptp(grids[usable][:, *upper], axis=1) > 0
    ranks = np.zeros_like(grids)
    ranks[:, *upper] = rankdata(np.where(usable[:, None], grids[:, *upper], 0.0), axis=1)
    ranks[:, *upper] -= ranks[:, *upper].mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(ranks[:, *upper], axis=1)
    ranks += ranks.transpose(0, 2, 1)
    ranks[usable] /= lengths[usable, None, None]
    found = ranks[:, *upper] @ ranks[:, *upper].T
    as_high = np.ones_like(found)
    generator = np.random.default_rng(seed)
    for _ in range(permutations):
        order = generator.permutation(count)
        relabelled = ranks[:, order][:, :, order]
        as_high += ranks[:, *upper] @ relabelled[:, *upper].T >= found - 1e-12
    unusable = ~(usable[:, None] & usable)
    found[unusable] = np.nan
    # Only the second grid of a pair was relabelled: the same p for both orders, and none for a grid and itself.
    as_high = np.triu(as_high, 1) + np.triu(as_high, 1).T
    np.fill_diagonal(as_high, np.nan)
    return Mantel(found.clip(-1, 1), np.where(unusable, np.nan, as_high / (permutations + 1)), permutations)
