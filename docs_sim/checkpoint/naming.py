"""Tensor names -> named neuron matrices.

A layout is chosen by the names that are there and checked by their shapes, never by ``model_type``, so that a new
model with familiar names works on the day it appears. Each stack of layers (encoder, decoder, vision tower) is named
by the layout that fits it.
"""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from docs_sim.checkpoint.head_counts import head_count
from docs_sim.checkpoint.layout import Entry, Layout, Meaning, layouts
from docs_sim.checkpoint.matrix import Part, WeightMatrix
from docs_sim.checkpoint.matrix_names import ALIASES, WRITERS
from docs_sim.checkpoint.rows import RULES, Rows, Sizes
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.errors import shown

UNKNOWN = "no layout knows names like this"
_VECTOR = "a vector: norm or bias"
_LOOKED_AT = 50
_MOST_EXPERTS = 10_000
_LONGEST_NAME = 1000  # matching takes time that grows with the length, and no model has longer names
_STACK = re.compile(r"(.*\.|)(encoder|decoder|enc|dec|H_module|L_module)\.")
_STACK_NAMES = {"enc": "encoder", "dec": "decoder", "H_module": "H", "L_module": "L"}
_TOWERS = {
    "vision": re.compile(r"vision|visual|image|(^|[._])vit([._]|$)|patch", re.IGNORECASE),
    "audio": re.compile(r"audio|speech|whisper|wav", re.IGNORECASE),
    "mtp": re.compile(r"(^|\.)mtp\."),
}
TOWERS = ("language", "vision", "audio")
_BY_HEADS = ("key groups", "head by head")
_POSITIONS = {name: position for position, name in enumerate(ALIASES)}

# What must agree inside a layer, as (matrix, 0 = out or 1 = in) pairs: neurons are read as they are written, and
# attention and MLP write into the same space. GPT-2 and GPT-BigCode share names and differ in orientation: this tells.
_Relation = tuple[tuple[str, int], tuple[str, int]]
_RELATIONS: tuple[_Relation, ...] = (
    (("mlp_up", 0), ("mlp_down", 1)),
    (("mlp_gate", 0), ("mlp_down", 1)),
    (("mlp_up", 1), ("mlp_down", 0)),
    (("mlp_gate", 1), ("mlp_down", 0)),
    (("attn_q", 1), ("attn_k", 1)),
    (("attn_q", 1), ("attn_v", 1)),
    (("attn_o", 0), ("mlp_down", 0)),
)


@dataclass(frozen=True)
class Unnamed:
    """A tensor that is not used as a neuron matrix, and why.

    Attributes:
        name: of the tensor.
        reason: in words.
        keys: of the matrices that its name means, if the layout knows the name but the shapes speak against it.
    """

    name: str
    reason: str
    keys: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class _Place:
    """Where a tensor stands in a list of layers: ``container``.``layer``.``path``."""

    tensor: StoredTensor
    container: str
    layer: int
    path: str


@dataclass(frozen=True)
class _Stack:
    """One list of layers, named; ``layout`` is None if none knows it."""

    prefix: str
    layout: Layout | None
    matrices: list[WeightMatrix]
    unnamed: dict[str, Unnamed]


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
    known = layouts() if known is None else known
    places, unnamed, outside = _places(tensors, known)
    stacks = [
        _name_stack(prefix, members, known, head_count(config or {}, _tower(prefix)))
        for prefix, members in places.items()
    ]
    chosen = _chosen(stacks, tower)
    main = max(chosen, key=_bytes, default=None)
    named, rest = _outside(outside, main.layout if main else None)
    for stack in stacks:
        unnamed |= stack.unnamed if stack in chosen else _set_aside(stack, main)
    matrices, repeated = _without_duplicates([*(matrix for stack in chosen for matrix in stack.matrices), *named])
    unnamed |= rest | repeated
    return Naming(
        layout=main.layout.name if main and main.layout else None,
        matrices=tuple(sorted(matrices, key=_order)),
        unnamed=tuple(unnamed[name] for name in tensors if name in unnamed),
        towers=tuple(dict.fromkeys(_tower(stack.prefix) for stack in stacks if stack.matrices)),
    )


def _places(
    tensors: Mapping[str, StoredTensor], known: Sequence[Layout]
) -> tuple[dict[str, list[_Place]], dict[str, Unnamed], list[StoredTensor]]:
    """The tensors inside lists of layers, by prefix; those that fit nowhere; and those outside the layers."""
    containers = "|".join(sorted({re.escape(name) for layout in known for name in layout.containers}))
    pattern = re.compile(rf"((?:.*?\.)??)({containers})\.(\d{{1,6}})\.(.+)")
    places: dict[str, list[_Place]] = defaultdict(list)
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
            places[prefix].append(_Place(tensor, container, int(layer), path))
    return places, unnamed, outside


