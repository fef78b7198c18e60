"""Neuron matrices that live in memory, for the engine."""

from dataclasses import dataclass

import torch


@dataclass
class InMemory:
    """A neuron matrix (n, m) that counts how often it is loaded."""

    matrix: torch.Tensor
    key: str = "layers.0.mlp_up"
    tensors: tuple[str, ...] = ("model.layers.0.mlp.up_proj.weight",)
    loads: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        n, m = self.matrix.shape
        return n, m

    def load(self) -> torch.Tensor:
        self.loads += 1
        return self.matrix
