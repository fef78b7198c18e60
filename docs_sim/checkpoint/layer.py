"""The tensors of one layer -> its matrices, by one layout: what is whole first, then what holds several matrices."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from docs_sim.checkpoint.contradictions import consistent
from docs_sim.checkpoint.layout import Entry, Layout, Meaning
from docs_sim.checkpoint.matrix import Part, WeightMatrix
from docs_sim.checkpoint.matrix_names import NOT_OF_THE_STREAM, WRITERS
from docs_sim.checkpoint.rows import BY_HEADS, RULES, Rows, Sizes
from docs_sim.checkpoint.stored import StoredTensor
from docs_sim.checkpoint.unnamed import VECTOR, Unnamed, rejected

_MOST_EXPERTS = 10_000


@dataclass(frozen=True)
class Place:
    """Where a tensor stands in a list of layers: ``container``.``layer``.``path``, and in which stage if there are."""

    tensor: StoredTensor
    container: str
    layer: int
    path: str
    stage: int | None = None


class KnownPaths:
    """What a layout says of the paths of one stack; many layers have the same ones."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._paths: dict[tuple[str, str], tuple[str | None, Meaning | None]] = {}

    def path(self, place: Place) -> tuple[str | None, Meaning | None]:
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

    @property
    def whole(self) -> bool:
        """Whether it is one matrix."""
        return self.entry.rule is None and not self.stacked

    def matrix(self, name: str, part: Part) -> WeightMatrix:
        expert = part.expert if self.stacked else self.expert
        shared = self.entry.group == "shared"
        return WeightMatrix(name, self.layer, "shared" if shared else expert, self.block, None, (part,))

    def rejected(self, reason: str) -> dict[str, Unnamed]:
        keys = tuple(self.matrix(name, Part(self.tensor)).key for name in self.entry.names)
        return {self.tensor.name: Unnamed(self.tensor.name, reason, keys)}


@dataclass(frozen=True)
class _Surroundings:
    """What the whole matrices of a layer tell of the others.

    Attributes:
        queries: rows of the queries by block: what the output projection reads.
        experts: as many as the router knows; 0 if there is no router.
        width: of the space that the layer reads and writes; None if no matrix tells.
        heads: number of query heads, from the config.
    """

    queries: Mapping[str | None, int]
    experts: int
    width: int | None
    heads: int | None


def name_layer(
    layer: int, places: Sequence[Place], known: KnownPaths, heads: int | None
) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """The matrices of one layer, and its other tensors by name."""
    slots, unnamed = _slots(layer, places, known)
    matrices = [slot.matrix(slot.entry.names[0], Part(slot.tensor, slot.entry.in_out)) for slot in slots if slot.whole]
    surroundings = _surroundings(matrices, heads)
    uncut: list[_Slot] = []
    for slot in slots:
        if not slot.whole:
            parts = _split(slot, surroundings)
            matrices += parts
            uncut += [] if parts else [slot]
    for slot in uncut:
        unnamed |= slot.rejected(_uncut(slot))
    certain, doubtful = _certain(matrices, uncut, heads)
    sound, contradictory = consistent(certain, known.layout.unchecked)
    return sound, unnamed | doubtful | contradictory


def _certain(
    matrices: Sequence[WeightMatrix], uncut: Sequence[_Slot], heads: int | None
) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """The matrices without those of a block that is something else than the layout thinks.

    So it is if a fused tensor cannot be cut although all is known that this needs.
    """
    reasons: dict[str | None, str] = {}
    for slot in uncut:
        if heads is not None or slot.entry.rule not in BY_HEADS:
            reasons.setdefault(slot.block, _uncut(slot))
    doubtful: dict[str, Unnamed] = {}
    for block, reason in reasons.items():
        doubtful |= rejected((one for one in matrices if one.block == block and one.expert is None), reason)
    return [one for one in matrices if one.expert is not None or one.block not in reasons], doubtful


