"""Best matches of some neurons of both sides, noted while the rounded products pass by, and then looked at closely."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from docs_sim.indices.docs import Tile

MATCHED = 2048  # neurons of each side whose best match is noted: so many tell a bias of 1 / 100 of a step
_WHOLE = 128  # neurons of each side of which all products are kept
_CHUNK = 512
_BLOCK = 32
_SIGNIFICANT_BITS = {torch.bfloat16: 8}


class MatchSample:
    """Evenly spaced neurons of ``x`` and ``y`` (m, n) in bfloat16, and what they meet on the other side."""

    def __init__(self, x: Tensor, y: Tensor, product_dtype: torch.dtype) -> None:
        self.sides = (SampledSide(x, y, product_dtype), SampledSide(y, x, product_dtype))

    def watched(self, tile: Tile) -> Tile:
        """A tile that notes every product that it makes."""
        return Tile(tile.buffer, tile.rows, watch=self._note)

    def _note(self, left: Tensor, right: Tensor, products: Tensor) -> None:
        x, y = self.sides
        rows, columns = _offset(left), _offset(right)
        x.note(*_sampled(products, rows, x.step), columns, _argmax_of_rows)
        y.note(*_sampled(products.T, columns, y.step), rows, _argmax_of_columns)
        x.keep(*_sampled(products, rows, x.wide_step), columns)
        y.keep(*_sampled(products.T, columns, y.wide_step), rows)


def _offset(rows: Tensor) -> int:
    """Which row of the whole a slice of rows begins with."""
    return rows.storage_offset() // rows.shape[1]


def _sampled(products: Tensor, row: int, step: int) -> tuple[Tensor, slice]:
    """The rows of the sample among those from ``row`` on, and their places in the sample."""
    first = -row % step
    some = products[first::step]
    place = (row + first) // step
    return some, slice(place, place + len(some))


class SampledSide:
    """Some neurons of one side; ``values`` and ``matches`` are their best products and with which neuron."""

    def __init__(self, neurons: Tensor, others: Tensor, product_dtype: torch.dtype) -> None:
        self._neurons, self._others = neurons, others
        self.step = -(-len(neurons) // MATCHED)
        self.wide_step = -(-len(neurons) // _WHOLE)
        new = partial(torch.zeros, device=neurons.device)
        self.values = new(len(neurons[:: self.step]), dtype=product_dtype)
        self.matches = new(len(self.values), dtype=torch.int64)
        self._whole = new((len(neurons[:: self.wide_step]), len(others)), dtype=product_dtype)

    def note(self, products: Tensor, where: slice, column: int, argmax: Callable[[Tensor], Tensor]) -> None:
        """Take notice of the products of neurons at ``where`` of the sample with others from ``column`` on."""
        if not len(products):
            return
        found = argmax(products)
        values = products.gather(1, found.unsqueeze(1)).squeeze(1)
        better = values > self.values[where]
        self.values[where] = torch.where(better, values, self.values[where])
        self.matches[where] = torch.where(better, found + column, self.matches[where])

    def keep(self, products: Tensor, where: slice, column: int) -> None:
        """Keep the products of a few neurons as they are."""
        self._whole[where, column : column + products.shape[1]] = products

    def exact(self) -> Tensor:
        """``values`` before they were rounded, in float32."""
        neurons = self._neurons[:: self.step]
        exact = [
            torch.linalg.vecdot(one.float(), self._others[matches].float()).abs_()
            for one, matches in zip(neurons.split(_CHUNK), self.matches.split(_CHUNK), strict=True)
        ]
        return torch.cat(exact)

    def rivals(self, deviation: float) -> float:
        """Mean number of products within two deviations of the noise and one step of the best, itself included."""
        products = self._whole.float()
        largest = products.amax(1)
        reach = 2 * deviation + steps_around(largest, self._whole.dtype)
        return float((products >= (largest - reach).unsqueeze(1)).sum()) / len(products)

    def concentration(self) -> float:
        """Upper estimate of the probability that two neurons have the same best match."""
        count = len(self.matches)
        if count < 2:
            return 1.0
        together = torch.bincount(self.matches).double()
        coincidences = float((together * (together - 1)).sum()) / 2
        return min(1.0, (coincidences + 3) / (count * (count - 1) / 2))  # none in N is compatible with up to 3 / N


def _argmax_of_rows(products: Tensor) -> Tensor:
    """Non-negative floats are ordered like their bits, and numpy finds the largest integer far faster than torch."""
    if products.dtype == torch.bfloat16 and products.device.type == "cpu":
        return torch.from_numpy(products.contiguous().view(torch.int16).numpy().argmax(1))
    return products.argmax(1)


def _argmax_of_columns(products: Tensor) -> Tensor:
    """Of the rows of a transposed tile: first which block of 32 holds it, then which of the block."""
    columns = products.T.contiguous()
    if len(columns) % _BLOCK:
        return _argmax_of_rows(columns.T)
    bits = columns.view(torch.int16) if columns.dtype == torch.bfloat16 else columns
    blocks = bits.view(-1, _BLOCK, bits.shape[1])
    block = blocks.amax(1).T.contiguous().argmax(1)
    within = blocks[block, :, torch.arange(len(block), device=block.device)].argmax(1)
    return block * _BLOCK + within


def steps_around(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of ``dtype`` around ``values``; float32 and wider count as 0."""
    if dtype not in _SIGNIFICANT_BITS:
        return torch.zeros_like(values, dtype=torch.float32)
    return torch.exp2((torch.frexp(values.float()).exponent - _SIGNIFICANT_BITS[dtype]).float())
