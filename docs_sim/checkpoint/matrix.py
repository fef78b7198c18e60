"""WeightMatrix: one named neuron matrix of a checkpoint, loaded when asked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from docs_sim.checkpoint.matrix_names import WRITERS
from docs_sim.checkpoint.rows import Rows
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A stored tensor, or some of it: one of the experts that it stacks, some of the output rows.

    Attributes:
        tensor: the tensor in the file.
        in_out: whether the file stores (in, out), as GPT-2's Conv1D does.
        rows: the output rows that belong to the matrix; all of them if None.
        expert: which of the ``experts`` that lie along the first dimension; None if there are none.
        experts: their number.
    """

    tensor: StoredTensor
    in_out: bool = False
    rows: Rows | None = None
    expert: int | None = None
    experts: int = 1

    @property
    def whole(self) -> tuple[int, int]:
        """The shape (out, in) before rows are chosen."""
        first, *others = self.tensor.shape
        if self.expert is not None:
            first //= self.experts
            if len(others) > 1:
                first, *others = others
        size = prod(others)
        return (size, first) if self.in_out else (first, size)

    @property
    def out_in(self) -> tuple[int, int]:
        """The shape (out, in) of the part."""
        out, inputs = self.whole
        return (out if self.rows is None else len(self.rows)), inputs

    def load(self) -> "Tensor":
        """The (out, in) tensor: a view of the file, or a copy of interleaved rows. Other experts are not read."""
        rows = self.rows
        if self.expert is not None:
            each = self.tensor.shape[0] // self.experts
            stored = self.tensor.load(self.expert * each, (self.expert + 1) * each)
            stored = stored[0] if stored.dim() > 2 else stored
        elif rows is not None and rows.count == 1 and not self.in_out:
            stored, rows = self.tensor.load(rows.start, rows.start + rows.size), None
        else:
            stored = self.tensor.load()
        stored = stored.flatten(1)
        oriented = stored.T if self.in_out else stored
        return oriented if rows is None else rows.of(oriented)


@dataclass(frozen=True)
class WeightMatrix:
    """A neuron matrix (n, m): columns are neurons, n is the width of the space that they read or write.

    Attributes:
        name: canonical name, such as "mlp_up".
        layer: layer number, None outside the layers.
        expert: number of the expert, "shared", or None.
        block: what of the layer it belongs to, where that is not the usual: "sub0", "attn_experts", "shared_experts".
        stack: "encoder" or "decoder" where a model has both, else None.
        parts: what is stored of it, joined along the neurons.
    """

    name: str
    layer: int | None
    expert: int | str | None
    block: str | None
    stack: str | None
    parts: tuple[Part, ...]

    @property
    def key(self) -> str:
        """``layers.3.mlp_up``, ``layers.3.experts.0.mlp_up``, ``layers.3.shared.mlp_up``, ``embed``."""
        stack = [] if self.stack is None else [self.stack]
        layer = [] if self.layer is None else ["layers", str(self.layer)]
        block = [] if self.block is None else [self.block]
        if isinstance(self.expert, int):
            block = [self.block or "experts", str(self.expert)]
        elif self.expert is not None:
            block = [self.expert]
        return ".".join([*stack, *layer, *block, self.name])

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""
        shapes = [part.out_in if self.name in WRITERS else part.out_in[::-1] for part in self.parts]
        return shapes[0][0], sum(neurons for _, neurons in shapes)

    @property
    def dtype(self) -> str:
        """The storage type as the file's format calls it, such as "BF16" or "Q4_1"."""
        return "+".join(dict.fromkeys(part.tensor.dtype for part in self.parts))

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the stored tensors."""
        return tuple(dict.fromkeys(part.tensor.name for part in self.parts))

    def check_readable(self) -> None:
        """Find out whether ``load`` would refuse, without reading.

        Raises:
            InputError: if a part is stored in a way whose numbers cannot be read.
        """
        for part in self.parts:
            part.tensor.check_readable()

    def load(self) -> "Tensor":
        """The matrix (n, m): a view of the mapped file, or a copy of what lies in pieces, is packed, or is adapted.

        Raises:
            InputError: if the file has changed or holds a storage type that is not dequantized.
        """
        loaded = [part.load() if self.name in WRITERS else part.load().T for part in self.parts]
        if len(loaded) == 1:
            return loaded[0]
        import torch

        return torch.cat([matrix.T for matrix in loaded]).T


def concatenate(matrices: Sequence[WeightMatrix]) -> WeightMatrix:
    """The neurons of several matrices of one layer as one matrix: all experts side by side."""
    widths = {matrix.shape[0] for matrix in matrices}
    if len(widths) > 1:
        raise InputError(f"{matrices[0].key} and its siblings differ in n: {sorted(widths)}")
    return replace(matrices[0], expert=None, parts=tuple(part for matrix in matrices for part in matrix.parts))
