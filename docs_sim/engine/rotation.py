"""A random rotation of n-dimensional space that costs n (a + b), not n^2: n = a b, and tables of a x b are turned."""

from functools import lru_cache
from math import isqrt

import torch
from torch import Tensor


def rotated(rows: Tensor) -> Tensor:
    """``rows`` (k, n), all turned by the same rotation: cosines stay, and no coordinate is special any more.

    What was concentrated in few coordinates, or lay on a lattice, is afterwards spread like a normal distribution.
    """
    outer, inner = _factors(rows.shape[1], rows.device)
    tables = (rows.reshape(-1, len(inner)) @ inner).view(len(rows), len(outer), len(inner))
    return torch.matmul(outer, tables).view(rows.shape)


@lru_cache(maxsize=16)  # a few widths on a few devices
def _factors(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two random orthogonal matrices, (a, a) and (b, b), in float32; the same in every run."""
    a = next(divisor for divisor in range(isqrt(n), 0, -1) if n % divisor == 0)
    generator = torch.Generator().manual_seed(0)
    turns = [
        torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator)).Q for size in (a, n // a)
    ]
    return turns[0].float().to(device), turns[1].float().to(device)
