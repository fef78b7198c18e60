"""Which matrices of a checkpoint a question is about: layers and experts."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from docs_sim.checkpoint import Checkpoint, WeightMatrix
from docs_sim.checkpoint.matrix import concatenate
from docs_sim.errors import InputError


def parse_layers(layers: str | Sequence[int], available: Sequence[int]) -> list[int]:
    """``0-15,20``, or numbers -> layer numbers, sorted.

    Raises:
        InputError: if it is no such list, or names a layer that is not available.
    """
    wanted = _listed(layers) if isinstance(layers, str) else set(layers)
    if not wanted:
        raise InputError("no layer was chosen")
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
            raise InputError(f"layers {text[:100]!r}: write them like 0-15 or 0,4,8-11")
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
    layers: str | Sequence[int] | None = None,
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
        InputError: if the matrix, a layer, an expert or a stack is not there.
    """
    candidates = _of_stack(checkpoint.matrices(matrix), stack, checkpoint.name)
    name = candidates[0].name
    by_layer: dict[int, list[WeightMatrix]] = defaultdict(list)
    for candidate in candidates:
        if candidate.layer is not None:
            by_layer[candidate.layer].append(candidate)
    if not by_layer:
        raise InputError(f"{checkpoint.name}: {name} is not in the layers")
    available = sorted(by_layer)
    notes = _doubts(checkpoint, name)
    try:
        chosen = available if layers is None else parse_layers(layers, available)
    except InputError as error:
        raise InputError("; ".join([str(error), *notes])) from error
    selected = {layer: _of_experts(by_layer[layer], experts) for layer in chosen}
    found = {layer: one for layer, one in selected.items() if one is not None}
    if not found:
        raise InputError(f"{checkpoint.name}: no layer has {_expert_words(experts)}; {_experts_there(by_layer)}")
    without = [layer for layer in checkpoint.layers if layer not in by_layer]
    if without and layers is None:
        notes.append(f"layers {ranges(without)} have no {name}")
    if len(found) < len(selected):
        missing = sorted(selected.keys() - found.keys())
        notes.append(f"layers {ranges(missing)} left out: without {_expert_words(experts)}")
    return list(found.values()), notes


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
    if experts == "concat":
        routed = [matrix for matrix in matrices if matrix.expert != "shared"]
        return concatenate(routed) if routed else None
    wanted: str | int = int(experts) if str(experts).isdecimal() else experts
    if wanted != "shared" and not isinstance(wanted, int):
        raise InputError(f"experts {experts!r}: give concat, shared or the number of an expert")
    return next((matrix for matrix in matrices if matrix.expert == wanted), None)


def _expert_words(experts: str | int) -> str:
    return "a shared expert" if experts == "shared" else f"an expert {experts}"


def _experts_there(by_layer: dict[int, list[WeightMatrix]]) -> str:
    experts = {matrix.expert for matrices in by_layer.values() for matrix in matrices} - {None}
    numbers = sorted(expert for expert in experts if isinstance(expert, int))
    if not experts:
        return "this model has no experts"
    return "there are " + ", ".join(
        [*([ranges(numbers)] if numbers else []), *(["shared"] if "shared" in experts else [])]
    )
