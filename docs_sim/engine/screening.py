"""The best match of every neuron: coarse products tell where it can be, and all that is there is computed finely.

Of the coarse products of a neuron with a block of others only the largest is kept. How far rounding moves a product is
known, as a standard deviation: so most blocks do not hold the best match, and in the others every cosine is computed
from the fine neurons.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from docs_sim.engine.coarse import BLOCK, CoarseNeurons, padded

_LEAST_NEURONS = 1024  # below, screening costs more than it saves: measured on two cores
_LENGTHS = range(128, 2**16 + 1)  # shorter ones gain nothing either; products of twice as long ones overflow int32
_SQUARE = 16_384  # neurons a side whose block maxima are held at once, a multiple of every tile
# Of each of the four errors that could hide a best match: in its product and in its rival's, by the rounding of this
# neuron and of theirs. Where these are alike it makes 5 of their sum: one in 3 million is exceeded.
_DEVIATIONS = 2.5
_MOST_CANDIDATES = 1 / 8  # of all blocks: beyond it the plain float32 product is as fast
_GROUP = 64  # neurons that are compared with a block at once


class Screener:
    """Finds best matches; keeps tile and maxima from pair to pair, since fresh memory costs more than the sums.

    Args:
        rows: of a tile of products, a multiple of ``BLOCK``.
        most_neurons: of any matrix.
        device: where the neurons are.
    """

    def __init__(self, rows: int, most_neurons: int, device: torch.device) -> None:
        side = min(_SQUARE, padded(most_neurons))
        self._rows = min(rows, side)
        self._tile = torch.empty(self._rows**2, dtype=torch.int32, device=device)
        self._maxima = torch.empty((2, side * side // BLOCK), dtype=torch.int32, device=device)

    def best_matches(self, x: CoarseNeurons, y: CoarseNeurons) -> tuple[Tensor, Tensor] | None:
        """For each neuron the largest |cosine| with any neuron of the other side, (count,) float32, both ways.

        None if so many neurons come close to the best that coarse products do not tell much.
        """
        best_x, best_y = torch.zeros_like(x.steps), torch.zeros_like(y.steps)
        for some_x, into_x in zip(_split(x), best_x.split(_SQUARE), strict=True):
            for some_y, into_y in zip(_split(y), best_y.split(_SQUARE), strict=True):
                of_x, of_y = self._block_maxima(some_x.rows, some_y.rows)
                found = (
                    self._improve(into_x, some_x, some_y, of_x),
                    self._improve(into_y, some_y, some_x, of_y),
                )
                if not all(found):
                    return None
        return best_x[: x.count], best_y[: y.count]

    def _block_maxima(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The largest |product| of every neuron with every block of others: (m_x, blocks of y), (m_y, blocks of x).

        A block is not contiguous, but takes every k-th of the k * BLOCK neurons of a tile: so vectors are compared.
        """
        of_x = self._maxima[0, : len(x) * (len(y) // BLOCK)].view(len(x), -1)
        of_y = self._maxima[1, : len(y) * (len(x) // BLOCK)].view(-1, len(y))
        for row in range(0, len(x), self._rows):
            left = x[row : row + self._rows]
            for column in range(0, len(y), self._rows):
                right = y[column : column + self._rows]
                tile = self._tile[: len(left) * len(right)].view(len(left), len(right))
                torch._int_mm(left, right.T, out=tile)
                tile.abs_()
                blocks_x, blocks_y = len(left) // BLOCK, len(right) // BLOCK
                first_x, first_y = row // BLOCK, column // BLOCK
                of_x[row : row + len(left), first_y : first_y + blocks_y] = tile.view(-1, BLOCK, blocks_y).amax(1)
                by_rows = tile.view(BLOCK, blocks_x, -1)
                of_y[first_x : first_x + blocks_x, column : column + len(right)] = by_rows.amax(0)
        return of_x, of_y.T

    def _improve(self, best: Tensor, neurons: CoarseNeurons, others: CoarseNeurons, maxima: Tensor) -> bool:
        """Raise ``best`` (m,) to the best matches among ``others``; False if there are too many candidates.

        Args:
            best: what is known of each neuron from other squares.
            neurons: the m neurons.
            others: the other side.
            maxima: (m, blocks), overwritten.
        """
        places = torch.arange(len(others.rows), device=best.device).split(self._rows)
        members = torch.cat([tile.view(BLOCK, -1).T for tile in places])
        candidates = _candidates(best, neurons, others, members, maxima)
        if int(candidates.count_nonzero()) > _MOST_CANDIDATES * candidates.numel():
            return False
        blocks, of_neurons = candidates.T.contiguous().nonzero(as_tuple=True)
        # Widened coordinates take no more memory than a tile, and fill all threads as it does.
        at_once = max(1, self._tile.numel() // (4 * _GROUP * neurons.fine.shape[1]))
        left, right = _Widening(neurons.fine, at_once * _GROUP), _Widening(others.fine, at_once * BLOCK)
        for group, block in _groups(of_neurons, blocks, len(members), at_once):
            rivals = members[block]
            cosines = torch.bmm(left.widened(group), right.widened(rivals).transpose(1, 2)).abs_()
            found = cosines.mul_(others.steps[rivals].unsqueeze(1)).amax(2).mul_(neurons.steps[group]).clamp_(max=1)
            best.scatter_reduce_(0, group.flatten(), found.flatten(), "amax")
        return True


def worth_screening(shapes: Sequence[tuple[int, int]]) -> bool:
    """Whether matrices of these shapes (n, m) are large enough."""
    return all(n in _LENGTHS for n, _ in shapes) and max(m for _, m in shapes) >= _LEAST_NEURONS


def _split(neurons: CoarseNeurons) -> Iterator[CoarseNeurons]:
    return (neurons.part(start, start + _SQUARE) for start in range(0, len(neurons.rows), _SQUARE))


def _reach(neurons: CoarseNeurons, level: float) -> Tensor:
    """How far the rounding of each neuron can move a coarse cosine that is at most ``level``."""
    return _DEVIATIONS * neurons.noise + level * neurons.lean


def _candidates(best: Tensor, neurons: CoarseNeurons, others: CoarseNeurons, members: Tensor, maxima: Tensor) -> Tensor:
    """(m, blocks): whether the best match of a neuron, if above ``best``, may be in a block with these ``members``.

    ``maxima`` is overwritten.
    """
    step = neurons.unit * others.unit
    level = float(maxima.amax()) * step
    own, of_members = (_reach(side, level).div(step).ceil_().int() for side in (neurons, others))
    of_blocks = of_members[members].amax(1)
    at_least = maxima.sub_(of_blocks).amax(1).sub_(own).maximum((best / step).int())
    candidates = maxima.add_(2 * of_blocks) >= at_least.sub_(own).unsqueeze(1)
    candidates[neurons.count :] = False
    return candidates


def _groups(neurons: Tensor, blocks: Tensor, count: int, at_once: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of a neuron and a block, sorted by block: (k, _GROUP) neurons and their (k,) blocks, k <= ``at_once``.

    Where a group is not full, neuron 0 stands in: whatever is computed for it is one of its cosines.
    """
    sizes = torch.bincount(blocks, minlength=count)
    groups = (sizes + _GROUP - 1) // _GROUP
    first, first_group = sizes.cumsum(0) - sizes, groups.cumsum(0) - groups
    place = torch.arange(len(neurons), device=neurons.device) - first[blocks]
    table = neurons.new_zeros((int(groups.sum()), _GROUP))
    table[first_group[blocks] + place // _GROUP, place % _GROUP] = neurons
    of_groups = torch.repeat_interleave(torch.arange(count, device=neurons.device), groups)
    return zip(table.split(at_once), of_groups.split(at_once), strict=True)


class _Widening:
    """Neurons picked out of ``fine`` (m, n) and widened to float32, up to ``most`` of them in the same memory."""

    def __init__(self, fine: Tensor, most: int) -> None:
        self._fine = fine
        self._picked = fine.new_empty((most, fine.shape[1]))
        self._wide = torch.empty_like(self._picked, dtype=torch.float32)

    def widened(self, places: Tensor) -> Tensor:
        """Shape of ``places`` and n; valid until the next call."""
        picked = torch.index_select(self._fine, 0, places.flatten(), out=self._picked[: places.numel()])
        return self._wide[: places.numel()].copy_(picked).view(*places.shape, self._fine.shape[1])
