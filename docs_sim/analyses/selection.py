"""Which matrices of a checkpoint a question is about: layers and experts."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from docs_sim.checkpoint import Checkpoint, WeightMatrix
from docs_sim.checkpoint.matrix import concatenate
from docs_sim.checkpoint.matrix_names import canonical_name
from docs_sim.errors import InputError, shown


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


def ranges(numbers: Iterable[int]) -> str:
    """{0, 1, 2, 5} -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def select_layers(
    checkpoint: Checkpoint,
    matrix: str,
    layers: str | int | Sequence[int] | None = None,
    experts: str | int = "concat",
    stack: str | None = None,
) -> tuple[list[WeightMatrix], list[str]]:
    """One matrix for each layer, and what was left out, in words.

    Args:
        checkpoint: the model.
        matrix: canonical name or alias.
        layers: ``"0-15,20"`` or numbers; all that have the matrix if None.
        experts: in a mixture-of-experts layer: ``concat`` (all experts side by side), ``shared``, or a number.
        stack: ``encoder`` or ``decoder``, of a model that has both.

    Raises:
        InputError: if the matrix, a layer, an expert or a stack is not there, or is stored in a way that is not read.
    """
    candidates = _of_stack(checkpoint.matrices(canonical_name(matrix)), stack, checkpoint.name)
    name = candidates[0].name
    by_layer: dict[int, list[WeightMatrix]] = defaultdict(list)
    for candidate in candidates:
        if candidate.layer is not None:
            by_layer[candidate.layer].append(candidate)
    if not by_layer:
        raise InputError(
            f"{checkpoint.name}: {name} stands outside the layers: there is nothing to compare over layers"
        )
    available = sorted(by_layer)
    notes = _doubts(checkpoint, name)
    try:
        chosen = available if layers is None else parse_layers(layers, available)
    except InputError as error:
        raise InputError("; ".join([str(error), *notes])) from error
    selected = {layer: _of_experts(by_layer[layer], experts) for layer in chosen}
    found = {layer: one for layer, one in selected.items() if one is not None}
    if not found:
        raise InputError(f"{checkpoint.name}: {_no_such_expert(name, experts, by_layer)}")
    for one in found.values():
        one.check_readable()
    without = [layer for layer in checkpoint.layers if layer not in by_layer]
    if without and layers is None:
        notes.append(f"layers {ranges(without)} have no {name}")
    if len(found) < len(selected):
        missing = sorted(selected.keys() - found.keys())
        notes.append(f"layers {ranges(missing)} left out: they have no {_expert_words(experts)}")
    if any(len(one.parts) > 1 for one in found.values()):
        notes += _side_by_side(candidates, found)
    return list(found.values()), notes


def _side_by_side(candidates: Sequence[WeightMatrix], found: Mapping[int, WeightMatrix]) -> list[str]:
    """What a reader must know of experts that are compared as one matrix."""
    notes = [
        "the chance level takes all columns as independent; experts that are near copies of each other lie below it"
    ]
    if any(candidate.expert == "shared" for candidate in candidates):
        notes.append("the shared experts are not among those side by side; --experts shared compares them")
    counts = {layer: len(one.parts) for layer, one in found.items() if len(one.parts) > 1}
    fewer = [layer for layer, count in counts.items() if count < max(counts.values())]
    if fewer:
        notes.append(f"layers {ranges(fewer)} have fewer than the {max(counts.values())} experts of the others")
    return notes


def _doubts(checkpoint: Checkpoint, name: str) -> list[str]:
    """What the tensors' names promise of this matrix and the shapes deny."""
    doubted = [tensor for tensor in checkpoint.unnamed if any(key.endswith(f".{name}") for key in tensor.keys)]
    if not doubted:
        return []
    others = f" (and {len(doubted) - 1} more, see `docs-sim inspect`)" if len(doubted) > 1 else ""
    return [f"{doubted[0].name} left out{others}: {doubted[0].reason}"]


def _of_stack(matrices: list[WeightMatrix], stack: str | None, model: str) -> list[WeightMatrix]:
    stacks = list(dict.fromkeys(matrix.stack for matrix in matrices if matrix.stack is not None))
    if stack is None and len(stacks) < 2:
        return matrices
    if stack in stacks:
        return [matrix for matrix in matrices if matrix.stack == stack]
    if not stacks:
        raise InputError(f"{model}: has one stack of layers; leave --stack out")
    raise InputError(f"{model}: has {' and '.join(stacks)}; choose one with --stack {' or --stack '.join(stacks)}")


def _of_experts(matrices: list[WeightMatrix], experts: str | int) -> WeightMatrix | None:
    """The matrix of one layer that ``experts`` asks for. A dense layer stands for itself under ``concat``."""
    if str(experts).lower() == "concat":
        routed = [matrix for matrix in matrices if matrix.expert != "shared"]
        return concatenate(routed) if routed else None
    wanted: str | int = int(experts) if re.fullmatch(r"\d{1,6}", str(experts)) else str(experts).lower()
    if wanted != "shared" and not isinstance(wanted, int):
        raise InputError(f"experts {shown(experts)}: give concat, shared or the number of an expert")
    return next((matrix for matrix in matrices if matrix.expert == wanted), None)


def _expert_words(experts: str | int) -> str:
    if str(experts).lower() == "concat":
        return "routed experts in tensors of their own"
    return "shared expert" if str(experts).lower() == "shared" else f"expert {experts}"


def _no_such_expert(name: str, experts: str | int, by_layer: dict[int, list[WeightMatrix]]) -> str:
    there = {matrix.expert for matrices in by_layer.values() for matrix in matrices} - {None}
    if not there:
        return f"{name} has no experts in this model; leave --experts out"
    numbers = ranges(expert for expert in there if isinstance(expert, int))
    listed = ", ".join(part for part in (numbers, "shared" if "shared" in there else "") if part)
    return f"{name} has no {_expert_words(experts)}; there are {listed}"