def _tower(prefix: str) -> str:
    """Which part of a model a list of layers belongs to, by the words in front of it."""
    return next((tower for tower, words in _TOWERS.items() if words.search(prefix)), "language")


def _name_stack(prefix: str, places: list[_Place], known: Sequence[Layout], heads: int | None) -> _Stack:
    """Name one list of layers by the layout that knows most of it and that no shape contradicts."""
    paths = Counter((place.container, place.path) for place in places)
    scores = {layout.name: _score(layout, paths) for layout in known}
    candidates = [layout for layout in known if scores[layout.name] > 0]
    candidates.sort(
        key=lambda layout: (-scores[layout.name], not layout.requires, layout.extended, -len(layout.entries))
    )
    best: _Stack | None = None
    for layout in candidates:
        stack = _by_layout(prefix, places, layout, heads)
        if best is None or len(stack.matrices) > len(best.matrices):
            best = stack
        if not any(unnamed.keys for unnamed in stack.unnamed.values()):
            break
    return best or _Stack(prefix, None, [], {p.tensor.name: Unnamed(p.tensor.name, UNKNOWN) for p in places})


def _score(layout: Layout, paths: Mapping[tuple[str, str], int]) -> int:
    inside = {path for container, path in paths if container in layout.containers}
    if layout.requires and not inside.intersection(layout.requires):
        return 0
    return sum(
        count
        for (container, path), count in paths.items()
        if container in layout.containers and layout.meaning(path) is not None
    )


def _by_layout(prefix: str, places: Iterable[_Place], layout: Layout, heads: int | None) -> _Stack:
    by_layer: dict[int, list[_Place]] = defaultdict(list)
    for place in places:
        by_layer[place.layer].append(place)
    matrices: list[WeightMatrix] = []
    unnamed: dict[str, Unnamed] = {}
    known = _Known(layout)
    for layer, members in by_layer.items():
        named, rest = _name_layer(layer, members, known, heads)
        matrices += named
        unnamed |= rest
    if layout.tied is not None:
        matrices += _tied(layout.tied, by_layer, matrices)
    return _Stack(prefix, layout, matrices, unnamed)


def _tied(marker: str, by_layer: Mapping[int, list[_Place]], matrices: Sequence[WeightMatrix]) -> list[WeightMatrix]:
    """The matrices of layers that use, in turn, those of the layers that have some."""
    marked = sorted(layer for layer, members in by_layer.items() if any(place.path == marker for place in members))
    owned = {layer: [matrix for matrix in matrices if matrix.layer == layer] for layer in marked}
    owners = [layer for layer in marked if owned[layer]]
    return [
        replace(matrix, layer=layer)
        for position, layer in enumerate(marked)
        if not owned[layer] and owners
        for matrix in owned[owners[position % len(owners)]]
    ]


@dataclass(frozen=True)
class _Slot:
    """A tensor of a layer whose name a layout knows."""

    tensor: StoredTensor
    layer: int
    entry: Entry
    expert: int | None
    sub: int | None

    @property
    def block(self) -> str | None:
        if self.entry.group in ("attn_experts", "shared_experts"):
            return self.entry.group
        return None if self.sub is None else f"sub{self.sub}"

    @property
    def stacked(self) -> bool:
        """Whether it holds all experts of the layer."""
        return self.entry.group not in ("dense", "shared") and not self.entry.numbered

    def matrix(self, name: str, part: Part) -> WeightMatrix:
        expert = part.expert if self.stacked else self.expert
        shared = self.entry.group == "shared"
        return WeightMatrix(name, self.layer, "shared" if shared else expert, self.block, None, (part,))

    def rejected(self, reason: str) -> dict[str, Unnamed]:
        keys = tuple(self.matrix(name, Part(self.tensor)).key for name in self.entry.names)
        return {self.tensor.name: Unnamed(self.tensor.name, reason, keys)}


