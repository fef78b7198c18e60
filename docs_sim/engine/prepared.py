"""Loaded and normalised matrices, kept up to a memory budget; the one that is needed last goes first."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from docs_sim.engine.coarse import CoarseNeurons, coarse_bytes, coarse_neurons
from docs_sim.errors import InputError
from docs_sim.indices.docs import unit_neurons


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


@dataclass(frozen=True)
class ExactNeurons:
    """Unit neurons (m, n) in float32."""

    rows: Tensor

    @property
    def count(self) -> int:
        """Neurons with a direction."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self.rows.nbytes


PreparedNeurons = CoarseNeurons | ExactNeurons
EXACT = torch.float32


class PreparedMatrices:
    """Unit neurons of a list of matrices on one device, in at most ``budget`` bytes (but always room for two).

    Args:
        matrices: what to load from.
        device: where the unit neurons are kept.
        budget: bytes.
        plan: the pairs in the order in which they will be compared: what is needed last is dropped first.
    """

    def __init__(
        self, matrices: Sequence[LoadableMatrix], device: torch.device, budget: int, plan: Sequence[tuple[int, int]]
    ) -> None:
        self._matrices = matrices
        self._device = device
        self._budget = budget
        self._steps: dict[int, list[int]] = defaultdict(list)
        for step, pair in enumerate(plan):
            for index in pair:
                self._steps[index].append(step)
        self._kept: dict[tuple[int, torch.dtype], PreparedNeurons] = {}
        self.most_neurons = max((matrix.shape[1] for matrix in matrices), default=1)
        self.loads = 0

    def pair(self, pair: tuple[int, int], dtype: torch.dtype, step: int) -> tuple[PreparedNeurons, PreparedNeurons]:
        """The unit neurons of two matrices, in float32 or coarsely in ``dtype``, at ``step`` of the plan.

        Raises:
            InputError: naming the tensor, if one holds NaN or infinity or only zero columns.
        """
        first, second = ((index, dtype) for index in pair)
        for wanted, partner in ((first, second), (second, first)):
            if wanted not in self._kept:
                dropped = self._make_room(unit_bytes(self._matrices[wanted[0]], dtype), {partner}, step)
                self._kept[wanted] = self._load(*wanted, dropped)
        return self._kept[first], self._kept[second]

    def _load(self, index: int, dtype: torch.dtype, dropped: PreparedNeurons | None) -> PreparedNeurons:
        """Into the room of what was ``dropped``, where it has the right size: freed memory falls apart."""
        matrix = self._matrices[index]
        loaded = matrix.load()
        self.loads += 1
        with naming_tensors(matrix):
            if dtype != EXACT:
                room = dropped.room if isinstance(dropped, CoarseNeurons) else None
                return coarse_neurons(loaded, self._device, room)
            return ExactNeurons(unit_neurons(loaded, dtype, self._device))

    def _make_room(self, needed: int, partners: set[tuple[int, torch.dtype]], step: int) -> PreparedNeurons | None:
        """Drop what is needed last until there is room; the last one dropped."""
        dropped = None
        used = sum(neurons.nbytes for neurons in self._kept.values())
        while used + needed > self._budget and self._kept.keys() - partners:
            least_needed = max(self._kept.keys() - partners, key=lambda key: self._next_step(key, step))
            dropped = self._kept.pop(least_needed)
            used -= dropped.nbytes
        return dropped

    def _next_step(self, key: tuple[int, torch.dtype], step: int) -> float:
        """When it is needed again: a float32 copy of what is there coarsely was made for one pair, so never."""
        index, dtype = key
        if dtype == EXACT and any(kept == index and other != EXACT for kept, other in self._kept):
            return float("inf")
        steps = self._steps[index]
        position = bisect_left(steps, step)
        return steps[position] if position < len(steps) else float("inf")


@contextmanager
def naming_tensors(matrix: LoadableMatrix) -> Iterator[None]:
    """Say of an error which matrix it is of, and what is stored under it.

    Raises:
        InputError: for a ``ValueError`` inside.
    """
    try:
        yield
    except InputError:  # of the reader, which names the tensor
        raise
    except ValueError as error:
        raise InputError(f"{matrix.key} ({', '.join(matrix.tensors[:3])}) {error}") from error


def unit_bytes(matrix: LoadableMatrix, dtype: torch.dtype) -> int:
    """Size of a prepared matrix."""
    n, m = matrix.shape
    return n * m * EXACT.itemsize if dtype == EXACT else coarse_bytes(n, m)
