"""Which output rows of a fused tensor belong to which matrix. Sizes come from the tensors wherever they can."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """``count`` blocks of ``size`` rows, the first at ``start``, ``period`` apart."""

    start: int
    size: int
    period: int
    count: int = 1

    def __len__(self) -> int:
        return self.size * self.count

    def of(self, tensor: "Tensor") -> "Tensor":
        """These rows of a tensor: a view where one block, or single rows at equal distance, are wanted."""
        if self.count == 1:
            return tensor[self.start : self.start + self.size]
        if self.size == 1:
            return tensor[self.start : self.start + self.period * self.count : self.period]
        blocks = tensor[: self.period * self.count].reshape(self.count, self.period, *tensor.shape[1:])
        return blocks[:, self.start : self.start + self.size].flatten(0, 1)


@dataclass(frozen=True)
class Sizes:
    """What a split may need to know of its surroundings; None where nothing says it.

    Attributes:
        total: rows of the fused tensor.
        query: rows of the queries: what the output projection of the layer reads.
        heads: number of query heads, from the config.
    """

    total: int
    query: int | None
    heads: int | None


def _blocks(names: Sequence[str], sizes: Sequence[int]) -> dict[str, Rows]:
    ends = list(accumulate(sizes))
    return {name: Rows(end - size, size, size) for name, size, end in zip(names, sizes, ends, strict=True)}


def _equal_blocks(names: Sequence[str], sizes: Sizes) -> dict[str, Rows] | None:
    """Blocks of one size: gate and up, keys and values."""
    size, rest = divmod(sizes.total, len(names))
    return None if rest else _blocks(names, [size] * len(names))


def _query_blocks(names: Sequence[str], sizes: Sizes) -> dict[str, Rows] | None:
    """Blocks, where queries (and their gate) are as many as the output projection reads; the others share the rest."""
    wide = [name for name in names if name in ("attn_q", "attn_gate")]
    if sizes.query is None or len(wide) == len(names):
        return None
    narrow, rest = divmod(sizes.total - len(wide) * sizes.query, len(names) - len(wide))
    if rest or narrow <= 0:
        return None
    return _blocks(names, [sizes.query if name in wide else narrow for name in names])


def _key_groups(names: Sequence[str], sizes: Sizes) -> dict[str, Rows] | None:
    """For each key head its query heads, the key, the value. With as many key heads as query heads: head by head."""
    if sizes.query is None or not sizes.heads or sizes.query % sizes.heads:
        return None
    head = sizes.query // sizes.heads
    groups, rest = divmod(sizes.total - sizes.query, (len(names) - 1) * head)
    if rest or groups <= 0 or sizes.heads % groups:
        return None
    widths = [head * sizes.heads // groups if name == "attn_q" else head for name in names]
    return _repeated(names, widths, groups)


def _head_by_head(names: Sequence[str], sizes: Sizes) -> dict[str, Rows] | None:
    """Equal parts within each head."""
    if not sizes.heads or sizes.total % (sizes.heads * len(names)):
        return None
    return _repeated(names, [sizes.total // sizes.heads // len(names)] * len(names), sizes.heads)


def _four_shards(names: Sequence[str], sizes: Sizes) -> dict[str, Rows] | None:
    """CodeGen keeps the four shards of the machine that it was trained on."""
    size, rest = divmod(sizes.total, 4 * len(names))
    return None if rest else _repeated(names, [size] * len(names), 4)


def _interleaved(names: Sequence[str], sizes: Sizes) -> dict[str, Rows] | None:
    count, rest = divmod(sizes.total, len(names))
    return None if rest else _repeated(names, [1] * len(names), count)


def _repeated(names: Sequence[str], widths: Sequence[int], count: int) -> dict[str, Rows]:
    period, ends = sum(widths), list(accumulate(widths))
    return {name: Rows(end - width, width, period, count) for name, width, end in zip(names, widths, ends, strict=True)}


# What a layout file may say of the rows of a fused tensor.
RULES: dict[str, Callable[[Sequence[str], Sizes], dict[str, Rows] | None]] = {
    "equal blocks": _equal_blocks,
    "query blocks": _query_blocks,
    "key groups": _key_groups,
    "head by head": _head_by_head,
    "four shards": _four_shards,
    "interleaved": _interleaved,
}
BY_HEADS = ("key groups", "head by head")  # those that need the number of heads
