"""How near to orthogonal the columns of one matrix are: no index, but the reason why some say nothing of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import betainc, betainccinv, gammaln
from torch import Tensor

from docs_sim.indices.docs import Tile, unit_neurons
from docs_sim.indices.inputs import real_matrix
from docs_sim.indices.precision import full_float32

BINS = 1000  # of |cos|, of equal width from 0 to 1
_TILE_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Orthogonality:
    """The |cos| between the columns of a matrix (n, m), or what independent isotropic columns give.

    Attributes:
        columns: m without zero columns.
        mean: of |cos| over pairs of different columns; NaN for a single one.
        highest: the largest; by chance, the median of the largest.
        deviation: |W'W - I|_F of the columns at length 1; by chance, the root of the expected square.
        counts: (BINS,) pairs by |cos|; by chance, the expected number.
    """

    columns: int
    mean: float
    highest: float
    deviation: float
    counts: np.ndarray

    def distance(self, other: "Orthogonality") -> float:
        """The largest difference between both distributions of |cos| (Kolmogorov-Smirnov), at the ends of the bins."""
        ours, theirs = (one.counts.cumsum() / max(one.counts.sum(), 1) for one in (self, other))
        return float(np.abs(ours - theirs).max())


def orthogonality(matrix: ArrayLike | Tensor) -> Orthogonality:
    """The |cos| between all pairs of columns of ``matrix`` (n, m), tile by tile.

    Raises:
        ValueError: if it is no real matrix, an entry is NaN or infinite, or all columns are zero.

    Source: DOCS (arXiv 2501.16650), Figure 9.

    >>> orthogonality(np.eye(3)).deviation
    0.0
    """
    tensor = real_matrix(matrix)
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    neurons = unit_neurons(tensor, wide)
    total, squares, highest = 0.0, 0.0, float("nan")
    counts = np.zeros(BINS)
    with full_float32():
        for cosines in _pairs(neurons):
            total += float(cosines.sum(dtype=torch.float64))
            squares += float(torch.linalg.vector_norm(cosines, dtype=torch.float64)) ** 2
            highest = max(float(cosines.max()), 0.0 if np.isnan(highest) else highest)
            counts += torch.histc(cosines, BINS, 0, 1).double().cpu().numpy()
    pairs = len(neurons) * (len(neurons) - 1) // 2
    return Orthogonality(len(neurons), total / pairs if pairs else float("nan"), highest, (2 * squares) ** 0.5, counts)


def _pairs(neurons: Tensor) -> Iterator[Tensor]:
    """|cos| of every unordered pair of unit rows once, some at a time; valid until the next ones."""
    tile = Tile(torch.empty(_TILE_ROWS**2, dtype=neurons.dtype, device=neurons.device), _TILE_ROWS)
    chunks = neurons.split(_TILE_ROWS)
    for number, left in enumerate(chunks):
        above = torch.triu_indices(len(left), len(left), 1, device=neurons.device)
        if above.shape[1]:
            yield tile.absolute_cosines(left, left)[above[0], above[1]].clamp_(max=1)
        for right in chunks[number + 1 :]:
            yield tile.absolute_cosines(left, right).clamp_(max=1)


@lru_cache(maxsize=128)
def chance_orthogonality(n: int, m: int) -> Orthogonality:
    """What ``m`` independent isotropic columns of length ``n`` give: cos^2 is Beta(1/2, (n - 1) / 2).

    Raises:
        ValueError: if n or m is below 1.

    >>> round(chance_orthogonality(96, 256).mean, 4)
    0.0816
    """
    if n < 1 or m < 1:
        raise ValueError(f"no matrix has the shape ({n}, {m})")
    pairs = m * (m - 1) // 2
    if n == 1:
        mean, highest, below = 1.0, 1.0, np.r_[np.zeros(BINS), 1.0]
    else:
        mean = float(np.exp(gammaln(n / 2) - gammaln((n + 1) / 2)) / np.sqrt(np.pi))
        # Half of all samples of this many pairs have their largest below it; the pairs are independent two by two.
        highest = float(np.sqrt(betainccinv(0.5, (n - 1) / 2, -np.expm1(np.log(0.5) / max(pairs, 1)))))
        below = betainc(0.5, (n - 1) / 2, np.linspace(0, 1, BINS + 1) ** 2)
    return Orthogonality(
        m,
        mean if pairs else float("nan"),
        highest if pairs else float("nan"),
        float(np.sqrt(2 * pairs / n)),
        pairs * np.diff(below),
    )
