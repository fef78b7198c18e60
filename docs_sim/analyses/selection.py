"""Which matrices of a checkpoint a question is about: layers, experts, blocks of a layer, stacks."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs_sim.checkpoint import Checkpoint, WeightMatrix, open_checkpoint
from docs_sim.checkpoint.header import FLOATS
from docs_sim.checkpoint.matrix import concatenate
from docs_sim.checkpoint.matrix_names import canonical_name
from docs_sim.errors import InputError, shown
from docs_sim.report.text import ranges

DENSE = "dense"  # what stands in a layer beside its experts, under no name of its own
_BLOCK = re.compile(rf"{DENSE}|sub\d{{1,6}}")
_ByLayer = Mapping[int, Sequence[WeightMatrix]]


@dataclass(frozen=True)
class Selection:
    """One matrix for each layer, as a question wants it.

    Attributes:
        checkpoint: the model.
        matrices: by layer.
        experts: what was taken of layers that have experts or several blocks: ``concat``, ``shared``, a number, or the
            name of a block; None where no layer has them.
        notes: what was left out and what a reader must know, in words.
    """

    checkpoint: Checkpoint
    matrices: list[WeightMatrix]
    experts: str | int | None
    notes: list[str]

    def model(self) -> dict[str, Any]:
        """``name``, ``source``, ``revision``, ``architecture``, ``dtype``: what a result says of its model."""
        return self.checkpoint.describe() | {"dtype": _stored_as(self.matrices)}

    def settings(self) -> dict[str, Any]:
        """Which matrices were taken, for a result."""
        layout = self.checkpoint.layout_file
        return {
            "tower": self.checkpoint.tower,
            "layout": None if layout is None else str(layout),
            "stack": self.matrices[0].stack,
            "experts": None if self.experts is None else str(self.experts),
        }


def parse_experts(experts: str | int) -> str | int:
    """``concat``, ``shared``, the number of an expert or the name of a block, however it was written.

    Raises:
        InputError: if it is none of these.

    >>> parse_experts("Shared"), parse_experts("07"), parse_experts("sub0")
    ('shared', 7, 'sub0')
    """
    text = str(experts).strip().lower()
    if re.fullmatch(r"\d{1,6}", text, re.ASCII):
        return int(text)
    if text not in ("concat", "shared") and not _BLOCK.fullmatch(text):
        raise InputError(
            f"experts {shown(experts)}: give concat, shared, dense or the number of an expert, or a block such as sub0"
        )
    return text


def parse_layers(layers: str | int | Sequence[int], available: Sequence[int]) -> list[int]:
    """``0-15,20``, a number or numbers -> layer numbers, sorted.

    Raises:
        InputError: if it is no such list, or names a layer that is not available.
    """
    wanted = _listed(str(layers) if isinstance(layers, str | int) else ",".join(map(str, layers)))
    missing = wanted.difference(available)
    if missing:
        raise InputError(f"layers {ranges(missing)} are not there; there are {ranges(available)}")
    return sorted(wanted)


def _listed(text: str) -> set[int]:
    wanted: set[int] = set()
    for item in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", item)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise InputError(f"layers {shown(text)}: write them like 0-15 or 0,4,8-11")
        wanted.update(range(first, last + 1))
    return wanted


def open_layers(
    model: str | Path | Checkpoint,
    matrix: str,
    *,
    layers: str | int | Sequence[int] | None,
    experts: str | int,
    stack: str | None,
    tower: str,
    layout: str | Path | None,
    revision: str | None,
    offline: bool,
) -> Selection:
    """One matrix for each layer of a model that may have to be opened; arguments as those of ``heatmap``.

    Raises:
        InputError: as ``open_checkpoint`` and ``select_layers``, or if an open checkpoint is told how to be opened.
    """
    if isinstance(model, Checkpoint):
        given = {"revision": revision, "tower": tower != "language", "layout": layout, "offline": offline}
        for name in (name for name, value in given.items() if value):
            raise InputError(
                f"{name} is of a model to be opened, and this checkpoint is open: give it to open_checkpoint"
            )
        checkpoint = model
    else:
        checkpoint = open_checkpoint(model, revision, offline=offline, tower=tower, layout=layout)
    return select_layers(checkpoint, matrix, layers, experts, stack)


def select_layers(
    checkpoint: Checkpoint,
    matrix: str,
    layers: str | int | Sequence[int] | None = None,
    experts: str | int = "concat",
    stack: str | None = None,
) -> Selection:
    """One matrix for each layer.

    Args:
        checkpoint: the model.
        matrix: canonical name or alias.
        layers: ``"0-15,20"`` or numbers; all that have the matrix if None.
        experts: in a mixture-of-experts layer: ``concat`` (all experts side by side), ``shared``, or a number; where a
            layer has several blocks: the name of one (``sub0``, or ``dense`` for what stands beside the experts).
        stack: ``encoder`` or ``decoder``, of a model that has both.

    Raises:
        InputError: if the matrix, a layer, an expert or a stack is not there, or is stored in a way that is not read.
    """
    wanted = parse_experts(experts)
    candidates = _of_stack(checkpoint, _in_layers(checkpoint, canonical_name(matrix)), stack)
    first = candidates[0]
    subject = f"{checkpoint.name}: {first.name if first.stack is None else f'{first.stack} {first.name}'}"
    by_layer: dict[int, list[WeightMatrix]] = defaultdict(list)
    for candidate in candidates:
        if candidate.layer is not None:
            by_layer[candidate.layer].append(candidate)
    doubts = _doubts(checkpoint, first.name)
    try:
        chosen = sorted(by_layer) if layers is None else parse_layers(layers, sorted(by_layer))
    except InputError as error:
        raise InputError("; ".join([f"{subject}: {error}", *doubts])) from error
    members = {layer: by_layer[layer] for layer in chosen}
    taken = {layer: _taken(of_layer, wanted) for layer, of_layer in members.items()}
    if not any(taken.values()):
        raise InputError(f"{subject} {_nothing_taken(wanted, by_layer)}")
    matrices = [_joined(subject, layer, of_layer, wanted) for layer, of_layer in taken.items() if of_layer]
    for one in matrices:
        one.check_readable()
    plain = all(one.expert is None and one.block is None for of_layer in members.values() for one in of_layer)
    notes = [
        *doubts,
        *(_layers_without(checkpoint, first, by_layer) if layers is None else []),
        *_left_out(taken, wanted),
        *(_beside(taken, members) if wanted == "concat" else []),
        *_unlike_shapes(matrices),
    ]
    return Selection(checkpoint, matrices, None if plain else wanted, notes)


def _in_layers(checkpoint: Checkpoint, name: str) -> list[WeightMatrix]:
    """The matrices called ``name``, which must be inside layers."""
    inside = dict.fromkeys(one.name for one in checkpoint.matrices() if one.layer is not None)
    if inside and name not in inside:
        outside = any(one.name == name for one in checkpoint.matrices())
        lack = f"{name} stands outside the layers" if outside else f"has no {name}"
        raise InputError(f"{checkpoint.name}: {lack}; it has {', '.join(inside)}")
    found = [one for one in checkpoint.matrices(name) if one.layer is not None]
    if not found:
        raise InputError(
            f"{checkpoint.name}: {name} stands outside the layers: there is nothing to compare over layers"
        )
    return found


def _is_routed(matrix: WeightMatrix) -> bool:
    """Whether it is one of the experts that a router chooses from."""
    return isinstance(matrix.expert, int) and matrix.block != "shared_experts"


def _part_of_layer(matrix: WeightMatrix) -> str | int:
    """What of its layer a matrix is, by the words of ``--experts``."""
    if matrix.expert == "shared" or matrix.block == "shared_experts":
        return "shared"
    return matrix.expert if matrix.expert is not None else matrix.block or DENSE


def _taken(matrices: Sequence[WeightMatrix], wanted: str | int) -> list[WeightMatrix]:
    """What of one layer is meant. Under ``concat`` a layer without experts stands for itself."""
    if wanted == "concat":
        routed = [matrix for matrix in matrices if _is_routed(matrix)]
        return routed or [matrix for matrix in matrices if _part_of_layer(matrix) != "shared"]
    return [matrix for matrix in matrices if _part_of_layer(matrix) == wanted]


def _joined(subject: str, layer: int, matrices: Sequence[WeightMatrix], wanted: str | int) -> WeightMatrix:
    """The experts of a layer side by side; other blocks of it are never joined."""
    blocks = {_part_of_layer(matrix): matrix for matrix in matrices}
    if wanted == "concat" and len(blocks) > 1 and not _is_routed(matrices[0]):
        choices = ", ".join(f"--experts {block}" for block in blocks)
        raise InputError(f"{subject}: layer {layer} has it {len(blocks)} times; choose one: {choices}")
    return concatenate(matrices) if len(matrices) > 1 else matrices[0]


def _layers_without(checkpoint: Checkpoint, matrix: WeightMatrix, by_layer: _ByLayer) -> list[str]:
    """Which layers of its stack have no such matrix."""
    of_stack = {one.layer for one in checkpoint.matrices() if one.stack == matrix.stack and one.layer is not None}
    without = of_stack - by_layer.keys()
    return [f"layers {ranges(without)} have no {matrix.name}"] if without else []


def _left_out(taken: _ByLayer, wanted: str | int) -> list[str]:
    """Which layers have the matrix, and not what was asked for of it."""
    empty = [layer for layer, of_layer in taken.items() if not of_layer]
    return [f"layers {ranges(empty)} left out: they have no {_in_words(wanted)}"] if empty else []


def _beside(taken: _ByLayer, members: _ByLayer) -> list[str]:
    """What layers have beside the experts that are compared as one matrix."""
    beside = {
        _part_of_layer(one): None
        for layer, of_layer in taken.items()
        if any(map(_is_routed, of_layer))
        for one in members[layer]
        if not _is_routed(one)
    }
    if not beside:
        return []
    names = {"shared": "the shared experts", DENSE: "the dense ones"}
    listed = " and ".join(names.get(str(part), str(part)) for part in beside)
    choices = " or ".join(f"--experts {part}" for part in beside)
    return [f"{listed} stand beside the experts in these layers and are left out; {choices} compares them"]


def _unlike_shapes(matrices: Sequence[WeightMatrix]) -> list[str]:
    """That the layers do not all have as many neurons: each pair then has a chance level of its own."""
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for matrix in matrices:
        shapes[matrix.shape].append(matrix.layer or 0)
    if len(shapes) < 2:
        return []
    listed = ", ".join(f"{shape} in layers {ranges(layers)}" for shape, layers in shapes.items())
    return [f"the shapes (n, m) differ: {listed}; chance depends on them, so compare the excess, not the raw values"]


def _doubts(checkpoint: Checkpoint, name: str) -> list[str]:
    """What the tensors' names promise of this matrix and the shapes deny."""
    doubted = [tensor for tensor in checkpoint.unnamed if any(key.endswith(f".{name}") for key in tensor.keys)]
    if not doubted:
        return []
    others = f" (and {len(doubted) - 1} more, see `docs-sim inspect`)" if len(doubted) > 1 else ""
    return [f"{doubted[0].name} left out{others}: {doubted[0].reason}"]


