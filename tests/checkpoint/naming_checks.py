"""What every test of naming checks: that all tensors are accounted for, and that matrices are what they are called."""

import hashlib
import math
from collections import defaultdict
from dataclasses import replace

import torch

from docs_sim.checkpoint import Checkpoint
from docs_sim.checkpoint.matrix import Part, WeightMatrix

AS_STORED = ("attn_o", "mlp_down", "cross_o")  # of the truth's [out, in]; the other neuron matrices are its transpose


def out_in(matrix: WeightMatrix) -> torch.Tensor:
    """A loaded matrix in the orientation of the truth."""
    loaded = matrix.load()
    assert loaded.shape == matrix.shape
    return loaded if matrix.name in AS_STORED else loaded.T


def sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def check_accounts(checkpoint: Checkpoint) -> None:
    """Every tensor is in a matrix or unnamed with a reason, never both; and matrices share no row of a tensor."""
    unnamed = [one.name for one in checkpoint.unnamed]
    named = {name for matrix in checkpoint.matrices() for name in matrix.tensors}
    assert sorted([*unnamed, *named]) == sorted(checkpoint.tensors)
    assert all(one.reason for one in checkpoint.unnamed)
    places = defaultdict(set)  # a layer that is tied to another uses the same part
    for matrix in checkpoint.matrices():
        for part in matrix.parts:
            places[part.tensor.name].add(part)
    for name, parts in places.items():
        shape = checkpoint.tensors[name].shape
        index = torch.arange(math.prod(shape)).view(shape)
        held = torch.cat([part_of(part, index).flatten() for part in parts])
        assert len(held.unique()) == len(held), f"two matrices share numbers of {name}"
    keys = [matrix.key for matrix in checkpoint.matrices()]
    assert len(keys) == len(set(keys))


def part_of(part: Part, whole: torch.Tensor) -> torch.Tensor:
    """What a part takes, of another tensor of the same shape."""
    tensor = replace(part.tensor, read=lambda begin, end: whole[begin:end], refusal=None)
    return replace(part, tensor=tensor).load()


def reasons(checkpoint: Checkpoint) -> dict[str, str]:
    return {one.name: one.reason for one in checkpoint.unnamed}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()
