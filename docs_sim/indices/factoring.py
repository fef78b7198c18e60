"""How an index is computed from the parts of both matrices, pair by pair; ``docs_sim.engine`` does it for all pairs."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from numpy.typing import ArrayLike
from torch import Tensor

from docs_sim.indices.centred import Centred
from docs_sim.indices.inputs import naming, two_matrices
from docs_sim.indices.precision import full_float32

Parts = Mapping[str, Tensor]


def both_ways(value: Tensor | float) -> tuple[float, float]:
    """A symmetric value, in the form of two directions."""
    return float(value), float(value)


def _never(_: Centred) -> bool:
    return False


@dataclass(frozen=True)
class Factoring:
    """One index, computed from parts.

    Attributes:
        parts: what it keeps of each matrix: attributes of ``Centred``.
        compare: the parts of X and of Y -> how X is explained by Y, and how Y by X; equal where the index is symmetric.
        fixed_because: when its value does not depend on how the two matrices lie to each other, in words.
        fixed: whether that is so as far as this matrix says.
        fixed_by: of how many of the two that has to be said.
        lacking: why it has no value for this matrix; None if it has.
    """

    parts: tuple[str, ...]
    compare: Callable[[Parts, Parts], tuple[float, float]]
    fixed_because: str
    fixed: Callable[[Centred], bool] = _never
    fixed_by: int = 1
    lacking: Callable[[Centred], str | None] = lambda centred: None

    def undefined(self, centred: Centred) -> str | None:
        """Why the index has no value for this matrix; None if it has."""
        if centred.n == 1:
            return "has one row, of which centring leaves nothing"
        if centred.constant:
            return "has only constant columns, of which centring leaves nothing"
        return self.lacking(centred)

    def keep(self, centred: Centred) -> dict[str, Tensor]:
        """The parts of one matrix."""
        return {part: getattr(centred, part) for part in self.parts}

    def directions(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor, **choices: float) -> tuple[float, float]:
        """How X is explained by Y, and how Y by X; NaN with a warning that says why where it has no value.

        Raises:
            ValueError: if the shapes do not fit or an entry is NaN or infinite.
        """
        kept: list[Parts] = []
        with full_float32():
            for name, side in zip("xy", two_matrices(x, y), strict=True):
                with naming(name):
                    centred = Centred(side, **choices)
                reason = self.undefined(centred)
                if reason is not None:
                    warnings.warn(f"undefined: {name} {reason}", stacklevel=3)
                    return float("nan"), float("nan")
                kept.append(self.keep(centred))
            return self.compare(kept[0], kept[1])

    def value(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor, **choices: float) -> float:
        """The mean of both directions; as ``directions`` otherwise."""
        return sum(self.directions(x, y, **choices)) / 2