def _name_layer(
    layer: int, places: Sequence[_Place], known: "_Known", heads: int | None
) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """The matrices of one layer, and its other tensors."""
    unnamed: dict[str, Unnamed] = {}
    wholes: list[WeightMatrix] = []
    later: list[_Slot] = []
    barred = _barred(places, known.layout)
    for place in places:
        name = place.tensor.name
        reason, meaning = known.path(place)
        reason = next((why for beginnings, why in barred if place.path.startswith(beginnings)), reason)
        if reason is not None or meaning is None:
            unnamed[name] = Unnamed(name, reason or _other_reason(place.tensor, known.layout))
            continue
        slot = _Slot(place.tensor, layer, *meaning)
        unfit = _unfit(slot)
        if unfit is not None:
            unnamed |= slot.rejected(unfit)
        elif slot.entry.rule is None and not slot.stacked:
            wholes.append(slot.matrix(slot.entry.names[0], Part(slot.tensor, slot.entry.in_out)))
        else:
            later.append(slot)
    matrices = list(wholes)
    for slot in later:
        split = _split(slot, wholes, heads)
        matrices += split
        if not split:
            unnamed |= slot.rejected(_uncut(slot))
            if heads is not None or slot.entry.rule not in _BY_HEADS:  # then its shape is not what the layout thinks
                doubted = [matrix for matrix in matrices if matrix.block == slot.block and matrix.expert is None]
                matrices = [matrix for matrix in matrices if matrix not in doubted]
                unnamed |= _rejected(doubted, _uncut(slot))
    consistent, contradictory = _consistent(matrices)
    return consistent, unnamed | contradictory


def _rejected(matrices: Iterable[WeightMatrix], reason: str) -> dict[str, Unnamed]:
    """The tensors of matrices that are not used after all, by name."""
    keys: dict[str, list[str]] = defaultdict(list)
    for matrix in matrices:
        for name in matrix.tensors:
            keys[name].append(matrix.key)
    return {name: Unnamed(name, reason, tuple(held)) for name, held in keys.items()}


def _other_reason(tensor: StoredTensor, layout: Layout) -> str:
    if len(tensor.shape) == 1:
        return _VECTOR
    return f"in a layer, but no matrix of the {layout.name} layout"


def _barred(places: Sequence[_Place], layout: Layout) -> list[tuple[tuple[str, ...], str]]:
    """What of this layer is something else, because of a path that the layer has."""
    if not layout.marked:
        return []
    paths = {place.path for place in places}
    return [barred for path, barred in layout.marked.items() if path in paths]


