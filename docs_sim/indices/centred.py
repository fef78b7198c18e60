"""A matrix with centred columns, and its factors: what the classical indices keep of one side, for any partner.

An index of two matrices is then an inner product, or the singular values of a small product, of the parts of both: L
matrices cost L factorizations, however many pairs there are.
"""

import math
from functools import cached_property

import torch
from torch import Tensor

from docs_sim.indices.choices import SVCCA_VARIANCE

RBF_FRACTION = 0.8  # of the median distance; Kornblith et al. 2019 try 0.2, 0.4 and 0.8
_PROPORTIONAL = 1e-6  # share of a Gram matrix outside the multiples of the centring matrix: below it is a multiple
_COMMON = 2.0**-16  # the largest |entry| between this and its inverse: fourth powers fit into float32
_BLOCK = 256  # rows: of (1024, 4096) in float32 the product takes 15 ms on two cores, as one 20 ms
_ROUNDING = 8  # times the machine epsilon: what is left of a U-centred matrix by rounding alone


class Centred:
    """One matrix (n, m) of either side, with its columns centred, and its factors, each computed when first needed.

    Args:
        matrix: (n, m), any floating type. Gram matrices and projectors are kept in float32, or in float64 if this is;
            what loses digits (bases, distances, U-centring) is computed in float64 first.
        svcca_variance: share of the squared singular values that the leading directions of SVCCA hold.

    Raises:
        ValueError: if an entry is NaN or infinite.
    """

    def __init__(self, matrix: Tensor, svcca_variance: float = SVCCA_VARIANCE) -> None:
        self._matrix = matrix
        self._svcca_variance = svcca_variance
        self.n, self.m = matrix.shape
        self.dtype = torch.float64 if matrix.dtype == torch.float64 else torch.float32
        # Scale-free: squares of very large or small entries would over- or underflow.
        self._scale = _scale(matrix)

    def _columns(self, dtype: torch.dtype) -> Tensor:
        # Against the first row before the mean: a constant column is then zero exactly, whatever the mean rounds to.
        columns = self._matrix.to(dtype)
        if self._scale != 1:
            columns = columns / self._scale
        columns = columns - columns[:1]
        return columns.sub_(columns.mean(0, keepdim=True))

    @property
    def scale(self) -> Tensor:
        """The power of two by which everything else here is divided, so that no square over- or underflows."""
        return torch.tensor(self._scale, dtype=torch.float64)

    @cached_property
    def columns(self) -> Tensor:
        """(n, m): centred, and divided by ``scale``."""
        return self._columns(self.dtype)

    @cached_property
    def wide_columns(self) -> Tensor:
        """As ``columns``, in float64."""
        return self.columns if self.dtype == torch.float64 else self._columns(torch.float64)

    @cached_property
    def constant(self) -> bool:
        """Whether nothing is left of the columns once they are centred."""
        return not bool(self.columns.any())

    @cached_property
    def gram(self) -> Tensor:
        """K = X X', (n, n)."""
        return _with_itself(self.columns)

    @cached_property
    def wide_gram(self) -> Tensor:
        """As ``gram``, in float64."""
        return self.gram if self.dtype == torch.float64 else _with_itself(self.wide_columns)

    @cached_property
    def gram_norm(self) -> Tensor:
        """|K|_F."""
        return inner(self.gram, self.gram).sqrt()

    @cached_property
    def variance(self) -> Tensor:
        """Trace of K, which is |X|_F^2."""
        return self.gram.diagonal().sum(dtype=torch.float64)

    @cached_property
    def gram_is_centring(self) -> bool:
        """Whether K is a multiple of I - 11'/n, as for orthogonal rows: its product with any other is then fixed."""
        return _is_centring(self.gram)

    @cached_property
    def _basis_and_values(self) -> tuple[Tensor, Tensor]:
        """Left singular vectors (n, r) and singular values (r,) in float64, those of rounding alone cut."""
        columns = self.wide_columns
        if self.m > self.n:  # X = L Q': the singular vectors on the left are those of the triangle
            basis, values, _ = torch.linalg.svd(torch.linalg.qr(columns.T, mode="r").R.T)
        elif self.n > self.m:
            orthonormal, triangle = torch.linalg.qr(columns)
            rotation, values, _ = torch.linalg.svd(triangle)
            basis = orthonormal @ rotation
        else:
            basis, values, _ = torch.linalg.svd(columns)
        rank = int((values > values[0] * max(self.n, self.m) * torch.finfo(torch.float64).eps).sum())
        return basis[:, :rank], values[:rank]

    @property
    def basis(self) -> Tensor:
        """Orthonormal basis of the columns, (n, rank), the direction of most variance first."""
        return self._basis_and_values[0].to(self.dtype)

    @property
    def scaled_basis(self) -> Tensor:
        """Basis times singular values, (n, rank): X up to a rotation of its columns."""
        basis, values = self._basis_and_values
        return (basis * values).to(self.dtype)

    @property
    def coordinates(self) -> Tensor:
        """The columns in the basis, (rank, m)."""
        return (self._basis_and_values[0].T @ self.wide_columns).to(self.dtype)

    @property
    def projector(self) -> Tensor:
        """P = U U', (n, n)."""
        basis = self._basis_and_values[0]
        return _with_itself(basis).to(self.dtype)

    @property
    def spans(self) -> bool:
        """Whether the columns reach every direction that centred columns can have."""
        return self._basis_and_values[0].shape[1] == self.n - 1

    @property
    def _leading(self) -> Tensor:
        basis, values = self._basis_and_values
        variance = values.square().cumsum(0)
        kept = int((variance < self._svcca_variance * variance[-1]).sum()) + 1
        return basis[:, : min(kept, len(values))]

    @property
    def leading_basis(self) -> Tensor:
        """The fewest leading directions with the wanted share of the variance, (n, kept)."""
        return self._leading.to(self.dtype)

    @property
    def leading_projector(self) -> Tensor:
        """The projector on these, (n, n)."""
        return _with_itself(self._leading).to(self.dtype)

    @property
    def leading_spans(self) -> bool:
        """Whether these reach every direction."""
        return self._leading.shape[1] == self.n - 1

    @cached_property
    def _wide_u_centred(self) -> Tensor:
        gram = self.wide_gram.clone().fill_diagonal_(0)
        rows = gram.sum(1, keepdim=True) / (self.n - 2)
        return (gram - rows - rows.T + rows.sum() / (self.n - 1)).fill_diagonal_(0)

    @property
    def u_centred(self) -> Tensor:
        """K with its diagonal and the mean that its other entries have by chance removed, (n, n); n >= 4."""
        return self._wide_u_centred.to(self.dtype)

    @property
    def u_norm(self) -> Tensor:
        """|u_centred|_F."""
        return inner(self._wide_u_centred, self._wide_u_centred).sqrt()

    @property
    def u_centred_vanishes(self) -> bool:
        """Whether only rounding is left of it, as for square orthogonal matrices."""
        rounding = _ROUNDING * torch.finfo(self.dtype).eps
        return bool(self.u_norm <= rounding * inner(self.wide_gram, self.wide_gram).sqrt())

    @cached_property
    def _squared_distances(self) -> Tensor:
        squares = self.wide_gram.diagonal()
        return (squares[:, None] + squares - 2 * self.wide_gram).clamp_(min=0).fill_diagonal_(0)

    @cached_property
    def median_distance(self) -> float:
        """Of the distances between two different rows."""
        above = torch.triu_indices(self.n, self.n, 1, device=self._matrix.device)
        ordered = self._squared_distances[above[0], above[1]].sqrt().sort().values
        return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)

    @cached_property
    def rbf_gram(self) -> Tensor:
        """The centred Gaussian kernel of the rows, (n, n)."""
        kernel = torch.exp(self._squared_distances / (-2 * (RBF_FRACTION * self.median_distance) ** 2))
        kernel -= kernel.mean(0, keepdim=True)
        return kernel.sub_(kernel.mean(1, keepdim=True)).to(self.dtype)

    @property
    def rbf_norm(self) -> Tensor:
        """|rbf_gram|_F."""
        return inner(self.rbf_gram, self.rbf_gram).sqrt()

    @property
    def rbf_gram_is_centring(self) -> bool:
        """As ``gram_is_centring``, of the Gaussian kernel."""
        return _is_centring(self.rbf_gram)


