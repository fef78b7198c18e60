"""One list of layers -> its matrices, by the layout that knows most of it; and which of a model's lists are meant."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from docs_sim.checkpoint.layer import KnownPaths, Place, name_layer
from docs_sim.checkpoint.layout import Layout
from docs_sim.checkpoint.matrix import WeightMatrix
from docs_sim.checkpoint.unnamed import UNKNOWN, Unnamed

TOWERS = ("language", "vision", "audio")
_TOWER_WORDS = {
    "vision": re.compile(r"vision|visual|image|(^|[._])vit([._]|$)|patch", re.IGNORECASE),
    "audio": re.compile(r"audio|speech|whisper|wav", re.IGNORECASE),
    "mtp": re.compile(r"(^|\.)mtp\."),
}
_SIDE = re.compile(r"(.*\.|)(encoder|decoder|enc|dec|H_module|L_module)\.")
_SIDE_NAMES = {"enc": "encoder", "dec": "decoder", "H_module": "H", "L_module": "L"}


@dataclass(frozen=True)
class Stack:
    """One list of layers, named; ``layout`` is None if none knows it."""

    prefix: str
    layout: Layout | None
    matrices: tuple[WeightMatrix, ...]
    unnamed: Mapping[str, Unnamed]

    @cached_property
    def bytes(self) -> int:
        """Size of its matrices in the file."""
        tensors = {part.tensor.name: part.tensor.bytes for matrix in self.matrices for part in matrix.parts}
        return sum(tensors.values())

    @property
    def tower(self) -> str:
        """Which part of a model it belongs to."""
        return tower_of(self.prefix)


def tower_of(prefix: str) -> str:
    """Which part of a model a list of layers belongs to, by the words in front of it."""
    return next((tower for tower, words in _TOWER_WORDS.items() if words.search(prefix)), "language")


def name_stack(prefix: str, places: Sequence[Place], known: Sequence[Layout], heads: int | None) -> Stack:
    """Name one list of layers by the layout that knows most of it and that no shape contradicts."""
    paths = Counter((place.container, place.path) for place in places)
    scores = {layout.name: _score(layout, paths) for layout in known}
    candidates = [layout for layout in known if scores[layout.name] > 0]
    candidates.sort(key=lambda layout: (-scores[layout.name], *_particular(layout)))
    best: Stack | None = None
    for layout in candidates:
        stack = _by_layout(prefix, places, layout, heads)
        if best is None or len(stack.matrices) > len(best.matrices):
            best = stack
        if not any(unnamed.keys for unnamed in stack.unnamed.values()):
            break
    others = next((layout for layout in known if _knows_others(layout, paths)), None)
    if best is None and others is not None:
        best = _by_layout(prefix, places, others, heads)
    return best or Stack(prefix, None, (), {p.tensor.name: Unnamed(p.tensor.name, UNKNOWN) for p in places})


def _knows_others(layout: Layout, paths: Iterable[tuple[str, str]]) -> bool:
    """Whether a layout says of a path what it is instead of a matrix, and the model may be of its family."""
    inside = {path for container, path in paths if container in layout.containers}
    if layout.requires and not inside.intersection(layout.requires):
        return False
    return any(path.startswith(beginning) for path in inside for beginning in layout.others)


def _particular(layout: Layout) -> tuple[bool, bool, bool, int]:
    """Sorts first what is meant for few models, and last what a general layout grew into."""
    return not layout.model_types, not layout.requires, layout.extended, -len(layout.entries)


def _score(layout: Layout, paths: Mapping[tuple[str, str], int]) -> int:
    inside = {path for container, path in paths if container in layout.containers}
    if layout.requires and not inside.intersection(layout.requires):
        return 0
    return sum(
        count
        for (container, path), count in paths.items()
        if container in layout.containers and layout.meaning(path) is not None
    )


def _by_layout(prefix: str, places: Iterable[Place], layout: Layout, heads: int | None) -> Stack:
    by_layer: dict[int, list[Place]] = defaultdict(list)
    for place in places:
        by_layer[place.layer].append(place)
    matrices: dict[int, list[WeightMatrix]] = {}
    unnamed: dict[str, Unnamed] = {}
    known = KnownPaths(layout)
    for layer, members in by_layer.items():
        matrices[layer], rest = name_layer(layer, members, known, heads)
        unnamed |= rest
    if layout.tied is not None:
        marked = (layer for layer, members in by_layer.items() if any(place.path == layout.tied for place in members))
        matrices |= _tied(sorted(marked), matrices)
    return Stack(prefix, layout, tuple(matrix for layer in matrices.values() for matrix in layer), unnamed)


def _tied(marked: Sequence[int], matrices: Mapping[int, list[WeightMatrix]]) -> dict[int, list[WeightMatrix]]:
    """The matrices of layers that use, in turn, those of the layers that have some."""
    owners = [layer for layer in marked if matrices[layer]]
    return {
        layer: [replace(matrix, layer=layer) for matrix in matrices[owners[position % len(owners)]]]
        for position, layer in enumerate(marked)
        if owners and not matrices[layer]
    }


def chosen(stacks: Sequence[Stack], tower: str) -> list[Stack]:
    """The largest stack of the tower, or encoder and decoder together, their matrices labelled."""
    candidates = [stack for stack in stacks if stack.matrices and stack.tower == tower]
    if not candidates and tower == "language":
        candidates = [stack for stack in stacks if stack.matrices]
    if not candidates:
        return []
    main = max(candidates, key=lambda stack: stack.bytes)
    sides = {stack.prefix: found for stack in candidates if (found := _SIDE.fullmatch(stack.prefix))}
    if main.prefix not in sides:
        return [main]
    siblings = [s for s in candidates if s.prefix in sides and sides[s.prefix][1] == sides[main.prefix][1]]
    return [_labelled(stack, sides[stack.prefix][2]) for stack in siblings] if len(siblings) > 1 else [main]


def _labelled(stack: Stack, word: str) -> Stack:
    side = _SIDE_NAMES.get(word, word)
    return replace(stack, matrices=tuple(replace(matrix, stack=side) for matrix in stack.matrices))


def set_aside(stack: Stack, main: Stack | None) -> dict[str, Unnamed]:
    """The tensors of a stack that was not asked for."""
    reason = f"in another stack of layers ({stack.prefix or 'no prefix'}) than the main one"
    if main is not None:
        reason += f" ({main.prefix or 'no prefix'})"
    named = {name: Unnamed(name, reason) for matrix in stack.matrices for name in matrix.tensors}
    return dict(stack.unnamed) | named
