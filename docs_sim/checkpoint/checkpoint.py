"""open_checkpoint: a MODEL argument -> its named neuron matrices. Reads headers only."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from docs_sim.checkpoint.adapter import adapted
from docs_sim.checkpoint.layout import Layout
from docs_sim.checkpoint.layout_file import read_layout
from docs_sim.checkpoint.matrix import WeightMatrix
from docs_sim.checkpoint.matrix_names import canonical_name
from docs_sim.checkpoint.naming import closest_names, name_tensors
from docs_sim.checkpoint.reader import read_adapter, read_files
from docs_sim.checkpoint.source import Source, find_adapter, find_source, split_adapter
from docs_sim.checkpoint.stack import TOWERS
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.checkpoint.unnamed import Unnamed
from docs_sim.errors import InputError, shown


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        source: where it lies.
        architecture: as its config or its GGUF header says; None if neither does.
        layout: the naming family that fitted; None if none did.
        tensors: everything that is stored, by name.
        unnamed: the tensors that are no neuron matrix, with the reason.
        towers: which parts of a multimodal model have layers: ``language``, ``vision``, ``audio``, ``mtp``.
    """

    source: Source
    architecture: str | None
    layout: str | None
    tensors: dict[str, StoredTensor] = field(repr=False)
    unnamed: tuple[Unnamed, ...] = field(repr=False)
    towers: tuple[str, ...]
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
            "adapter": None if self.source.adapter is None else str(self.source.adapter.weights),
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
        doubted = next((one for one in self.unnamed if one.keys), None)
        if not self._matrices and doubted is not None:
            raise InputError(f"{self.name}: {doubted.name} cannot be used: {doubted.reason}")
        if not self._matrices:
            raise InputError(
                f"{self.name}: no tensor fits a known layout{closest_names(self.tensors)}; "
                "`docs-sim inspect` lists the names, and --layout FILE.toml can describe them"
            )
        names = ", ".join(dict.fromkeys(matrix.name for matrix in self._matrices))
        raise InputError(f"{self.name}: has no {wanted}; it has {names}")


def open_checkpoint(
    model: str | Path,
    revision: str | None = None,
    *,
    offline: bool = False,
    tower: str = "language",
    layout: str | Path | None = None,
    arrived: Callable[[int], None] = lambda count: None,
) -> Checkpoint:
    """Open a checkpoint without reading a weight.

    Args:
        model: a built-in name (``demo``, ``demo-tuned``, ``demo-moe``), a directory, a ``.safetensors`` or ``.gguf``
            file, a Hub id (``org/name``), a short alias (``llama-3.1-8b``), or ``ADAPTER+BASE``.
        revision: branch, tag or commit of a Hub id; of the base, where there is an adapter.
        offline: whether to do without the network, which is used only for a Hub id that is not in the cache.
        tower: of a multimodal model: ``language``, ``vision`` or ``audio``.
        layout: a TOML file that says how this model names its tensors; the built-in layouts if None.
        arrived: is called with every number of bytes that arrives over the network, now or later, by any thread.

    Raises:
        InputError: one line that says what is missing or not valid, and where.

    >>> import docs_sim
    >>> docs_sim.open_checkpoint("demo").matrices("mlp_up")[3].key
    'layers.3.mlp_up'
    """
    if tower not in TOWERS:
        raise InputError(f"unknown tower {shown(tower)}; known: {', '.join(TOWERS)}")
    known = None if layout is None else [read_layout(Path(layout))]
    adapter, base = split_adapter(model)
    source = find_source(base, revision, offline=offline, arrived=arrived)
    if adapter is not None:
        found = find_adapter(adapter, offline=offline, arrived=arrived)
        source = replace(source, name=f"{found.name}+{source.name}", adapter=found)
    with _no_collection():
        return _open(source, tower, known)


def _open(source: Source, tower: str, known: Sequence[Layout] | None) -> Checkpoint:
    tensors, config = read_files(source)
    if source.adapter is not None:
        tensors = adapted(tensors, *read_adapter(source.adapter), source.adapter.name)
    naming = name_tensors(tensors, config, tower, known)
    if tower != "language" and not naming.matrices:
        raise InputError(f"{source.name}: has no {tower} tower; it has {', '.join(naming.towers) or 'none'}")
    return Checkpoint(
        source, _architecture(config), naming.layout, tensors, naming.unnamed, naming.towers, naming.matrices
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector looks through all objects again and again while many are made, and finds none to free.

    It costs half of the time that a checkpoint of 100,000 tensors takes.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _architecture(config: dict[str, Any]) -> str | None:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else config.get("model_type")
    return name if isinstance(name, str) else None