class _Known:
    """What a layout says of the paths of one stack; many layers have the same ones."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._paths: dict[tuple[str, str], tuple[str | None, Meaning | None]] = {}

    def path(self, place: _Place) -> tuple[str | None, Meaning | None]:
        """Why it is no matrix, and what it is."""
        key = place.container, place.path
        if key not in self._paths:
            self._paths[key] = self._look_up(*key)
        return self._paths[key]

    def _look_up(self, container: str, path: str) -> tuple[str | None, Meaning | None]:
        if container not in self.layout.containers:
            return None, None
        for beginning, reason in self.layout.others.items():
            if path.startswith(beginning):
                return reason, None
        return None, self.layout.meaning(path)


def _unfit(slot: _Slot) -> str | None:
    """Why a tensor cannot be what its name means."""
    shape = slot.tensor.shape
    if len(shape) == 1:
        return _VECTOR
    if 0 in shape:
        return f"is empty: {shape}"
    if len(shape) != 2 and not (len(shape) == 3 and (slot.stacked or slot.entry.reshaped)):
        return f"has {len(shape)} dimensions"
    return None


def _split(slot: _Slot, wholes: Sequence[WeightMatrix], heads: int | None) -> list[WeightMatrix]:
    """The matrices of a tensor that holds several experts, or several matrices side by side, or both."""
    part, count = Part(slot.tensor, slot.entry.in_out), 1
    if slot.stacked:
        count = _experts(slot.tensor, wholes)
        if not 0 < count <= _MOST_EXPERTS or slot.tensor.shape[0] % count:
            return []
        part = _oriented(replace(part, expert=0, experts=count), slot.entry, wholes)
    rows: Mapping[str, Rows | None] = {slot.entry.names[0]: None}
    if slot.entry.rule is not None:
        output = next((one for one in wholes if one.name == "attn_o" and one.block == slot.block), None)
        query = output.parts[0].out_in[1] if output else None
        rows = RULES[slot.entry.rule](slot.entry.names, Sizes(part.out_in[0], query, heads)) or {}
    return [
        slot.matrix(name, replace(part, rows=where, expert=number if slot.stacked else None))
        for number in range(count)
        for name, where in rows.items()
    ]


def _experts(tensor: StoredTensor, wholes: Sequence[WeightMatrix]) -> int:
    """How many experts a tensor stacks: its first dimension, or where that is flat, as many as the router knows."""
    if len(tensor.shape) == 3:
        return tensor.shape[0]
    return next((one.parts[0].out_in[0] for one in wholes if one.name == "router"), 0)


def _oriented(part: Part, entry: Entry, wholes: Sequence[WeightMatrix]) -> Part:
    """Some models store stacked experts (in, out) and others, under the same names, (out, in): the width tells."""
    width = next((_width(one) for one in wholes if one.expert is None), None)
    axis = 0 if entry.names[0] in WRITERS else 1
    turned = replace(part, in_out=not part.in_out)
    return turned if width not in (None, part.out_in[axis]) and turned.out_in[axis] == width else part


def _width(matrix: WeightMatrix) -> int:
    """The width of the space that a matrix reads or writes, n."""
    return matrix.shape[0]


def _uncut(slot: _Slot) -> str:
    if slot.stacked and slot.entry.rule is None:
        return f"the shape {slot.tensor.shape} is no stack of experts"
    reason = f"the shape {slot.tensor.shape} of {slot.tensor.name} cannot be split into {', '.join(slot.entry.names)}"
    return f"{reason} by the number of heads in config.json" if slot.entry.rule in _BY_HEADS else reason


def _consistent(matrices: Sequence[WeightMatrix]) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """Leave out what contradicts itself, of a layer or of one of its experts: there the layout is not to be trusted."""
    groups: dict[tuple[str | None, int | str | None], dict[str, WeightMatrix]] = defaultdict(dict)
    for matrix in matrices:
        groups[matrix.block, matrix.expert][matrix.name] = matrix
    contradictions = {key: found for key, group in groups.items() if (found := _contradiction(group))}
    doubtful = [matrix for matrix in matrices if (matrix.block, matrix.expert) in contradictions]
    sound = [matrix for matrix in matrices if (matrix.block, matrix.expert) not in contradictions]
    unnamed: dict[str, Unnamed] = {}
    for key, reason in contradictions.items():
        unnamed |= _rejected((matrix for matrix in doubtful if (matrix.block, matrix.expert) == key), reason)
    return sound, unnamed


def _contradiction(group: Mapping[str, WeightMatrix]) -> str | None:
    shapes = {name: matrix.parts[0].out_in for name, matrix in group.items()}
    relations: tuple[_Relation, ...] = _RELATIONS
    if "attn_k" in shapes and "attn_v" in shapes and shapes["attn_k"][0] == shapes["attn_v"][0]:
        relations = (*_RELATIONS, (("attn_q", 0), ("attn_o", 1)))  # heads of one width everywhere
    for (left, left_axis), (right, right_axis) in relations:
        if left in shapes and right in shapes and shapes[left][left_axis] != shapes[right][right_axis]:
            return f"its layer has {left} {shapes[left]} and {right} {shapes[right]} (out, in), a contradiction"
    return None


def _bytes(stack: _Stack) -> int:
    tensors = {part.tensor.name: part.tensor.bytes for matrix in stack.matrices for part in matrix.parts}
    return sum(tensors.values())


def _chosen(stacks: Sequence[_Stack], tower: str) -> list[_Stack]:
    """The largest stack of the tower, or encoder and decoder together, labelled."""
    candidates = [stack for stack in stacks if stack.matrices and _tower(stack.prefix) == tower]
    if not candidates and tower == "language":
        candidates = [stack for stack in stacks if stack.matrices]
    if not candidates:
        return []
    main = max(candidates, key=_bytes)
    labels = {stack.prefix: found for stack in candidates if (found := _STACK.fullmatch(stack.prefix))}
    siblings = [s for s in candidates if main.prefix in labels and s.prefix in labels]
    siblings = [s for s in siblings if labels[s.prefix][1] == labels[main.prefix][1]]
    if len(siblings) < 2:
        return [main]
    for stack in siblings:
        word = labels[stack.prefix][2]
        stack.matrices[:] = [replace(matrix, stack=_STACK_NAMES.get(word, word)) for matrix in stack.matrices]
    return siblings


def _set_aside(stack: _Stack, main: _Stack | None) -> dict[str, Unnamed]:
    """The tensors of a tower that was not asked for."""
    reason = f"in another stack of layers ({stack.prefix or 'no prefix'}) than the main one"
    if main is not None:
        reason += f" ({main.prefix or 'no prefix'})"
    named = {name: Unnamed(name, reason) for matrix in stack.matrices for name in matrix.tensors}
    return stack.unnamed | named


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
            unnamed[tensor.name] = Unnamed(tensor.name, _VECTOR)
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
    known = list(dict.fromkeys(path for layout in layouts() for path in layout.entries))
    paths = dict.fromkeys(re.split(r"\.\d+\.", name[:_LONGEST_NAME])[-1].removesuffix(".weight") for name in tensors)
    for path in list(paths)[:_LOOKED_AT]:
        near = difflib.get_close_matches(path, known, n=1)
        if near:
            return f" ({shown(path)} comes closest, to {shown(near[0])})"
    return ""
