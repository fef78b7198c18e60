"""The parts that indices keep of each matrix: prepared once, in memory up to a budget, beyond it in temporary files."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from docs_sim.engine.device import free_memory, with_float64
from docs_sim.engine.inputs import check_comparable
from docs_sim.engine.parallel import map_together
from docs_sim.engine.prepared import LoadableMatrix, naming_tensors
from docs_sim.errors import InputError
from docs_sim.indices.centred import Centred
from docs_sim.indices.choices import SVCCA_VARIANCE
from docs_sim.indices.factoring import Factoring
from docs_sim.indices.precision import full_float32
from docs_sim.indices.table import INDICES


@dataclass(frozen=True)
class MatrixParts:
    """What is kept of one matrix.

    Attributes:
        tensors: by name, on the CPU; of the indices that are defined for it.
        undefined: index -> why it has no value for this matrix.
        fixed: the indices whose value does not depend on how this matrix lies to its partner.
    """

    tensors: Mapping[str, Tensor]
    undefined: Mapping[str, str]
    fixed: frozenset[str]


@contextmanager
def prepared_parts(
    matrices: Sequence[LoadableMatrix],
    indices: Sequence[str],
    *,
    devices: Sequence[torch.device],
    memory_budget: int | None = None,
    svcca_variance: float = SVCCA_VARIANCE,
    progress: Callable[[int], None] = lambda matrices: None,
) -> Iterator[list[MatrixParts]]:
    """The parts of ``matrices`` for all ``indices``; each is loaded and factorized once.

    Args:
        matrices: with the same n.
        indices: those that are computed from parts.
        devices: share the matrices.
        memory_budget: bytes for parts; what is beyond it lies in a temporary directory until the end of the context.
        svcca_variance: share of the variance that the leading directions hold.
        progress: called with 1 after each matrix.

    Raises:
        InputError: if the matrices do not fit together, one holds NaN or infinity, or the directory is full.
    """
    check_comparable(matrices, memory_budget)
    budget = memory_budget or free_memory(torch.device("cpu")) // 2
    rules = {index: factoring(index) for index in indices}
    with tempfile.TemporaryDirectory(prefix="docs-sim-") as directory, full_float32():
        keeper = _Keeper(Path(directory), budget)

        def prepare(matrix: LoadableMatrix, device: torch.device) -> MatrixParts:
            return keeper.keep(_prepare(matrix, rules, device, svcca_variance))

        yield map_together(prepare, matrices, with_float64(devices), progress)


def factoring(index: str) -> Factoring:
    """How an index is computed from parts."""
    rule = INDICES[index].rule
    if not isinstance(rule, Factoring):
        raise TypeError(f"{index} is not computed from parts")
    return rule


def _prepare(
    matrix: LoadableMatrix, rules: Mapping[str, Factoring], device: torch.device, svcca_variance: float
) -> MatrixParts:
    with naming_tensors(matrix):
        centred = Centred(matrix.load().to(device), svcca_variance)
    undefined = {name: reason for name, rule in rules.items() if (reason := rule.undefined(centred)) is not None}
    defined = {name: rule for name, rule in rules.items() if name not in undefined}
    names = dict.fromkeys(part for rule in defined.values() for part in rule.parts)
    return MatrixParts(
        {name: getattr(centred, name).cpu() for name in names},
        undefined,
        frozenset(name for name, rule in defined.items() if rule.fixed(centred)),
    )


class _Keeper:
    """Keeps tensors in memory until ``budget`` bytes are full, and others in files that are mapped.

    Args:
        directory: for the files.
        budget: bytes.
    """

    def __init__(self, directory: Path, budget: int) -> None:
        self._directory = directory
        self._left = budget
        self._files = 0
        self._lock = threading.Lock()  # devices prepare matrices at the same time

    def keep(self, parts: MatrixParts) -> MatrixParts:
        size = sum(tensor.nbytes for tensor in parts.tensors.values())
        with self._lock:
            if size <= self._left:
                self._left -= size
                return parts
            mapped = {name: self._mapped(tensor) for name, tensor in parts.tensors.items()}
        return MatrixParts(mapped, parts.undefined, parts.fixed)

    def _mapped(self, tensor: Tensor) -> Tensor:
        self._files += 1
        path = self._directory / f"{self._files}.npy"
        try:
            np.save(path, tensor.numpy())
        except OSError as error:
            raise InputError(
                f"{self._directory.parent}: is too small for what does not fit into the memory budget "
                f"({error.strerror or error}); point TMPDIR at a larger disk, or raise --memory-budget"
            ) from error
        return torch.from_numpy(np.load(path, mmap_mode="c"))
