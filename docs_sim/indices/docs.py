"""The DOCS index of two neuron matrices, its mean variant, and what chance gives: pure functions on 2-D arrays.

Source: "DOCS: Quantifying Weight Similarity for Deeper Insights into Large Language Models", ICLR 2025
(arXiv 2501.16650), Algorithm 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import betainc, betainccinv, gammaln, ndtri
from torch import Tensor

from docs_sim.indices.gumbel import fit_gumbel
from docs_sim.indices.inputs import naming, two_matrices
from docs_sim.indices.precision import full_float32

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CHUNK = 512  # neurons that are normalised at once: temporaries stay small
_TILE_ROWS = 1024
_CHANCE_NODES = 20_000


def unit_columns(matrix: Tensor, dtype: torch.dtype, device: torch.device | str | None = None) -> Iterator[Tensor]:
    """The columns of ``matrix`` (n, m) at length 1, as rows: chunks (k, n) of ``dtype``, without the zero columns.

    Works through the matrix in chunks, so that a memory-mapped matrix is never held twice.

    Raises:
        ValueError: if an entry is NaN or infinite.
    """
    for chunk in matrix.T.split(CHUNK):
        # The largest entry is divided out first: squares of float16-sized or float32-sized extremes over- or underflow.
        rows = chunk.to(device=device or matrix.device, dtype=torch.promote_types(matrix.dtype, dtype)).contiguous()
        peaks = rows.abs().amax(1, keepdim=True)
        if not bool(torch.isfinite(peaks).all()):
            raise ValueError("holds NaN or infinity")
        nonzero = peaks.squeeze(1) > 0
        if not bool(nonzero.any()):
            continue
        if not bool(nonzero.all()):
            rows, peaks = rows[nonzero], peaks[nonzero]
        rows = (rows / peaks).to(dtype)
        yield rows.div_(torch.linalg.vector_norm(rows, dim=1, keepdim=True))


def unit_neurons(matrix: Tensor, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """The non-zero columns of ``matrix`` (n, m) at length 1, as rows (m' <= m, n) of ``dtype``: float32 or float64.

    Raises:
        ValueError: if an entry is NaN or infinite, or every column is zero.
    """
    n, m = matrix.shape
    rows, filled = torch.empty((m, n), dtype=dtype, device=device or matrix.device), 0
    for chunk in unit_columns(matrix, dtype, device):
        rows[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if filled == 0:
        raise ValueError("holds only zero columns, which have no direction")
    return rows[:filled]


@dataclass(frozen=True)
class Tile:
    """A buffer that products of at most ``rows`` by ``rows`` neurons share: fresh memory costs more than the sums.

    Attributes:
        buffer: rows^2 elements of the neurons' dtype.
        rows: of each side.
    """

    buffer: Tensor
    rows: int

    def absolute_cosines(self, left: Tensor, right: Tensor) -> Tensor:
        """|left right'| for two sets of unit rows, valid until the next call."""
        tile = self.buffer[: len(left) * len(right)].view(len(left), len(right))
        return torch.mm(left, right.T, out=tile).abs_()


Matches = Callable[[Tensor, Tensor, Tile], tuple[Tensor, Tensor]]


def best_matches(neurons_x: Tensor, neurons_y: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """For each unit neuron the largest |cosine| with any neuron of the other side, both ways from one product.

    Args:
        neurons_x: (m_x, n) unit rows.
        neurons_y: (m_y, n) unit rows, same dtype and device.
        tile: the buffer to use.

    Returns:
        s_X (m_x,) and s_Y (m_y,), at most 1, in the dtype of the tile.
    """
    best_x = torch.zeros(len(neurons_x), dtype=tile.buffer.dtype, device=neurons_x.device)
    best_y = torch.zeros(len(neurons_y), dtype=tile.buffer.dtype, device=neurons_y.device)
    for left, into_x in zip(neurons_x.split(tile.rows), best_x.split(tile.rows), strict=True):
        for right, into_y in zip(neurons_y.split(tile.rows), best_y.split(tile.rows), strict=True):
            cosines = tile.absolute_cosines(left, right)
            torch.maximum(into_x, cosines.amax(1), out=into_x)
            torch.maximum(into_y, cosines.amax(0), out=into_y)
    return best_x.clamp_(max=1), best_y.clamp_(max=1)


def mean_matches(neurons_x: Tensor, neurons_y: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """As ``best_matches`` with the mean |cosine| in place of the largest: the ablation of the paper's Figure 13."""
    sum_x = torch.zeros(len(neurons_x), dtype=tile.buffer.dtype, device=neurons_x.device)
    sum_y = torch.zeros(len(neurons_y), dtype=tile.buffer.dtype, device=neurons_y.device)
    for left, into_x in zip(neurons_x.split(tile.rows), sum_x.split(tile.rows), strict=True):
        for right, into_y in zip(neurons_y.split(tile.rows), sum_y.split(tile.rows), strict=True):
            cosines = tile.absolute_cosines(left, right)
            into_x.add_(cosines.sum(1))
            into_y.add_(cosines.sum(0))
    return sum_x / len(neurons_y), sum_y / len(neurons_x)


def docs(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """The DOCS similarity of two neuron matrices: 1 for the same neurons in any order, sign and scale.

    S = (u_X + u_Y) / 2, with u the location of the maximum-likelihood Gumbel distribution of
    s_X[j] = max_k |x_j . y_k| / (|x_j| |y_k|), and s_Y likewise.

    Args:
        x: (n, m_x), columns are neurons, numpy or torch, any floating type.
        y: (n, m_y).

    Returns:
        A similarity, at most 1. Independent random columns give ``chance_level``, not 0. Zero columns are left out.

    Raises:
        ValueError: if the shapes do not fit, an entry is NaN or infinite, or all columns of one side are zero.

    Source: DOCS (ICLR 2025), Algorithm 1.

    >>> import torch, docs_sim
    >>> docs_sim.docs(torch.eye(4), -3 * torch.eye(4)[:, [2, 0, 3, 1]])
    1.0
    """
    return _similarity(x, y, best_matches)


def docs_mean(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> float:
    """DOCS with the mean over k in place of the maximum (the paper's ablation). Arguments and errors as ``docs``."""
    return _similarity(x, y, mean_matches)


def _similarity(x: ArrayLike | Tensor, y: ArrayLike | Tensor, matches: Matches) -> float:
    sides = two_matrices(x, y)
    wide = torch.float64 if torch.float64 in (sides[0].dtype, sides[1].dtype) else torch.float32
    with naming("x"):
        neurons_x = unit_neurons(sides[0], wide)
    with naming("y"):
        neurons_y = unit_neurons(sides[1], wide)
    if matches is best_matches and same_neurons(neurons_x, neurons_y):
        return 1.0
    tile = Tile(torch.empty(_TILE_ROWS**2, dtype=wide, device=neurons_x.device), _TILE_ROWS)
    with full_float32():
        samples = matches(neurons_x, neurons_y, tile)
    locations = [float(fit_gumbel(sample).location) for sample in samples]
    return sum(locations) / 2


def same_neurons(neurons_x: Tensor, neurons_y: Tensor) -> bool:
    """Whether two sets of unit rows are equal bit for bit, so that every best match is exactly 1."""
    return neurons_x.shape == neurons_y.shape and torch.equal(neurons_x, neurons_y)


@lru_cache(maxsize=4096)
def chance_level(n: int, m_x: int, m_y: int) -> float:
    """DOCS of two independent neuron matrices (n, m_x) and (n, m_y) with isotropic random columns.

    cos^2 of two such columns is Beta(1/2, (n-1)/2); the maximum over m of them has the m-th power of its distribution
    function. The location is that of the Gumbel fit to this law, by the midpoint rule over its quantiles
    (error under 1e-6).

    Raises:
        ValueError: if n, m_x or m_y is below 1.

    >>> round(chance_level(4096, 14336, 14336), 4)
    0.062
    """
    return (chance_fit(n, m_x)[0] + chance_fit(n, m_y)[0]) / 2


@lru_cache(maxsize=4096)
def chance_fit(n: int, m: int) -> tuple[float, float]:
    """Location and scale of the Gumbel fit to the best matches among m isotropic random columns of length n.

    Raises:
        ValueError: if n or m is below 1.
    """
    if n < 1 or m < 1:
        raise ValueError(f"no matrix has the shape ({n}, {m})")
    if n == 1:
        return 1.0, 0.0
    levels = (np.arange(_CHANCE_NODES) + 0.5) / _CHANCE_NODES
    # The upper tail 1 - level^(1/m), without cancellation for large m.
    squared_cosines = betainccinv(0.5, (n - 1) / 2, -np.expm1(np.log(levels) / m))
    fit = fit_gumbel(torch.from_numpy(np.sqrt(squared_cosines)))
    return float(fit.location), float(fit.scale)


def chance_distribution(cosines: ArrayLike, n: int, m: int) -> np.ndarray:
    """The share of neurons whose best |cos| among ``m`` isotropic columns of length ``n`` is below ``cosines``."""
    values = np.asarray(cosines, dtype=float)
    if n == 1:
        return np.where(values < 1, 0.0, 1.0)
    return np.asarray(betainc(0.5, (n - 1) / 2, np.clip(values, 0, 1) ** 2) ** m)


@lru_cache(maxsize=4096)
def chance_level_mean(n: int, m_x: int, m_y: int) -> float:
    """``docs_mean`` of two independent isotropic neuron matrices.

    A mean of m independent |cos|, taken as normal with E|cos| = Gamma(n/2) / (sqrt(pi) Gamma((n+1)/2)) and
    E cos^2 = 1/n (exact for large m).
    """
    if n == 1:
        return 1.0
    mean = np.exp(gammaln(n / 2) - gammaln((n + 1) / 2)) / np.sqrt(np.pi)
    deviation = np.sqrt(1 / n - mean**2)
    standard = torch.from_numpy(ndtri((np.arange(_CHANCE_NODES) + 0.5) / _CHANCE_NODES))
    locations = fit_gumbel(torch.stack([mean + deviation / np.sqrt(m) * standard for m in (m_x, m_y)])).location
    return float(locations.mean())


def excess(similarity: ArrayLike, chance: ArrayLike) -> np.ndarray:
    """How far similarities lie above chance, as a share of what is possible: (S - chance) / (1 - chance).

    NaN where chance is 1 (n = 1: every pair of columns is parallel). Arguments broadcast.

    >>> float(excess(0.75, 0.5))
    0.5
    """
    values, level = np.asarray(similarity, dtype=float), np.asarray(chance, dtype=float)
    possible = np.where(level < 1, 1 - level, np.nan)
    return np.asarray((values - level) / possible)
