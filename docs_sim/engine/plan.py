"""In which order the pairs of a list are compared, so that no matrix is read more often than memory forces."""

from collections.abc import Iterator
from itertools import pairwise


def pair_order(count: int, capacity: int) -> Iterator[tuple[int, int]]:
    """Every pair i < j of ``count`` matrices once, for a memory that holds ``capacity`` >= 2 of them.

    A block of capacity - 1 matrices stays while the others pass by, one at a time. With capacity >= count each
    matrix is read once, else about count^2 / (2 (capacity - 1)) are read in all.

    >>> list(pair_order(3, 2))
    [(0, 1), (0, 2), (1, 2)]
    """
    block = capacity - 1
    for start in range(0, count, block):
        stop = min(start + block, count)
        yield from ((i, j) for j in range(start, stop) for i in range(start, j))
        yield from ((i, j) for j in range(stop, count) for i in range(start, stop))


def cross_order(rows: int, columns: int, capacity: int) -> Iterator[tuple[int, int]]:
    """Every pair (i, rows + j) of ``rows`` matrices and the ``columns`` that follow them, as ``pair_order`` has them.

    >>> list(cross_order(2, 2, 2))
    [(0, 2), (0, 3), (1, 2), (1, 3)]
    """
    block = capacity - 1
    for start in range(0, rows, block):
        yield from ((i, rows + j) for j in range(columns) for i in range(start, min(start + block, rows)))


def share(pairs: list[tuple[int, int]], workers: int) -> list[list[tuple[int, int]]]:
    """Cut a plan into ``workers`` contiguous runs of nearly equal length."""
    cuts = [len(pairs) * worker // workers for worker in range(workers + 1)]
    return [pairs[start:stop] for start, stop in pairwise(cuts)]
