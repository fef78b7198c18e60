"""What the shapes of one layer must agree on; where they do not, the layout that named them is not to be trusted."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence

from docs_sim.checkpoint.matrix import WeightMatrix
from docs_sim.checkpoint.unnamed import Unnamed, rejected

# As (matrix, 0 = out or 1 = in) pairs: neurons are read as they are written, and attention and MLP write into the same
# space. GPT-2 and GPT-BigCode share names and differ in orientation: this tells.
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
# LongCat-Flash has experts that hand on what they get, and transformers stores weights that they do not use.
_IDLE = "of an expert without mlp_down, which uses no weights"
_HEADS_OF_ONE_WIDTH: _Relation = (("attn_q", 0), ("attn_o", 1))


def consistent(
    matrices: Sequence[WeightMatrix], unchecked: Container[str] = ()
) -> tuple[list[WeightMatrix], dict[str, Unnamed]]:
    """The matrices, but for those of a block of the layer or of an expert that contradicts itself or is idle; these.

    Args:
        matrices: of one layer.
        unchecked: names of matrices whose shape is not held against the others.
    """
    groups: dict[tuple[str | None, int | str | None], list[WeightMatrix]] = defaultdict(list)
    for matrix in matrices:
        groups[matrix.block, matrix.expert].append(matrix)
    complete = {block for (block, expert), group in groups.items() if isinstance(expert, int) and _writes(group)}
    idle = {
        key for key, group in groups.items() if key[0] in complete and isinstance(key[1], int) and not _writes(group)
    }
    contradictions = {key: found for key, group in groups.items() if (found := _contradiction(group, unchecked))}
    sound = [one for one in matrices if (one.block, one.expert) not in contradictions.keys() | idle]
    names = (name for key in idle for matrix in groups[key] for name in matrix.tensors)
    unnamed = {name: Unnamed(name, _IDLE) for name in names}
    for key, reason in contradictions.items():
        unnamed |= rejected(groups[key], reason)
    return sound, unnamed


def _contradiction(group: Sequence[WeightMatrix], unchecked: Container[str]) -> str | None:
    shapes = {matrix.name: matrix.parts[0].out_in for matrix in group if matrix.name not in unchecked}
    for (left, left_axis), (right, right_axis) in _relations(shapes):
        if left in shapes and right in shapes and shapes[left][left_axis] != shapes[right][right_axis]:
            return f"its layer has {left} {shapes[left]} and {right} {shapes[right]} (out, in), a contradiction"
    return None


def _writes(group: Sequence[WeightMatrix]) -> bool:
    return any(matrix.name == "mlp_down" for matrix in group)


def _relations(shapes: Mapping[str, tuple[int, int]]) -> tuple[_Relation, ...]:
    if "attn_k" in shapes and "attn_v" in shapes and shapes["attn_k"][0] == shapes["attn_v"][0]:
        return (*_RELATIONS, _HEADS_OF_ONE_WIDTH)
    return _RELATIONS
