"""What chance puts in the place of a matrix: itself, turned at random, or independent Gaussian numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from docs_sim.engine.prepared import LoadableMatrix


@dataclass(frozen=True)
class ByChance:
    """What stands for a matrix in a comparison with chance; itself a ``LoadableMatrix``.

    Attributes:
        matrix: that it stands for, and is called like.
        draw: of the matrix and a seed.
        seed: the same one gives the same numbers.
    """

    matrix: LoadableMatrix
    draw: Callable[[LoadableMatrix, int], Tensor]
    seed: int

    @property
    def key(self) -> str:
        """Of the matrix."""
        return self.matrix.key

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""
        return self.matrix.shape

    @property
    def tensors(self) -> tuple[str, ...]:
        """Of the matrix."""
        return self.matrix.tensors

    def load(self) -> Tensor:
        """(n, m), drawn anew and the same in every call."""
        return self.draw(self.matrix, self.seed)


def rotated(matrix: LoadableMatrix, seed: int) -> Tensor:
    """All neurons of a matrix turned by the same random rotation of R^n: its own geometry stays.

    In float64: rounding to float32 would add directions to a matrix of low rank.
    """
    return random_rotation(matrix.shape[0], seed).double() @ matrix.load().double()


def gaussian(matrix: LoadableMatrix, seed: int) -> Tensor:
    """The layer initialised anew: independent normal numbers of the same root mean square, (n, m), at least float32.

    The size matters to linear HSIC alone.
    """
    loaded = matrix.load()
    size = torch.linalg.vector_norm(loaded, dtype=torch.float64) / math.sqrt(math.prod(matrix.shape))
    numbers = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(_at_least_float32(loaded)) * float(size)


def _at_least_float32(loaded: Tensor) -> torch.dtype:
    return torch.promote_types(loaded.dtype, torch.float32)


@lru_cache(maxsize=1)  # all matrices of a repeat are turned alike
def random_rotation(n: int, seed: int) -> Tensor:
    """An orthogonal matrix (n, n) from the uniform (Haar) distribution, in float32.

    Q of a Gaussian matrix, with the signs that make the diagonal of R positive. On two cores it takes 0.04 s for
    n = 1024 and 1.1 s for 4096.

    Source: Mezzadri 2007 (arXiv math-ph/0609050).
    """
    orthogonal, triangle = torch.linalg.qr(torch.randn((n, n), generator=torch.Generator().manual_seed(seed)))
    rotation: Tensor = orthogonal * triangle.diagonal().sign()
    return rotation
