"""open_checkpoint: a MODEL argument -> its named neuron matrices. Reads headers only."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docs_sim.checkpoint.layout import Unnamed, name_tensors
from docs_sim.checkpoint.matrix import WeightMatrix
from docs_sim.checkpoint.matrix_names import canonical_name
from docs_sim.checkpoint.reader import read_files
from docs_sim.checkpoint.source import Source, find_source
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import InputError


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        source: where it lies.
        architecture: as its config or its GGUF header says; None if neither does.
        layout: the naming family that fitted; None if none did.
        tensors: everything that is stored, by name.
        unnamed: the tensors that are no neuron matrix, with the reason.
    """

    source: Source
    architecture: str | None
    layout: str | None
    tensors: dict[str, StoredTensor] = field(repr=False)
    unnamed: tuple[Unnamed, ...] = field(repr=False)
    _matrices: tuple[WeightMatrix, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """What to call the model in titles and file names."""
        return self.source.name

    @property
    def layers(self) -> list[int]:
        """The layer numbers that hold at least one matrix."""
        return sorted({matrix.layer for matrix in self._matrices if matrix.layer is not None})

    @property
    def dtype(self) -> str:
        """The storage type of most of the bytes."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            sizes[tensor.dtype] += tensor.bytes
        return sizes.most_common(1)[0][0] if sizes else "none"

    def describe(self) -> dict[str, Any]:
        """Name, source, revision and architecture, as results state them."""
        return {
            "name": self.name,
            "source": str(self.source.weights),
            "revision": self.source.revision,
            "architecture": self.architecture,
        }

    def matrices(self, name: str | None = None) -> list[WeightMatrix]:
        """All matrices, or those called ``name`` (an alias will do), by layer and expert.

        Raises:
            InputError: if the name is unknown or the checkpoint has no such matrix; the message lists what it has.
        """
        if name is None:
            return list(self._matrices)
        wanted = canonical_name(name)
        found = [matrix for matrix in self._matrices if matrix.name == wanted]
        if found:
            return found
        if not self._matrices:
            raise InputError(f"{self.name}: no tensor fits a known layout; `docs-sim inspect` lists the names")
        names = ", ".join(dict.fromkeys(matrix.name for matrix in self._matrices))
        raise InputError(f"{self.name}: has no {wanted}; it has {names}")


def open_checkpoint(model: str | Path, revision: str | None = None) -> Checkpoint:
    """Open a checkpoint without reading a weight.

    Args:
        model: a built-in name (``demo``, ``demo-tuned``, ``demo-moe``), a directory, a ``.safetensors`` or ``.gguf``
            file, a Hub id in the local cache (``org/name``) or a short alias (``llama-3.1-8b``).
        revision: branch, tag or commit of a Hub id.

    Raises:
        InputError: one line that says what is missing or not valid, and where.

    >>> import docs_sim
    >>> docs_sim.open_checkpoint("demo").matrices("mlp_up")[3].key
    'layers.3.mlp_up'
    """
    source = find_source(model, revision)
    tensors, architecture = read_files(source)
    naming = name_tensors(tensors)
    return Checkpoint(source, architecture, naming.layout, tensors, naming.unnamed, naming.matrices)
