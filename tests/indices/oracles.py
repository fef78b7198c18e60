"""Every classical index once more, slowly, in float64, from the formulas of the papers and by other means.

Nothing here comes from the package: centring is a product with H = I - 11'/n, regressions are solved column by column,
subspaces are compared by their angles or pseudo-inverses, and sums run over all entries.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orth, orthogonal_procrustes, subspace_angles
from scipy.spatial.distance import pdist, squareform

Matrix = NDArray[np.float64]


def centring(n: int) -> Matrix:
    return np.eye(n) - np.ones((n, n)) / n


def centred(x: Matrix) -> Matrix:
    return centring(len(x)) @ (centring(len(x)) @ x)  # twice: the first leaves the rounding of a large mean


def explained(x: Matrix, y: Matrix) -> float:
    """The share of the variance of X that least squares on the columns of Y explains."""
    x, y = centred(x), centred(y)
    residual = 0.0
    for column in x.T:
        coefficients = np.linalg.lstsq(y, column, rcond=None)[0]
        residual += float(((column - y @ coefficients) ** 2).sum())
    return 1 - residual / float((x**2).sum())


def linear_regression(x: Matrix, y: Matrix) -> float:
    return (explained(x, y) + explained(y, x)) / 2


def correlations(basis_x: Matrix, basis_y: Matrix) -> Matrix:
    return np.cos(subspace_angles(basis_x, basis_y))


def cca(x: Matrix, y: Matrix) -> float:
    return float(correlations(orth(centred(x)), orth(centred(y))).mean())


def cca_r2(x: Matrix, y: Matrix) -> float:
    x, y = centred(x), centred(y)
    shared = np.trace(x @ np.linalg.pinv(x) @ y @ np.linalg.pinv(y))
    return float(shared / min(np.linalg.matrix_rank(x), np.linalg.matrix_rank(y)))


def leading(x: Matrix, variance: float) -> Matrix:
    """The fewest principal directions with that share of the variance, from the eigenvectors of X X'."""
    x = centred(x)
    values, vectors = np.linalg.eigh(x @ x.T)
    values, vectors = values[::-1], vectors[:, ::-1]
    total = 0.0
    for kept, value in enumerate(values, start=1):
        total += value
        if total >= variance * values.sum():
            return vectors[:, :kept]
    return vectors


def svcca(x: Matrix, y: Matrix, variance: float = 0.99) -> float:
    return float(correlations(leading(x, variance), leading(y, variance)).mean())


def svcca_r2(x: Matrix, y: Matrix, variance: float = 0.99) -> float:
    return float((correlations(leading(x, variance), leading(y, variance)) ** 2).mean())


def projection_weighted(x: Matrix, y: Matrix) -> float:
    """Equation 5 of Morcos et al.: the variates of X are eigenvectors of P_X P_Y P_X."""
    x, y = centred(x), centred(y)
    projector_x, projector_y = x @ np.linalg.pinv(x), y @ np.linalg.pinv(y)
    values, vectors = np.linalg.eigh(projector_x @ projector_y @ projector_x)
    rank = min(np.linalg.matrix_rank(x), np.linalg.matrix_rank(y))
    weighted = weights = 0.0
    for value, variate in list(zip(values, vectors.T, strict=True))[::-1][:rank]:
        weight = sum(abs(float(variate @ column)) for column in x.T)
        weighted += weight * max(value, 0) ** 0.5
        weights += weight
    return weighted / weights


def pwcca(x: Matrix, y: Matrix) -> float:
    return (projection_weighted(x, y) + projection_weighted(y, x)) / 2


def hsic(gram_x: Matrix, gram_y: Matrix) -> float:
    """Equation 3 of Kornblith et al."""
    n = len(gram_x)
    return float(np.trace(gram_x @ centring(n) @ gram_y @ centring(n))) / (n - 1) ** 2


def linear_hsic(x: Matrix, y: Matrix) -> float:
    return hsic(x @ x.T, y @ y.T)


def cka(gram_x: Matrix, gram_y: Matrix) -> float:
    return hsic(gram_x, gram_y) / np.sqrt(hsic(gram_x, gram_x) * hsic(gram_y, gram_y))


def linear_cka(x: Matrix, y: Matrix) -> float:
    return cka(x @ x.T, y @ y.T)


def unbiased_hsic(gram_x: Matrix, gram_y: Matrix) -> float:
    """Equation 5 of Song et al."""
    n = len(gram_x)
    k, o = gram_x - np.diag(np.diag(gram_x)), gram_y - np.diag(np.diag(gram_y))
    trace = float(np.trace(k @ o))
    sums = float(k.sum() * o.sum()) / ((n - 1) * (n - 2))
    cross = 2 * float((k @ o).sum()) / (n - 2)
    return (trace + sums - cross) / (n * (n - 3))


def linear_cka_debiased(x: Matrix, y: Matrix) -> float:
    # The estimate does not depend on where the rows lie, but the digits that are left of it do.
    gram_x, gram_y = centred(x) @ centred(x).T, centred(y) @ centred(y).T
    return unbiased_hsic(gram_x, gram_y) / np.sqrt(unbiased_hsic(gram_x, gram_x) * unbiased_hsic(gram_y, gram_y))


def gaussian_gram(x: Matrix) -> Matrix:
    distances = pdist(x)
    return np.exp(-(squareform(distances) ** 2) / (2 * (0.8 * np.median(distances)) ** 2))


def rbf_cka(x: Matrix, y: Matrix) -> float:
    return cka(gaussian_gram(x), gaussian_gram(y))


def procrustes(x: Matrix, y: Matrix) -> float:
    """1 minus half the squared distance of the normalised matrices, of equal width, after the best rotation."""
    wide = max(x.shape[1], y.shape[1])
    sides = []
    for side in (centred(x), centred(y)):
        padded = np.pad(side, ((0, 0), (0, wide - side.shape[1])))
        sides.append(padded / np.linalg.norm(padded))
    rotation, _ = orthogonal_procrustes(*sides)
    return 1 - float(np.linalg.norm(sides[0] @ rotation - sides[1]) ** 2) / 2


ORACLES = {
    oracle.__name__: oracle
    for oracle in (
        linear_regression,
        cca,
        cca_r2,
        svcca,
        svcca_r2,
        pwcca,
        linear_hsic,
        linear_cka,
        linear_cka_debiased,
        rbf_cka,
        procrustes,
    )
}