def _scale(matrix: Tensor) -> float:
    """1 for entries of a common size, else the power of two next to the largest.

    Raises:
        ValueError: if an entry is NaN or infinite.
    """
    lowest, highest = (float(end) for end in matrix.aminmax())
    peak = max(abs(lowest), abs(highest))
    if not math.isfinite(peak):
        raise ValueError("holds NaN or infinity")
    return 1.0 if peak == 0 or _COMMON <= peak <= 1 / _COMMON else 2.0 ** round(math.log2(peak))


def _with_itself(rows: Tensor) -> Tensor:
    """``rows rows'``, of which nearly only one half is computed."""
    product = rows.new_empty(len(rows), len(rows))
    for start in range(0, len(rows), _BLOCK):
        stop = min(start + _BLOCK, len(rows))
        torch.mm(rows[start:stop], rows[:stop].T, out=product[start:stop, :stop])
        product[:start, start:stop] = product[start:stop, :start].T
    return product


def inner(left: Tensor, right: Tensor) -> Tensor:
    """Sum of the products of the entries of two matrices, in float64: rows at a time, so that no digits are lost."""
    if left.dtype != right.dtype:  # layers of one model may be stored in float32 and in float64
        left, right = left.double(), right.double()
    rows: Tensor = torch.linalg.vecdot(left, right)
    return rows.sum(dtype=torch.float64)


def _is_centring(gram: Tensor) -> bool:
    squares = inner(gram, gram)
    along = gram.diagonal().sum(dtype=torch.float64).square() / max(len(gram) - 1, 1)
    return bool(squares - along <= _PROPORTIONAL * squares)