def _of_stack(checkpoint: Checkpoint, matrices: list[WeightMatrix], stack: str | None) -> list[WeightMatrix]:
    stacks = list(dict.fromkeys(matrix.stack for matrix in matrices if matrix.stack is not None))
    if stack is None and len(stacks) < 2:
        return matrices
    if stack in stacks:
        return [matrix for matrix in matrices if matrix.stack == stack]
    if not stacks:
        raise InputError(f"{checkpoint.name}: has one stack of layers; leave --stack out")
    choices = f"choose one with --stack {' or --stack '.join(stacks)}"
    if stack is not None and stack in {one.stack for one in checkpoint.matrices()}:
        choices = f"the {' and the '.join(stacks)} has it: --stack {stacks[0]}"
        raise InputError(f"{checkpoint.name}: its {stack} has no {matrices[0].name}; {choices}")
    raise InputError(f"{checkpoint.name}: {matrices[0].name} is in {' and '.join(stacks)}; {choices}")


def _in_words(wanted: str | int) -> str:
    words = {"concat": "routed experts in tensors of their own", "shared": "shared expert"}
    return f"expert {wanted}" if isinstance(wanted, int) else words.get(wanted, f"{wanted} block")


def _nothing_taken(wanted: str | int, by_layer: _ByLayer) -> str:
    there = dict.fromkeys(_part_of_layer(matrix) for matrices in by_layer.values() for matrix in matrices)
    if there.keys() == {DENSE}:
        return "has no experts in this model; leave --experts out"
    numbers = ranges(part for part in there if isinstance(part, int))
    named = sorted((part for part in there if isinstance(part, str)), key=lambda part: part != "shared")
    listed = ", ".join([*filter(None, [numbers]), *named])
    return f"has no {_in_words(wanted)}; there are {listed}"


def _stored_as(matrices: Sequence[WeightMatrix]) -> str:
    dtypes = list(dict.fromkeys(matrix.dtype for matrix in matrices))
    dequantized = [dtype for dtype in dtypes if dtype not in FLOATS]
    return f"dequantized from {', '.join(dequantized)}" if dequantized else ", ".join(dtypes)
