"""The table of indices: what each is called, what it computes, what chance gives."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.docs import (
    Matches,
    best_matches,
    chance_level,
    chance_level_mean,
    docs,
    docs_mean,
    mean_matches,
)
from docs_sim.indices.names import IndexName


@dataclass(frozen=True)
class Index:
    """One similarity index.

    Attributes:
        function: of two matrices (n, m).
        title: for figures.
        matches: how each neuron meets the other side.
        chance: its value for independent isotropic matrices (n, m_x) and (n, m_y).
        self_value: its value for a matrix and itself; NaN where that depends on the matrix.
        rounds: whether it depends on few products, so that rounded ones may be exact enough.
    """

    function: Callable[[ArrayLike | Tensor, ArrayLike | Tensor], float]
    title: str
    matches: Matches
    chance: Callable[[int, int, int], float]
    self_value: float
    rounds: bool


INDICES: dict[str, Index] = {
    IndexName.docs: Index(docs, "DOCS", best_matches, chance_level, self_value=1.0, rounds=True),
    IndexName.docs_mean: Index(
        docs_mean, "DOCS (mean variant)", mean_matches, chance_level_mean, self_value=float("nan"), rounds=False
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
