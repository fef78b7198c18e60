"""open_checkpoint: a MODEL argument -> its named neuron matrices. Reads headers only."""

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from docs_sim.checkpoint.adapter import adapted
from docs_sim.checkpoint.layout import Layout
from docs_sim.checkpoint.layout_file import read_layout, unused_paths
from docs_sim.checkpoint.matrix import WeightMatrix
from docs_sim.checkpoint.matrix_names import canonical_name
from docs_sim.checkpoint.naming import closest_names, name_tensors
from docs_sim.checkpoint.reader import read_adapter, read_files
from docs_sim.checkpoint.source import Source, find_adapter, find_source, split_adapter
from docs_sim.checkpoint.stack import TOWERS
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.checkpoint.unnamed import UNKNOWN, VECTOR, Unnamed
from docs_sim.errors import InputError, shown

_DOWN = re.compile(r"\.lora_(embedding_)?A(\.|$)")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        source: where it lies.
        architecture: as its config or its GGUF header says; None if neither does.
        layout: the naming family that fitted; None if none did.
        tensors: everything that is stored, by name.
        unnamed: the tensors that are no neuron matrix, with the reason.
        towers: which parts of a multimodal model have layers: ``language``, ``vision``, ``audio``.
        tower: the part that was opened.
        layout_file: the user's file that says how the model names its tensors; None if a built-in layout does.
        unused_paths: the matrices inside layers that this file names and no tensor is.
        adapter_ranks: of each module that the adapter changes; empty without one.
    """

    source: Source
    architecture: str | None
    layout: str | None
    tensors: dict[str, StoredTensor] = field(repr=False)
    unnamed: tuple[Unnamed, ...] = field(repr=False)
    towers: tuple[str, ...]
    tower: str
    layout_file: Path | None
    unused_paths: tuple[str, ...]
    adapter_ranks: tuple[int, ...]
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
        if not self.layers:
            raise self._no_layers()
        names = ", ".join(dict.fromkeys(matrix.name for matrix in self._matrices))
        raise InputError(f"{self.name}: has no {wanted}; it has {names}")

    def _no_layers(self) -> InputError:
        """Why there is no matrix in a layer: one that contradicts its name, layers of another kind, unknown names."""
        doubted = next((one for one in self.unnamed if one.keys), None)
        known = next((one for one in self.unnamed if self.layout and one.reason not in (UNKNOWN, VECTOR)), None)
        if doubted is not None:
            return InputError(f"{self.name}: {doubted.name} cannot be used: {doubted.reason}")
        if known is not None:
            return InputError(f"{self.name}: no layer has a matrix to compare; {known.name} is {known.reason}")
        return InputError(
            f"{self.name}: no tensor fits a known layout{closest_names(self.tensors)}; "
            "`docs-sim inspect` lists the names, and --layout FILE.toml can describe them"
        )


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
        arrived: called with the bytes of safetensors files that arrive over the network, now or later, by any thread.

    Raises:
        InputError: one line that says what is missing or not valid, and where.

    >>> import docs_sim
    >>> docs_sim.open_checkpoint("demo").matrices("mlp_up")[3].key
    'layers.3.mlp_up'
    """
    if tower not in TOWERS:
        raise InputError(f"unknown tower {shown(tower)}; known: {', '.join(TOWERS)}")
    layout_file = None if layout is None else Path(layout)
    adapter, base = split_adapter(model)
    if adapter is not None and not (adapter and str(base)):
        raise InputError(f"{shown(str(model))}: a + joins ADAPTER+BASE, and one of the two is missing")
    source = find_source(base, revision, offline=offline, arrived=arrived)
    if adapter is not None:
        found = find_adapter(adapter, offline=offline, arrived=arrived)
        source = replace(source, name=f"{found.name}+{source.name}", adapter=found)
    with _no_collection():
        return _open(source, tower, layout_file)


def _open(source: Source, tower: str, layout_file: Path | None) -> Checkpoint:
    known = None if layout_file is None else [read_layout(layout_file)]
    tensors, config = read_files(source)
    ranks: tuple[int, ...] = ()
    if source.adapter is not None:
        pieces, adapter_config = read_adapter(source.adapter)
        tensors, ranks = adapted(tensors, pieces, adapter_config, source.adapter.name)
    elif any(_DOWN.search(name) for name in tensors) and all(map(_of_adapter, tensors)):
        raise InputError(f"{source.weights}: is a LoRA adapter; join it to its base: {source.weights}+BASE")
    naming = name_tensors(tensors, config, tower, known)
    if known and naming.layout is None:
        raise InputError(f"{source.name}: the layout {known[0].name} fits no layer; {_wanted(known[0])}")
    towers = tuple(one for one in naming.towers if one in TOWERS)
    if tower != "language" and all(matrix.layer is None for matrix in naming.matrices):
        raise InputError(f"{source.name}: has no {tower} tower; it has {', '.join(towers) or 'none'}")
    return Checkpoint(
        source=source,
        architecture=_architecture(config),
        layout=naming.layout,
        tensors=tensors,
        unnamed=naming.unnamed,
        towers=towers,
        tower=tower,
        layout_file=layout_file,
        unused_paths=unused_paths(known[0], tensors) if known else (),
        adapter_ranks=ranks,
        _matrices=naming.matrices,
    )


def _wanted(layout: Layout) -> str:
    """What a model of a layout would have, by an example."""
    example = f"{min(layout.containers)}.0.{next(iter(layout.stated), '...')}"
    return f"no tensor is called like {shown(example)}; `docs-sim inspect` without --layout lists the names"


def _of_adapter(name: str) -> bool:
    """Whether peft names a tensor of an adapter like this; models with LoRA inside have tensors of other names."""
    return name.startswith("base_model.model.")


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
