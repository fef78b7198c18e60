"""A random rotation of n-dimensional space that costs n (a + b), not n^2: tables of a x b are turned."""

from functools import lru_cache
from math import isqrt, prod

import torch
from torch import Tensor

_MULTIPLE = 8  # what int8 products on CUDA ask of the length of a neuron


def rotated(rows: Tensor) -> Tensor:
    """``rows`` (k, n), with zeros up to ``rotated_length(n)``, all turned by the same rotation: cosines stay.

    What lay on a lattice or in a few dozen coordinates is afterwards spread nearly like a normal distribution. A
    single coordinate is spread over all, but with larger extremes than those of a normal distribution.
    """
    outer, inner = _factors(rows.shape[1], rows.device)
    tables = torch.nn.functional.pad(rows, (0, rotated_length(rows.shape[1]) - rows.shape[1]))
    tables = (tables.view(-1, len(inner)) @ inner).view(len(rows), len(outer), len(inner))
    return torch.matmul(outer, tables).view(len(rows), -1)


def rotated_length(n: int) -> int:
    """The length of a rotated neuron, at least n."""
    return prod(_table(n))


@lru_cache(maxsize=16)
def _table(n: int) -> tuple[int, int]:
    """The smallest table with room for n; of equal ones that which is closest to a square."""
    sides = range(isqrt(n), isqrt(n) // 2, -1)
    return min(((a, -(-n // (a * _MULTIPLE)) * _MULTIPLE) for a in sides), key=prod)


@lru_cache(maxsize=16)  # a few widths on a few devices
def _factors(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two random orthogonal matrices, (a, a) and (b, b), in float32; the same in every run."""
    generator = torch.Generator().manual_seed(0)
    outer, inner = (
        torch.linalg.qr(torch.randn(side, side, dtype=torch.float64, generator=generator)).Q for side in _table(n)
    )
    return outer.float().to(device), inner.float().to(device)
