"""Loaded and normalised matrices, kept up to a memory budget; the least recently used goes first."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from docs_sim.errors import InputError
from docs_sim.indices.docs import UnitNeurons, unit_neurons


class LoadableMatrix(Protocol):
    """What the engine needs to know of a neuron matrix; a ``WeightMatrix`` is one."""

    @property
    def key(self) -> str:
        """For messages."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """For messages: what is stored under which names."""

    def load(self) -> Tensor:
        """The matrix (n, m)."""


class PreparedMatrices:
    """Unit neurons of a list of matrices on one device, in at most ``budget`` bytes (but always room for two)."""

    def __init__(self, matrices: Sequence[LoadableMatrix], device: torch.device, budget: int) -> None:
        self._matrices = matrices
        self._device = device
        self._budget = budget
        self._kept: OrderedDict[tuple[int, torch.dtype], UnitNeurons] = OrderedDict()
        self.loads = 0

    def get(self, index: int, dtype: torch.dtype) -> UnitNeurons:
        """The unit neurons of matrix ``index``, rounded to ``dtype``.

        Raises:
            InputError: naming the tensor, if it holds NaN or infinity or only zero columns.
        """
        if (index, dtype) in self._kept:
            self._kept.move_to_end((index, dtype))
            return self._kept[index, dtype]
        matrix = self._matrices[index]
        self._make_room(unit_bytes(matrix, dtype))
        try:
            neurons = unit_neurons(matrix.load(), dtype, self._device)
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{matrix.key} ({', '.join(matrix.tensors[:3])}) {error}") from error
        self.loads += 1
        self._kept[index, dtype] = neurons
        return neurons

    def _make_room(self, needed: int) -> None:
        # The newest stays whatever its size: it is the partner of the matrix that is about to be loaded.
        while len(self._kept) > 1 and self._bytes() + needed > self._budget:
            self._kept.popitem(last=False)

    def _bytes(self) -> int:
        return sum(neurons.rows.nbytes for neurons in self._kept.values())


def unit_bytes(matrix: LoadableMatrix, dtype: torch.dtype) -> int:
    """Size of a prepared matrix."""
    return matrix.shape[0] * matrix.shape[1] * dtype.itemsize
