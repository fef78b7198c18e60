"""Unit neurons twice: coarse, for products that are fast, and fine, for the few products that matter in the end."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from docs_sim.engine.rotation import rotated
from docs_sim.indices.docs import unit_columns

MOST_CLIPPED = 0.05  # beyond it a neuron's products are over ten times as noisy as the others'
_REACH = 4.0  # deviations of a coordinate that int8 spans: what lies beyond is rare and clipped
_LARGEST = 127
_FINE_LARGEST = 32767
_PAIRS = 512  # products of pairs at once: enough for all threads, little enough for the processor's cache


@dataclass(frozen=True)
class CoarseNeurons:
    """The same m unit neurons, rotated, in two precisions.

    Attributes:
        rows: (m, n) int8 or bfloat16; times ``unit`` they are the neurons.
        unit: one step of ``rows``, the same for every matrix of this n.
        fine: (m, n) int16; times ``steps`` they are the neurons.
        steps: (m,) float32.
        room: the bytes that hold all of these tensors.
        clipped: the largest share of a neuron's square length that ``rows`` lack.
    """

    rows: Tensor
    unit: float
    fine: Tensor
    steps: Tensor
    room: Tensor
    clipped: float

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.room.nbytes


def coarse_neurons(
    matrix: Tensor, dtype: torch.dtype, device: torch.device, room: Tensor | None = None
) -> CoarseNeurons:
    """The non-zero columns of ``matrix`` (n, m), at length 1, with ``rows`` in ``dtype``: int8 or bfloat16.

    Args:
        matrix: as stored.
        dtype: of ``rows``.
        device: where to keep them.
        room: of neurons that are not needed any more, to be used again if it has the right size.

    Raises:
        ValueError: if an entry is NaN or infinite, or every column is zero.
    """
    n, m = matrix.shape
    unit = _REACH / (_LARGEST * math.sqrt(n)) if dtype == torch.int8 else 1.0
    if room is None or room.nbytes != coarse_bytes(n, m, dtype):
        room = torch.empty(coarse_bytes(n, m, dtype), dtype=torch.uint8, device=device)
    steps = room[: 4 * m].view(torch.float32)
    fine = room[4 * m : (4 + 2 * n) * m].view(torch.int16).view(m, n)
    rows = room[(4 + 2 * n) * m :].view(dtype).view(m, n)
    filled, least_length = 0, 1.0
    for chunk in unit_columns(matrix, torch.float32, device):
        exact = rotated(chunk)
        where = slice(filled, filled + len(exact))
        steps[where] = exact.abs().amax(1) / _FINE_LARGEST
        fine[where] = (exact / steps[where].unsqueeze(1)).round_()
        if dtype == torch.int8:
            exact = exact.div_(unit).round_().clamp_(-_LARGEST, _LARGEST)
            least_length = min(least_length, float(torch.linalg.vector_norm(exact, dim=1).amin()) * unit)
        rows[where] = exact
        filled += len(exact)
    if filled == 0:
        raise ValueError("holds only zero columns, which have no direction")
    return CoarseNeurons(rows[:filled], unit, fine[:filled], steps[:filled], room, 1 - least_length**2)


def coarse_bytes(n: int, m: int, dtype: torch.dtype) -> int:
    """Memory that the coarse form of a matrix (n, m) takes."""
    return (4 + (2 + dtype.itemsize) * n) * m


def fine_cosines(x: CoarseNeurons, of_x: Tensor, y: CoarseNeurons, of_y: Tensor) -> Tensor:
    """|cosine| of pairs of neurons, number ``of_x[k]`` of ``x`` and ``of_y[k]`` of ``y``, in float32."""
    cosines = torch.empty(len(of_x), dtype=torch.float32, device=x.fine.device)
    gathered = torch.empty((_PAIRS, x.fine.shape[1]), dtype=torch.int16, device=x.fine.device)
    left, right = (torch.empty_like(gathered, dtype=torch.float32) for _ in range(2))
    for some_x, some_y, into in zip(of_x.split(_PAIRS), of_y.split(_PAIRS), cosines.split(_PAIRS), strict=True):
        count = len(into)
        left[:count] = torch.index_select(x.fine, 0, some_x, out=gathered[:count])
        right[:count] = torch.index_select(y.fine, 0, some_y, out=gathered[:count])
        torch.linalg.vecdot(left[:count], right[:count], out=into)
    return cosines.mul_(x.steps[of_x]).mul_(y.steps[of_y]).abs_().clamp_(max=1)


def fine_error(x: CoarseNeurons, y: CoarseNeurons) -> float:
    """Standard error of a fine cosine: half of the rounding of each side meets a unit neuron of the other."""
    return math.sqrt(float(x.steps.square().mean() + y.steps.square().mean()) / 12)


def same_coarse_neurons(x: CoarseNeurons, y: CoarseNeurons) -> bool:
    """Whether two matrices hold the same neurons in the same order, as far as int16 tells."""
    return x.steps.shape == y.steps.shape and torch.equal(x.steps, y.steps) and torch.equal(x.fine, y.fine)
