"""Unnamed: a tensor that is no neuron matrix, with the reason, and the reasons that several files give."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from docs_sim.checkpoint.matrix import WeightMatrix

UNKNOWN = "no layout knows names like this"
VECTOR = "a vector, such as a norm, a bias or a scale"


@dataclass(frozen=True)
class Unnamed:
    """A tensor that is not used as a neuron matrix, and why.

    Attributes:
        name: of the tensor.
        reason: in words.
        keys: of the matrices that its name means, if the layout knows the name but the shapes speak against it.
    """

    name: str
    reason: str
    keys: tuple[str, ...] = ()


def rejected(matrices: Iterable[WeightMatrix], reason: str) -> dict[str, Unnamed]:
    """The tensors of matrices that are not used after all, by name."""
    keys: dict[str, list[str]] = defaultdict(list)
    for matrix in matrices:
        for name in matrix.tensors:
            keys[name].append(matrix.key)
    return {name: Unnamed(name, reason, tuple(held)) for name, held in keys.items()}
