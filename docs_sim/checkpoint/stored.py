"""One tensor as a file stores it, whatever the file's format: what the layouts name and the matrices load."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from docs_sim.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint file.

    Attributes:
        name: as the file has it.
        shape: torch order, (out, in) for the weight of a linear layer.
        dtype: the storage type as the format calls it, such as "BF16" or "Q4_K".
        path: the file.
        bytes: size on disk.
        refusal: why its numbers cannot be read, in words; None if they can.
        read: reads [begin, end) of the first dimension: a view of the mapped file where it holds these numbers, a copy
            where they are dequantized or an adapter is put on them. Imports torch.
        pieces: the tensors of the file that a quantized weight is made of; none if it is one itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    bytes: int
    refusal: str | None
    read: Callable[[int, int], "Tensor"] = field(repr=False, compare=False)
    pieces: tuple[str, ...] = ()

    def check_readable(self) -> None:
        """Find out before hours of work, not after.

        Raises:
            InputError: if the numbers of this tensor cannot be read.
        """
        if self.refusal is not None:
            raise InputError(
                f"{self.path}: {shown(self.name)} is {self.refusal}; use a float version of this checkpoint"
            )

    def load(self, begin: int = 0, end: int | None = None) -> "Tensor":
        """The tensor, or [begin, end) of its first dimension, without reading the rest where the format allows it.

        Raises:
            InputError: if its numbers cannot be read, or the file has changed.
        """
        self.check_readable()
        if not self.shape:
            return self.read(0, 1)
        return self.read(begin, self.shape[0] if end is None else end)
