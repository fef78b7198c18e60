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
        read: reads the tensor; memory-mapped where the format allows it. Imports torch.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: Path
    bytes: int
    refusal: str | None
    read: Callable[[], "Tensor"] = field(repr=False, compare=False)

    def check_readable(self) -> None:
        """Find out before hours of work, not after.

        Raises:
            InputError: if the numbers of this tensor cannot be read.
        """
        if self.refusal is not None:
            raise InputError(
                f"{self.path}: {shown(self.name)} is {self.refusal}; use a float version of this checkpoint"
            )
