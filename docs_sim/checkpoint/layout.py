"""Tensor names -> named neuron matrices. What a model family calls its tensors is data: ``layouts/*.toml``.

A layout is chosen by the names that are there and checked by their shapes, never by ``model_type``, so that a new
model with familiar names works on the day it appears.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise

from docs_sim.checkpoint.matrix import Part, WeightMatrix
from docs_sim.checkpoint.matrix_names import ALIASES
from docs_sim.checkpoint.stored import StoredTensor

_EXPERT = re.compile(r"\.(\d{1,6})(?=\.|$)")
_STACK = re.compile(r"(.*\.|)(encoder|decoder)\.")
_LONGEST_NAME = 1000  # matching takes time that grows with the length, and no model has longer names

# What must agree inside a layer, as (matrix, 0 = out or 1 = in) pairs: neurons are read as they are written, and
# attention and MLP write into the same space. GPT-2 and GPT-BigCode share names and differ in orientation: this tells.
_RELATIONS = (
    (("mlp_up", 0), ("mlp_down", 1)),
    (("mlp_gate", 0), ("mlp_down", 1)),
    (("mlp_up", 1), ("mlp_down", 0)),
    (("mlp_gate", 1), ("mlp_down", 0)),
    (("attn_q", 0), ("attn_o", 1)),
    (("attn_o", 0), ("mlp_down", 0)),
)


@dataclass(frozen=True)
class Layout:
    """How one family names its tensors.

    Attributes:
        name: of the file.
        layer: matches a tensor name up to its layer; groups ``prefix``, ``layer``, ``path``.
        in_out: whether matrices are stored (in, out).
        dense, experts, shared: path inside the layer -> matrix name; ``{expert}`` stands for a number.
        fused: path inside the layer -> the matrices that its output rows hold, in order.
        outside: path outside the layers -> matrix name; always stored (out, in).
    """

    name: str
    layer: re.Pattern[str]
    in_out: bool
    dense: Mapping[str, str]
    experts: Mapping[str, str]
    shared: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]]
    outside: Mapping[str, str]


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
    """What a layout makes of a checkpoint: the matrices, and every other tensor with the reason."""

    layout: str | None
    matrices: tuple[WeightMatrix, ...]
    unnamed: tuple[Unnamed, ...]


@cache
def layouts() -> tuple[Layout, ...]:
    """All built-in layouts, by name."""
    folder = files(__package__) / "layouts"
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    return tuple(parse_layout(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8")) for entry in entries)


def parse_layout(name: str, text: str) -> Layout:
    """A layout from the text of its TOML file."""
    table = tomllib.loads(text)
    before, after = map(re.escape, table["layer"].split("{layer}"))
    return Layout(
        name=name,
        layer=re.compile(rf"(?P<prefix>(?:.*?\.)??){before}(?P<layer>\d{{1,6}}){after}(?P<path>.+)"),
        in_out=table.get("stored") == "in_out",
        dense=_by_path(table.get("matrices", {})),
        experts=_by_path(table.get("experts", {})),
        shared=_by_path(table.get("shared", {})),
        fused={path: tuple(names) for path, names in table.get("fused", {}).items()},
        outside=_by_path(table.get("outside", {})),
    )


def _by_path(table: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {path: name for name, paths in table.items() for path in paths}


def name_tensors(tensors: Mapping[str, StoredTensor]) -> Naming:
    """Name the tensors by the layout that names the most of them consistently."""
    namings = [_apply(layout, tensors) for layout in layouts()]
    best = max(namings, key=lambda naming: sum(matrix.layer is not None for matrix in naming.matrices))
    if any(matrix.layer is not None for matrix in best.matrices):
        return best
    return Naming(None, (), tuple(Unnamed(name, "no layout knows names like this") for name in tensors))


def _apply(layout: Layout, tensors: Mapping[str, StoredTensor]) -> Naming:
    """What one layout makes of the tensors: each ends in a matrix or in ``unnamed``."""
    unnamed: dict[str, Unnamed] = {}
    by_layer: dict[tuple[str, int], list[WeightMatrix]] = defaultdict(list)
    outside: list[WeightMatrix] = []
    fused: list[tuple[str, int, str, StoredTensor]] = []
    for name, tensor in tensors.items():
        plain = name.removesuffix(".weight")
        unfit = _unfit(tensor)
        found = None if unfit else layout.layer.fullmatch(plain)
        if found is None:
            matrix = None if unfit else _outside(layout, plain)
            if matrix is None:
                unnamed[name] = Unnamed(name, unfit or "outside the layers, neither embedding nor head")
            else:
                outside.append(WeightMatrix(matrix, None, None, None, (Part(tensor),)))
        elif found["path"] in layout.fused:
            fused.append((found["prefix"], int(found["layer"]), found["path"], tensor))
        else:
            matrix, expert = _in_layer(layout, found["path"])
            if matrix is None:
                unnamed[name] = Unnamed(name, f"in a layer, but no matrix of the {layout.name} layout")
            else:
                part = Part(tensor, layout.in_out)
                layer = int(found["layer"])
                by_layer[found["prefix"], layer].append(WeightMatrix(matrix, layer, expert, None, (part,)))
    for prefix, layer, path, tensor in fused:
        part, others = Part(tensor, layout.in_out), by_layer[prefix, layer]
        by_layer[prefix, layer], rejected = _with_fused(others, layer, layout.fused[path], part)
        unnamed |= rejected
    by_prefix: dict[str, list[WeightMatrix]] = defaultdict(list)
    for (prefix, _), members in by_layer.items():
        by_prefix[prefix] += members
    matrices, elsewhere = _main_stacks(by_prefix)
    matrices, repeated = _without_duplicates([*matrices, *outside])
    matrices, contradictory = _consistent(matrices)
    unnamed |= elsewhere | repeated | contradictory
    in_order = tuple(unnamed[name] for name in tensors if name in unnamed)
    return Naming(layout.name, tuple(sorted(matrices, key=_order)), in_order)


def _rejected(matrices: Iterable[WeightMatrix], reason: str) -> dict[str, Unnamed]:
    """The tensors of matrices that the names promise and that are not used, by name."""
    keys: dict[str, list[str]] = defaultdict(list)
    for matrix in matrices:
        for name in matrix.tensors:
            keys[name].append(matrix.key)
    return {name: Unnamed(name, reason, tuple(promised)) for name, promised in keys.items()}


def _order(matrix: WeightMatrix) -> tuple[bool, str, int, int, bool, int]:
    number = matrix.expert if isinstance(matrix.expert, int) else 0
    position = list(ALIASES).index(matrix.name)
    return matrix.layer is None, matrix.stack or "", matrix.layer or 0, position, matrix.expert == "shared", number


def _unfit(tensor: StoredTensor) -> str | None:
    """Why a tensor cannot be a matrix, whatever its name means."""
    if len(tensor.name) > _LONGEST_NAME:
        return f"its name has over {_LONGEST_NAME} characters"
    if len(tensor.shape) == 1:
        return "a vector: norm or bias"
    if len(tensor.shape) != 2:
        return f"has {len(tensor.shape)} dimensions"
    if 0 in tensor.shape:
        return f"is empty: {tensor.shape}"
    return None


def _outside(layout: Layout, plain: str) -> str | None:
    parts = plain.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts)))
    return next((layout.outside[suffix] for suffix in suffixes if suffix in layout.outside), None)


def _in_layer(layout: Layout, path: str) -> tuple[str | None, int | str | None]:
    """The matrix at a path inside a layer, and its expert."""
    if path in layout.dense:
        return layout.dense[path], None
    if path in layout.shared:
        return layout.shared[path], "shared"
    number = _EXPERT.search(path)
    if number is None:
        return None, None
    return layout.experts.get(_EXPERT.sub(".{expert}", path, count=1)), int(number[1])


def _with_fused(
    matrices: list[WeightMatrix], layer: int, names: tuple[str, ...], fused: Part
) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """Add to a layer those that share a tensor. If it cannot be split, the layer is not what the layout thinks."""
    output = next((matrix for matrix in matrices if matrix.name == "attn_o"), None)
    parts = _split_fused(fused, names, output)
    if parts:
        return matrices + [WeightMatrix(name, layer, None, None, (part,)) for name, part in parts.items()], {}
    reason = f"the shape {fused.tensor.shape} of {fused.tensor.name} cannot be split into {', '.join(names)}"
    unsplit = [WeightMatrix(name, layer, None, None, (fused,)) for name in names]
    doubtful = [matrix for matrix in matrices if matrix.expert is None]
    return [matrix for matrix in matrices if matrix.expert is not None], _rejected([*doubtful, *unsplit], reason)


def _split_fused(fused: Part, names: tuple[str, ...], output: WeightMatrix | None) -> dict[str, Part] | None:
    """Gate and up are halves of the output rows; q is as wide as attn_o reads, k and v are halves of the rest."""
    total = fused.out_in[0]
    first = total // 2
    if names[0] == "attn_q":
        first = 0 if output is None else output.parts[0].out_in[1]
    rest, remainder = divmod(total - first, len(names) - 1)
    if first <= 0 or rest <= 0 or remainder:
        return None
    bounds = [0, *(first + rest * count for count in range(len(names)))]
    return {name: replace(fused, rows=rows) for name, rows in zip(names, pairwise(bounds), strict=True)}


def _main_stacks(by_prefix: Mapping[str, list[WeightMatrix]]) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """The largest stack of layers, or encoder and decoder; towers beside them (a vision encoder) are set aside."""
    if not by_prefix:
        return [], {}
    main = max(by_prefix, key=lambda prefix: sum(_elements(matrix) for matrix in by_prefix[prefix]))
    names = {
        prefix: found[2]
        for prefix in by_prefix
        if (found := _STACK.fullmatch(prefix)) and _STACK.sub(r"\1", main) == found[1]
    }
    if main not in names or len(names) < 2:
        names = {main: None}
    elsewhere = {
        name: Unnamed(
            name, f"in another stack of layers ({prefix or 'no prefix'}) than the main one ({main or 'none'})"
        )
        for prefix, stack in by_prefix.items()
        if prefix not in names
        for matrix in stack
        for name in matrix.tensors
    }
    return [replace(matrix, stack=name) for prefix, name in names.items() for matrix in by_prefix[prefix]], elsewhere


def _elements(matrix: WeightMatrix) -> int:
    return matrix.shape[0] * matrix.shape[1]


def _without_duplicates(matrices: Iterable[WeightMatrix]) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    unique: dict[str, WeightMatrix] = {}
    repeated: dict[str, Unnamed] = {}
    for matrix in matrices:
        first = unique.setdefault(matrix.key, matrix)
        if first is not matrix:
            repeated |= _rejected([matrix], f"a second {matrix.key}, after {first.tensors[0]}")
    return list(unique.values()), repeated


def _consistent(matrices: list[WeightMatrix]) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """Leave out each layer (or expert) whose shapes contradict each other: there the layout is not to be trusted."""
    groups: dict[tuple[str | None, int | None, int | str | None], dict[str, WeightMatrix]] = defaultdict(dict)
    for matrix in matrices:
        groups[matrix.stack, matrix.layer, matrix.expert][matrix.name] = matrix
    consistent: list[WeightMatrix] = []
    contradictory: dict[str, Unnamed] = {}
    for group in groups.values():
        contradiction = _contradiction(group)
        if contradiction is None:
            consistent.extend(group.values())
        else:
            contradictory |= _rejected(group.values(), contradiction)
    return consistent, contradictory


def _contradiction(group: Mapping[str, WeightMatrix]) -> str | None:
    for (left, left_axis), (right, right_axis) in _RELATIONS:
        if left in group and right in group:
            shapes = group[left].parts[0].out_in, group[right].parts[0].out_in
            if shapes[0][left_axis] != shapes[1][right_axis]:
                return (
                    f"its layer has {left} {shapes[0]} and {right} {shapes[1]} (out, in), which contradict each other"
                )
    return None
