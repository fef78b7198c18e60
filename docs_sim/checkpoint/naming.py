"""Tensor names -> named neuron matrices.

A layout is chosen by the names that are there and checked by their shapes, so that a new model with familiar names
works on the day it appears; ``model_type`` tells apart only what has the same names and shapes and another meaning.
Each stack of layers (encoder, decoder, vision tower) is named by the layout that fits it: ``stack`` and below it
``layer``. What holds the stacks together is here.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from docs_sim.checkpoint.head_counts import head_count
from docs_sim.checkpoint.layer import Place
from docs_sim.checkpoint.layout import Layout
from docs_sim.checkpoint.layout_file import layouts
from docs_sim.checkpoint.matrix import Part, WeightMatrix
from docs_sim.checkpoint.matrix_names import ALIASES
from docs_sim.checkpoint.stack import chosen, name_stack, set_aside, tower_of
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.checkpoint.unnamed import UNKNOWN, VECTOR, Unnamed
from docs_sim.errors import shown

_LOOKED_AT = 50
_LONGEST_NAME = 1000  # matching takes time that grows with the length, and no model has longer names
_STAGE = re.compile(r"\.(\d{1,6})(?=\.|$)")
_POSITIONS = {name: position for position, name in enumerate(ALIASES)}


@dataclass(frozen=True)
class Naming:
    """What the layouts make of a checkpoint: the matrices, and every other tensor with the reason.

    Attributes:
        layout: of the main stack of layers.
        matrices: of the tower that was asked for, in order.
        unnamed: every other tensor.
        towers: which towers there are.
    """

    layout: str | None
    matrices: tuple[WeightMatrix, ...]
    unnamed: tuple[Unnamed, ...]
    towers: tuple[str, ...]


def name_tensors(
    tensors: Mapping[str, StoredTensor],
    config: Mapping[str, object] | None = None,
    tower: str = "language",
    known: Sequence[Layout] | None = None,
) -> Naming:
    """Name the tensors of a checkpoint.

    Args:
        tensors: by name.
        config: content of config.json, for the number of heads of some fused tensors.
        tower: ``language``, ``vision`` or ``audio``.
        known: the layouts to choose from; the built-in ones if None.
    """
    model_type = (config or {}).get("model_type")
    known = [one for one in known or layouts() if not one.model_types or model_type in one.model_types]
    places, unnamed, outside = _places(tensors, known)
    stacks = [
        name_stack(prefix, members, known, head_count(config or {}, tower_of(prefix)))
        for prefix, members in places.items()
    ]
    used = {stack.prefix: stack for stack in chosen(stacks, tower)}
    main = max(used.values(), key=lambda stack: stack.bytes, default=None)
    lead = main or next((stack for stack in stacks if stack.layout), None)  # state-space layers have no matrices
    named, rest = _outside(outside, lead.layout if lead else None)
    for stack in stacks:
        unnamed |= stack.unnamed if stack.prefix in used else set_aside(stack, main)
    inside = (matrix for stack in used.values() for matrix in stack.matrices)
    matrices, repeated = _without_duplicates([*inside, *named])
    unnamed |= rest | repeated
    return Naming(
        layout=lead.layout.name if lead and lead.layout else None,
        matrices=tuple(sorted(matrices, key=_order)),
        unnamed=tuple(unnamed[name] for name in tensors if name in unnamed),
        towers=tuple(dict.fromkeys(stack.tower for stack in stacks if stack.matrices)),
    )


def _places(
    tensors: Mapping[str, StoredTensor], known: Sequence[Layout]
) -> tuple[dict[str, list[Place]], dict[str, Unnamed], list[StoredTensor]]:
    """The tensors inside lists of layers, by prefix; those that fit nowhere; and those outside the layers."""
    names = sorted({name for layout in known for name in layout.containers}, key=lambda name: ("{" not in name, name))
    containers = "|".join(re.escape(name).replace(r"\{stage\}", r"\d{1,6}") for name in names)
    pattern = re.compile(rf"((?:.*?\.)??)({containers})\.(\d{{1,6}})\.(.+)")
    places: dict[str, list[Place]] = defaultdict(list)
    unnamed: dict[str, Unnamed] = {}
    outside: list[StoredTensor] = []
    for name, tensor in tensors.items():
        if len(name) > _LONGEST_NAME:
            unnamed[name] = Unnamed(name, f"its name has over {_LONGEST_NAME} characters")
            continue
        found = pattern.fullmatch(name.removesuffix(".weight"))
        if found is None:
            outside.append(tensor)
        else:
            prefix, container, layer, path = found.groups()
            places[prefix].append(_place(tensor, container, int(layer), path, staged=container not in names))
    return {prefix: _counted(members) for prefix, members in places.items()}, unnamed, outside


def _place(tensor: StoredTensor, container: str, layer: int, path: str, *, staged: bool) -> Place:
    """If ``staged``, ``layers.3.blocks`` is ``layers.{stage}.blocks`` and 3."""
    found = _STAGE.search(container) if staged else None
    if found is None:
        return Place(tensor, container, layer, path)
    return Place(tensor, _STAGE.sub(".{stage}", container), layer, path, int(found[1]))


def _counted(places: list[Place]) -> list[Place]:
    """Layers that are numbered within stages, numbered from the first stage to the last."""
    staged = sorted({(place.stage, place.layer) for place in places if place.stage is not None})
    if not staged:
        return places
    numbers = {number: position for position, number in enumerate(staged)}
    return [
        place if place.stage is None else replace(place, layer=numbers[place.stage, place.layer]) for place in places
    ]


def _outside(tensors: Iterable[StoredTensor], layout: Layout | None) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """Embedding and head."""
    named: list[WeightMatrix] = []
    unnamed: dict[str, Unnamed] = {}
    for tensor in tensors:
        name = _outside_name(tensor.name.removesuffix(".weight"), layout) if layout else None
        if name is not None and len(tensor.shape) == 2 and 0 not in tensor.shape:
            named.append(WeightMatrix(name, None, None, None, None, (Part(tensor),)))
        elif layout is None:
            unnamed[tensor.name] = Unnamed(tensor.name, UNKNOWN)
        elif len(tensor.shape) == 1:
            unnamed[tensor.name] = Unnamed(tensor.name, VECTOR)
        else:
            unnamed[tensor.name] = Unnamed(tensor.name, "outside the layers, neither embedding nor head")
    return named, unnamed


def _outside_name(plain: str, layout: Layout) -> str | None:
    parts = plain.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts)))
    return next((layout.outside[suffix] for suffix in suffixes if suffix in layout.outside), None)


def _without_duplicates(matrices: Iterable[WeightMatrix]) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    unique: dict[str, WeightMatrix] = {}
    repeated: dict[str, Unnamed] = {}
    for matrix in matrices:
        first = unique.setdefault(matrix.key, matrix)
        if first is not matrix:
            reason = f"a second {matrix.key}, after {first.tensors[0]}"
            repeated |= {name: Unnamed(name, reason, (matrix.key,)) for name in matrix.tensors}
    return list(unique.values()), repeated


def _order(matrix: WeightMatrix) -> tuple[object, ...]:
    number = matrix.expert if isinstance(matrix.expert, int) else 0
    outside, layer = matrix.layer is None, matrix.layer or 0
    position = _POSITIONS[matrix.name]
    return outside, matrix.stack or "", layer, matrix.block or "", position, matrix.expert == "shared", number


def closest_names(tensors: Iterable[str]) -> str:
    """What the names of a checkpoint that no layout knows look most like, for its error message."""
    known = {path: layout.name for layout in layouts() for path in layout.entries}
    paths = dict.fromkeys(re.split(r"\.\d+\.", name[:_LONGEST_NAME])[-1].removesuffix(".weight") for name in tensors)
    for path in list(paths)[:_LOOKED_AT]:
        near = difflib.get_close_matches(path, known, n=1)
        if near:
            return f" ({shown(path)} comes closest, to {shown(near[0])} of the {known[near[0]]} layout)"
    return ""
