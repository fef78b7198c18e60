"""Matrices in memory, in the form in which the engine takes those of a checkpoint."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Matrix:
    """A neuron matrix in memory, stored as torch stores the weight of a linear layer."""

    key: str
    weight: torch.Tensor
    tensors: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""
        neurons, width = self.weight.shape
        return width, neurons

    def load(self) -> torch.Tensor:
        """The (n, m) view."""
        return self.weight.T