def _slots(layer: int, places: Sequence[Place], known: KnownPaths) -> tuple[list[_Slot], dict[str, Unnamed]]:
    """The tensors that may be matrices, and the others with the reason."""
    slots: list[_Slot] = []
    unnamed: dict[str, Unnamed] = {}
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
        if unfit is None:
            slots.append(slot)
        else:
            unnamed |= slot.rejected(unfit)
    return slots, unnamed


def _barred(places: Sequence[Place], layout: Layout) -> list[tuple[tuple[str, ...], str]]:
    """What of this layer is something else, because of a path that the layer has."""
    if not layout.marked:
        return []
    paths = {place.path for place in places}
    return [barred for path, barred in layout.marked.items() if path in paths]


def _other_reason(tensor: StoredTensor, layout: Layout) -> str:
    if len(tensor.shape) == 1:
        return VECTOR
    return f"in a layer, but no matrix of the {layout.name} layout"


def _unfit(slot: _Slot) -> str | None:
    """Why a tensor cannot be what its name means."""
    shape = slot.tensor.shape
    if len(shape) == 1:
        return VECTOR
    if 0 in shape:
        return f"is empty: {shape}"
    if len(shape) != 2 and not (len(shape) == 3 and (slot.stacked or slot.entry.reshaped)):
        return f"has {len(shape)} dimensions, as a convolution has: {shape}"
    return None


def _surroundings(wholes: Sequence[WeightMatrix], heads: int | None) -> _Surroundings:
    queries: dict[str | None, int] = {}
    for matrix in wholes:
        if matrix.name == "attn_o":
            queries.setdefault(matrix.block, matrix.parts[0].out_in[1])
    experts = next((matrix.parts[0].out_in[0] for matrix in wholes if matrix.name == "router"), 0)
    widths = Counter(m.shape[0] for m in wholes if m.expert is None and m.name not in NOT_OF_THE_STREAM)
    width = widths.most_common(1)[0][0] if widths else None
    return _Surroundings(queries, experts, width, heads)


def _split(slot: _Slot, surroundings: _Surroundings) -> list[WeightMatrix]:
    """The matrices of a tensor that holds several experts, or several matrices side by side, or both."""
    part, count = Part(slot.tensor, slot.entry.in_out), 1
    if slot.stacked:  # the first dimension, or where that is flat, as many as the router knows
        count = slot.tensor.shape[0] if len(slot.tensor.shape) == 3 else surroundings.experts
        if not 0 < count <= _MOST_EXPERTS or slot.tensor.shape[0] % count:
            return []
        part = _oriented(replace(part, expert=0, experts=count), slot.entry, surroundings.width)
    rows: Mapping[str, Rows | None] = {slot.entry.names[0]: None}
    if slot.entry.rule is not None:
        sizes = Sizes(part.out_in[0], surroundings.queries.get(slot.block), surroundings.heads)
        rows = RULES[slot.entry.rule](slot.entry.names, sizes) or {}
    return [
        slot.matrix(name, replace(part, rows=where, expert=number if slot.stacked else None))
        for number in range(count)
        for name, where in rows.items()
    ]


def _oriented(part: Part, entry: Entry, width: int | None) -> Part:
    """Some models store stacked experts (in, out) and others, under the same names, (out, in): the width tells."""
    axis = 0 if entry.names[0] in WRITERS else 1
    turned = replace(part, in_out=not part.in_out)
    return turned if width not in (None, part.out_in[axis]) and turned.out_in[axis] == width else part


def _uncut(slot: _Slot) -> str:
    if slot.stacked and slot.entry.rule is None:
        return f"the shape {slot.tensor.shape} is no stack of experts"
    reason = f"the shape {slot.tensor.shape} of {slot.tensor.name} cannot be split into {', '.join(slot.entry.names)}"
    return f"{reason} by the number of heads in config.json" if slot.entry.rule in BY_HEADS else reason
