"""The table of indices: what each is called, where it comes from, what it promises, how it is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.cca import CCA, CCA_R2, cca, cca_r2
from docs_sim.indices.choices import IndexName
from docs_sim.indices.docs import (
    Matches,
    best_matches,
    chance_level,
    chance_level_mean,
    docs,
    docs_mean,
    mean_matches,
)
from docs_sim.indices.factoring import Factoring
from docs_sim.indices.linear_cka import LINEAR_CKA, linear_cka
from docs_sim.indices.linear_cka_debiased import LINEAR_CKA_DEBIASED, linear_cka_debiased
from docs_sim.indices.linear_hsic import LINEAR_HSIC, linear_hsic
from docs_sim.indices.linear_regression import LINEAR_REGRESSION, linear_regression
from docs_sim.indices.procrustes import PROCRUSTES, procrustes
from docs_sim.indices.pwcca import PWCCA, pwcca
from docs_sim.indices.rbf_cka import RBF_CKA, rbf_cka
from docs_sim.indices.svcca import SVCCA, SVCCA_R2, svcca, svcca_r2


class Property(StrEnum):
    """What may be done to matrices without changing the index, for all matrices; and what else an index may promise."""

    permutation = "permutation"  # of the columns of each side
    scaling = "scaling"  # of each side by any non-zero number
    column_scaling = "column scaling"  # of each column by any non-zero number
    translation = "translation"  # the same row added to all rows of a side
    orthogonal = "orthogonal"  # X Q, Y R for orthogonal Q, R
    invertible = "invertible"  # X A, Y B for invertible A, B
    rotation = "rotation"  # O X, O Y for one rotation O of R^n
    symmetry = "symmetry"  # S(X, Y) = S(Y, X), in either direction where there are two
    reflexivity = "reflexivity"  # S(X, X) = 1


_NEURONS = {
    Property.permutation,
    Property.scaling,
    Property.column_scaling,
    Property.rotation,
    Property.symmetry,
}
_MIXING = {Property.permutation, Property.translation, Property.orthogonal}
_MIXING_AND_SIZE = {*_MIXING, Property.scaling, Property.symmetry, Property.reflexivity}
_SUBSPACE = {*_MIXING_AND_SIZE, Property.column_scaling, Property.invertible}


@dataclass(frozen=True)
class Matching:
    """An index that lets every neuron look for its like on the other side.

    Attributes:
        matches: how each neuron meets the other side.
        chance: its value for independent isotropic matrices (n, m_x) and (n, m_y).
        self_value: its value for a matrix and itself; NaN where that depends on the matrix.
        rounds: whether it depends on few products, so that rounded ones may be exact enough.
    """

    matches: Matches
    chance: Callable[[int, int, int], float]
    self_value: float
    rounds: bool


@dataclass(frozen=True)
class Index:
    """One similarity index.

    Attributes:
        function: of two matrices (n, m).
        title: for figures.
        source: paper and equation.
        lowest, highest: its range.
        properties: what it promises; all else fails for some matrices.
        degenerate: when its value is fixed by the shapes, in words.
        rule: how all pairs of a list are computed.
    """

    function: Callable[[ArrayLike | Tensor, ArrayLike | Tensor], float]
    title: str
    source: str
    lowest: float
    highest: float
    properties: frozenset[Property]
    degenerate: str
    rule: Matching | Factoring

    @property
    def symmetric(self) -> bool:
        """Whether both directions are the same."""
        return Property.symmetry in self.properties

    def directions(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> tuple[float, float]:
        """How X is explained by Y, and how Y by X: equal for symmetric indices. Errors as ``function``."""
        if isinstance(self.rule, Factoring):
            return self.rule.directions(x, y)
        value = self.function(x, y)
        return value, value


def _factored(
    function: Callable[[ArrayLike | Tensor, ArrayLike | Tensor], float],
    title: str,
    source: str,
    properties: set[Property],
    rule: Factoring,
    *,
    lowest: float = 0.0,
    highest: float = 1.0,
) -> Index:
    return Index(function, title, source, lowest, highest, frozenset(properties), rule.fixed_because, rule)


_DOCS = "DOCS (arXiv 2501.16650), Algorithm 1"
_KORNBLITH = "Kornblith et al. 2019 (arXiv 1905.00414)"
INDICES: dict[str, Index] = {
    IndexName.docs: Index(
        docs,
        "DOCS",
        _DOCS,
        lowest=float("-inf"),  # a fitted location is not bound to the range of the sample
        highest=1.0,
        properties=frozenset({*_NEURONS, Property.reflexivity}),
        degenerate="n = 1: all columns are parallel",
        rule=Matching(best_matches, chance_level, self_value=1.0, rounds=True),
    ),
    IndexName.docs_mean: Index(
        docs_mean,
        "DOCS (mean variant)",
        f"{_DOCS} with a mean for the maximum (its Figure 13)",
        lowest=float("-inf"),
        highest=1.0,
        properties=frozenset(_NEURONS),
        degenerate="n = 1: all columns are parallel",
        rule=Matching(mean_matches, chance_level_mean, self_value=float("nan"), rounds=False),
    ),
    IndexName.linear_regression: _factored(
        linear_regression,
        "Linear regression",
        f"{_KORNBLITH}, equation 9",
        _MIXING_AND_SIZE - {Property.symmetry},
        LINEAR_REGRESSION,
    ),
    IndexName.cca: _factored(cca, "CCA (mean)", f"{_KORNBLITH}, section 3", _SUBSPACE, CCA),
    IndexName.cca_r2: _factored(cca_r2, "CCA (mean squared)", f"{_KORNBLITH}, section 3", _SUBSPACE, CCA_R2),
    IndexName.svcca: _factored(svcca, "SVCCA (mean)", "Raghu et al. 2017 (arXiv 1706.05806)", _MIXING_AND_SIZE, SVCCA),
    IndexName.svcca_r2: _factored(
        svcca_r2, "SVCCA (mean squared)", "Raghu et al. 2017 (arXiv 1706.05806)", _MIXING_AND_SIZE, SVCCA_R2
    ),
    IndexName.pwcca: _factored(
        pwcca,
        "PWCCA",
        "Morcos et al. 2018 (arXiv 1806.05759), equation 5",
        {Property.permutation, Property.scaling, Property.translation, Property.reflexivity},
        PWCCA,
    ),
    IndexName.linear_hsic: _factored(
        linear_hsic,
        "Linear HSIC",
        f"{_KORNBLITH}, equation 3",
        {*_MIXING, Property.symmetry},
        LINEAR_HSIC,
        highest=float("inf"),
    ),
    IndexName.linear_cka: _factored(
        linear_cka, "Linear CKA", f"{_KORNBLITH}, equation 5", _MIXING_AND_SIZE, LINEAR_CKA
    ),
    IndexName.linear_cka_debiased: _factored(
        linear_cka_debiased,
        "Linear CKA (debiased)",
        "Song et al. 2012 (JMLR 13), equation 5",
        _MIXING_AND_SIZE,
        LINEAR_CKA_DEBIASED,
        lowest=-1.0,
    ),
    IndexName.rbf_cka: _factored(rbf_cka, "RBF CKA", f"{_KORNBLITH}, section 3", _MIXING_AND_SIZE, RBF_CKA),
    IndexName.procrustes: _factored(
        procrustes, "Procrustes", "Ding et al. 2021 (arXiv 2108.01661), section 3", _MIXING_AND_SIZE, PROCRUSTES
    ),
}


def similarity(x: ArrayLike | Tensor, y: ArrayLike | Tensor, index: str = "docs") -> float:
    """The similarity of two neuron matrices (n, m_x) and (n, m_y) by the index called ``index``.

    Raises:
        ValueError: if there is no such index; else as the index itself.

    >>> import torch
    >>> similarity(torch.eye(3), torch.eye(3), index="docs")
    1.0
    """
    if index not in INDICES:
        raise ValueError(f"unknown index {index!r}; known: {', '.join(INDICES)}")
    return INDICES[index].function(x, y)
