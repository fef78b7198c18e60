"""Best matches of some neurons of both sides, noted while the rounded products pass by, and then looked at closely."""

from functools import partial

import torch
from torch import Tensor

from docs_sim.indices.docs import Tile

MATCHED = 2048  # neurons of each side whose best match is noted: so many tell a bias of 1 / 100 of a step
_WHOLE = 128  # neurons of each side of which all products are kept
_CHUNK = 256


class MatchSample:
    """Evenly spaced neurons of ``x`` and ``y`` (m, n) in bfloat16, and what they meet on the other side."""

    def __init__(self, x: Tensor, y: Tensor, product_dtype: torch.dtype) -> None:
        self.sides = (SampledSide(x, y, product_dtype), SampledSide(y, x, product_dtype))

    def watched(self, tile: Tile) -> Tile:
        """A tile that notes every product that it makes."""
        return Tile(tile.buffer, tile.rows, watch=self._note)

    def _note(self, left: Tensor, right: Tensor, products: Tensor) -> None:
        x, y = self.sides
        x.note(_offset(left), _offset(right), products)
        y.note(_offset(right), _offset(left), products.T)


def _offset(rows: Tensor) -> int:
    """Which row of the whole a slice of rows begins with."""
    return rows.storage_offset() // rows.shape[1]


class SampledSide:
    """Some neurons of one side; ``values`` and ``matches`` are their best products and with which neuron."""

    def __init__(self, neurons: Tensor, others: Tensor, product_dtype: torch.dtype) -> None:
        self._neurons, self._others = neurons, others
        self._step = -(-len(neurons) // MATCHED)
        self._wide_step = -(-len(neurons) // _WHOLE)
        new = partial(torch.zeros, device=neurons.device)
        self.values = new(len(neurons[:: self._step]), dtype=product_dtype)
        self.matches = new(len(self.values), dtype=torch.int64)
        self._whole = new((len(neurons[:: self._wide_step]), len(others)), dtype=product_dtype)

    def note(self, row: int, column: int, products: Tensor) -> None:
        """Take notice of the products of neurons from ``row`` on with others from ``column`` on."""
        some, where = _sampled(products, row, self._step)
        if len(some):
            found = _argmax(some)
            values = some.gather(1, found.unsqueeze(1)).squeeze(1)
            better = values > self.values[where]
            self.values[where] = torch.where(better, values, self.values[where])
            self.matches[where] = torch.where(better, found + column, self.matches[where])
        some, where = _sampled(products, row, self._wide_step)
        self._whole[where, column : column + products.shape[1]] = some

    def errors(self) -> Tensor:
        """What the rounding of the product added to each of ``values``, in float32."""
        neurons = self._neurons[:: self._step]
        exact = [
            torch.linalg.vecdot(one.float(), self._others[matches].float()).abs_()
            for one, matches in zip(neurons.split(_CHUNK), self.matches.split(_CHUNK), strict=True)
        ]
        return self.values.float() - torch.cat(exact)

    def rivals(self, deviation: float, steps: Tensor) -> float:
        """Mean number of products within two deviations and one step of the best, itself included.

        Args:
            deviation: of the noise of one product.
            steps: the distance between neighbouring numbers around each of ``values``.
        """
        products = self._whole.float()
        largest = products.amax(1)
        reach = 2 * deviation + steps.max()
        return float((products >= (largest - reach).unsqueeze(1)).sum()) / len(products)

    def concentration(self) -> float:
        """Upper estimate of the probability that two neurons have the same best match."""
        count = len(self.matches)
        if count < 2:
            return 1.0
        together = torch.bincount(self.matches).double()
        coincidences = float((together * (together - 1)).sum()) / 2
        return min(1.0, (coincidences + 3) / (count * (count - 1) / 2))  # none in N is compatible with up to 3 / N


def _sampled(products: Tensor, row: int, step: int) -> tuple[Tensor, slice]:
    """The rows of the sample among those from ``row`` on, and their places in the sample."""
    first = -row % step
    some = products[first::step]
    place = (row + first) // step
    return some, slice(place, place + len(some))


def _argmax(products: Tensor) -> Tensor:
    """Of each row. Non-negative floats are ordered like their bits, and torch compares 16-bit integers faster."""
    bits = products.contiguous()
    return (bits.view(torch.int16) if bits.dtype == torch.bfloat16 else bits).argmax(1)
