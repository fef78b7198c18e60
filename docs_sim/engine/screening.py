"""The best match of every neuron: found by coarse products, and then computed finely.

A coarse product can pick a rival that is almost as good as the best. By how much matches fall short is measured on a
sample of the neurons, of which all products are kept and all rivals are looked at.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docs_sim.engine.coarse import CoarseNeurons, fine_cosines, fine_error

SAMPLED = 1024  # neurons of each side whose rivals are looked at
_NOISE = 6.0  # deviations: a product that looks worse than the best by more than that is worse
_MOST_RIVALS = 16  # of a neuron, on average
_BLOCK = 16  # rows among which the best of a column is looked for at once
_SIGNIFICANT_BITS = {torch.bfloat16: 8}


@dataclass(frozen=True)
class Screened:
    """What one side of a pair meets on the other.

    Attributes:
        cosines: (m,) float32, |cosine| of each neuron and the match that was found.
        sample: numbers of the neurons whose rivals were looked at.
        shortfalls: by how much the cosine of each of them is below that of its best match; None: too many rivals.
        fine_error: standard error of one of the cosines.
    """

    cosines: Tensor
    sample: Tensor
    shortfalls: Tensor | None
    fine_error: float


class Screener:
    """Finds best matches; keeps its buffers from pair to pair, since fresh memory costs more than what is done in it.

    Args:
        rows: of a tile of products.
        dtype: in which the device returns products.
        device: where the neurons are.
    """

    def __init__(self, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = rows
        self._tile = torch.empty(rows**2, dtype=dtype, device=device)
        self._kept = self._tile.new_empty(0), self._tile.new_empty(0)

    def screen(self, x: CoarseNeurons, y: CoarseNeurons) -> tuple[Screened, Screened]:
        """The best matches of both sides of a pair."""
        side_x, side_y = _Side(x, y, self._kept[0], of_rows=True), _Side(y, x, self._kept[1], of_rows=False)
        for row in range(0, len(x.rows), self._rows):
            left = x.rows[row : row + self._rows]
            for column in range(0, len(y.rows), self._rows):
                products = _absolute_products(left, y.rows[column : column + self._rows], self._tile)
                side_x.note(products, row, column)
                side_y.note(products.T, column, row)
        return side_x.result(), side_y.result()


def _absolute_products(left: Tensor, right: Tensor, tile: Tensor) -> Tensor:
    tile = tile[: len(left) * len(right)].view(len(left), len(right))
    if left.dtype == torch.int8:
        torch._int_mm(left, right.T, out=tile)
    elif left.dtype == tile.dtype:
        torch.mm(left, right.T, out=tile)
    else:
        torch.mm(left, right.T, out_dtype=tile.dtype, out=tile)
    return tile.abs_()


class _Side:
    """The neurons of one side while the products pass by: as their rows, or as the rows of their transpose."""

    def __init__(self, neurons: CoarseNeurons, others: CoarseNeurons, kept: Tensor, *, of_rows: bool) -> None:
        self._neurons, self._others = neurons, others
        self._argmax = _argmax_of_rows if of_rows else _argmax_of_columns
        count, device = len(neurons.rows), neurons.rows.device
        self._values = kept.new_full((count,), -1)
        self._matches = torch.zeros(count, dtype=torch.int64, device=device)
        # Odd: neurons that take turns, such as the halves of rotary pairs, must not be told apart by the sample.
        self._step = max(1, count // SAMPLED - (count // SAMPLED + 1) % 2)
        self._sample = torch.arange(0, count, self._step, device=device)
        shape = (len(self._sample), len(others.rows))  # in the order of memory in which the products come
        self._whole = kept.resize_(shape) if of_rows else kept.resize_(shape[::-1]).T

    def note(self, products: Tensor, row: int, column: int) -> None:
        """Take notice of the products of neurons from ``row`` on with others from ``column`` on."""
        where = slice(row, row + len(products))
        found = self._argmax(products)
        values = products.gather(1, found.unsqueeze(1)).squeeze(1)
        better = values > self._values[where]
        self._values[where] = torch.where(better, values, self._values[where])
        self._matches[where] = torch.where(better, found + column, self._matches[where])
        sampled = products[-row % self._step :: self._step]
        first = -(-row // self._step)
        self._whole[first : first + len(sampled), column : column + products.shape[1]] = sampled

    def result(self) -> Screened:
        """When all products have passed."""
        everyone = torch.arange(len(self._matches), device=self._matches.device)
        cosines = fine_cosines(self._neurons, everyone, self._others, self._matches)
        unit = self._neurons.unit * self._others.unit
        noise = math.sqrt(float((self._values.float() * unit - cosines).square().mean()))
        return Screened(
            cosines, self._sample, self._shortfalls(cosines, noise), fine_error(self._neurons, self._others)
        )

    def _shortfalls(self, cosines: Tensor, noise: float) -> Tensor | None:
        largest = self._values[self._sample].float()
        reach = _NOISE * noise / (self._neurons.unit * self._others.unit) + steps_around(largest, self._whole.dtype)
        least = (largest - reach).to(self._whole.dtype)
        close = self._whole >= least.unsqueeze(1)
        if int(close.count_nonzero()) > _MOST_RIVALS * len(self._sample):
            return None
        rivals, others = _places(close)
        new = others != self._matches[self._sample][rivals]  # what was found is no rival of itself
        rivals, others = rivals[new], others[new]
        found = cosines[self._sample]
        looked_at = fine_cosines(self._neurons, self._sample[rivals], self._others, others)
        return found.scatter_reduce(0, rivals, looked_at, "amax") - found


def _places(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every True, searched for in the order of memory."""
    if not flags.is_contiguous():
        return _places(flags.T)[::-1]
    flat = flags.view(-1)
    # As with the largest integer, numpy is several times as fast.
    numbers = torch.from_numpy(np.flatnonzero(flat.numpy())) if flat.device.type == "cpu" else flat.nonzero().squeeze(1)
    return numbers // flags.shape[1], numbers % flags.shape[1]


def _argmax_of_rows(products: Tensor) -> Tensor:
    """Numpy finds the largest integer far faster than torch, and non-negative floats are ordered like their bits."""
    if products.device.type == "cpu":
        return torch.from_numpy(_as_integers(products).numpy().argmax(1))
    return products.argmax(1)


def _argmax_of_columns(products: Tensor) -> Tensor:
    """Of the rows of a transposed tile: first which block holds it, then which of the block."""
    columns = products.T
    if len(columns) % _BLOCK or products.device.type != "cpu":
        return _argmax_of_rows(products)
    blocks = _as_integers(columns).view(-1, _BLOCK, columns.shape[1])
    block = torch.from_numpy(blocks.amax(1).T.contiguous().numpy().argmax(1))
    within = blocks[block, :, torch.arange(len(block))].argmax(1)
    return block * _BLOCK + within


def _as_integers(products: Tensor) -> Tensor:
    return products.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[products.element_size()])


def steps_around(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of ``dtype`` around ``values``; exact and float32 ones count as 0."""
    if dtype not in _SIGNIFICANT_BITS:
        return torch.zeros_like(values, dtype=torch.float32)
    return torch.exp2((torch.frexp(values.float()).exponent - _SIGNIFICANT_BITS[dtype]).float())
