"""What every index asks of its two matrices before it computes anything."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def two_matrices(x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """``x`` and ``y`` as real, filled tensors (n, m_x) and (n, m_y) without gradients.

    Raises:
        TypeError: if one is a matrix of a checkpoint that was not loaded.
        ValueError: if one is no real matrix, or is empty, or n differs.
    """
    sides = real_matrix(x), real_matrix(y)
    if sides[0].shape[0] != sides[1].shape[0]:
        raise ValueError(f"the neurons live in different spaces: n is {sides[0].shape[0]} and {sides[1].shape[0]}")
    return sides


def real_matrix(side: ArrayLike | Tensor) -> Tensor:
    """``side`` as a real, filled tensor (n, m) without gradients.

    Raises:
        TypeError: if it is a matrix of a checkpoint that was not loaded.
        ValueError: if it is no real matrix, or is empty.
    """
    if hasattr(side, "load"):
        raise TypeError(f"expected a matrix of numbers, not a {type(side).__name__}; give what its load() returns")
    matrix = side.detach() if isinstance(side, Tensor) else torch.tensor(np.asarray(side))
    if matrix.dim() != 2 or 0 in matrix.shape or matrix.is_complex():
        raise ValueError(
            f"expected a real matrix (n, m) of neurons in columns, got {matrix.dtype} {tuple(matrix.shape)}"
        )
    return matrix


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Say of which side an error is."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
