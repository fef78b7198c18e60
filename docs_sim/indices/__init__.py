"""Similarities of two neuron matrices: pure functions, and the table of what each index is."""

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


@dataclass(frozen=True)
class Index:
    """One similarity index.

    Attributes:
        function: of two matrices (n, m).
        title: for figures.
        matches: how each neuron meets the other side.
        chance: its value for independent isotropic matrices (n, m_x) and (n, m_y).
    """

    function: Callable[[ArrayLike | Tensor, ArrayLike | Tensor], float]
    title: str
    matches: Matches
    chance: Callable[[int, int, int], float]


INDICES = {
    "docs": Index(docs, "DOCS", best_matches, chance_level),
    "docs_mean": Index(docs_mean, "DOCS (mean variant)", mean_matches, chance_level_mean),
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
