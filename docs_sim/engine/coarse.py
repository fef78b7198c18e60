"""Unit neurons twice: coarse, for products that are fast, and fine, for the few products that matter in the end."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from docs_sim.engine.rotation import rotated, rotated_length
from docs_sim.indices.docs import unit_columns

BLOCK = 32  # the number of neurons is filled up with zeros to a multiple of it
_REACH = 4.0  # deviations of a coordinate that int8 spans: what lies beyond is rare and clipped
_LARGEST = 127
_FINE_LARGEST = 32767
_PER_NEURON = 3 * 4  # bytes of steps, noise and lean


@dataclass(frozen=True)
class CoarseNeurons:
    """The same unit neurons, rotated to length n', in two precisions; behind the first ``count`` come zeros, up to M.

    Attributes:
        rows: (M, n') int8; times ``unit`` they are the neurons.
        fine: (M, n') int16; times ``steps`` they are the neurons.
        steps: (M,) float32.
        noise: (M,) float32, standard deviation that the rounding to ``rows`` gives a cosine with any other vector.
        lean: (M,) float32, by how much the rounding to ``rows`` changes the cosine of the neuron with itself.
        count: neurons with a direction.
        unit: one step of ``rows``, the same for every matrix of this n.
        room: the bytes that hold all of these tensors.
    """

    rows: Tensor
    fine: Tensor
    steps: Tensor
    noise: Tensor
    lean: Tensor
    count: int
    unit: float
    room: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that have a row or an entry for each neuron."""
        return self.rows, self.fine, self.steps, self.noise, self.lean

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.room.nbytes

    @property
    def fine_error(self) -> float:
        """Standard deviation that the rounding to ``fine`` gives a cosine with any other vector, at most."""
        return float(self.steps.amax()) / math.sqrt(12)

    def part(self, start: int, stop: int) -> "CoarseNeurons":
        """Those from ``start`` on and before ``stop``, in the same memory."""
        rows, fine, steps, noise, lean = (tensor[start:stop] for tensor in self.tensors)
        count = max(0, min(self.count, stop) - start)
        return CoarseNeurons(rows, fine, steps, noise, lean, count, self.unit, self.room)


def coarse_neurons(matrix: Tensor, device: torch.device, room: Tensor | None = None) -> CoarseNeurons:
    """The non-zero columns of ``matrix`` (n, m), at length 1.

    Args:
        matrix: as stored.
        device: where to keep them.
        room: of neurons that are not needed any more, to be used again if it has the right size.

    Raises:
        ValueError: if an entry is NaN or infinite, or every column is zero.
    """
    n, m = matrix.shape
    if room is None or room.nbytes != coarse_bytes(n, m):
        room = torch.empty(coarse_bytes(n, m), dtype=torch.uint8, device=device)
    length, places = rotated_length(n), padded(m)
    rows, fine, steps, noise, lean = _tensors_in(room, places, length)
    unit = _REACH / (_LARGEST * math.sqrt(length))
    filled = 0
    for chunk in unit_columns(matrix, torch.float32, device):
        exact = rotated(chunk)
        where = slice(filled, filled + len(exact))
        steps[where] = exact.abs().amax(1) / _FINE_LARGEST
        fine[where] = (exact / steps[where].unsqueeze(1)).round_()
        coarse = (exact / unit).round_().clamp_(-_LARGEST, _LARGEST)
        rows[where] = coarse
        errors = coarse.mul_(-unit).add_(exact)
        noise[where] = torch.linalg.vector_norm(errors, dim=1) / math.sqrt(length)
        lean[where] = torch.linalg.vecdot(errors, exact).abs()
        filled += len(exact)
    if filled == 0:
        raise ValueError("holds only zero columns, which have no direction")
    neurons = CoarseNeurons(rows, fine, steps, noise, lean, filled, unit, room).part(0, padded(filled))
    for tensor in neurons.tensors:
        tensor[filled:] = 0
    return neurons


def _tensors_in(room: Tensor, places: int, length: int) -> tuple[Tensor, ...]:
    """Views of the bytes of ``room``, as many as ``coarse_bytes``: rows, fine, steps, noise, lean."""
    per_neuron, fine, rows = room.split([_PER_NEURON * places, 2 * length * places, length * places])
    return (
        rows.view(torch.int8).view(places, length),
        fine.view(torch.int16).view(places, length),
        *per_neuron.view(torch.float32).view(-1, places),
    )


def padded(m: int) -> int:
    """The number of neurons with the zeros behind them."""
    return -(-m // BLOCK) * BLOCK


def coarse_bytes(n: int, m: int) -> int:
    """Memory that the coarse form of a matrix (n, m) takes."""
    return (_PER_NEURON + 3 * rotated_length(n)) * padded(m)


def same_coarse_neurons(x: CoarseNeurons, y: CoarseNeurons) -> bool:
    """Whether two matrices hold the same neurons in the same order, as far as int16 tells."""
    return x.steps.shape == y.steps.shape and torch.equal(x.steps, y.steps) and torch.equal(x.fine, y.fine)
