"""Grids of indices that are computed from parts: L factorizations for L matrices, then a small product a pair."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from docs_sim.engine.device import free_memory, with_float64
from docs_sim.engine.parallel import run_together
from docs_sim.engine.parts import MatrixParts, factoring
from docs_sim.engine.plan import cross_order, pair_order, share
from docs_sim.indices.precision import full_float32
from docs_sim.indices.table import INDICES, Property

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class FactoredGrid:
    """One index over all pairs of L matrices.

    Attributes:
        values: (L, L), symmetric: the mean of both directions; NaN where a side has no value.
        directions: (L, L): row i, column j is how matrix i is explained by matrix j.
        degenerate: (L, L): whether the value does not depend on how the two matrices lie to each other.
    """

    values: np.ndarray
    directions: np.ndarray
    degenerate: np.ndarray


def factored_grid(
    parts: Sequence[MatrixParts],
    index: str,
    *,
    devices: Sequence[torch.device],
    memory_budget: int | None = None,
    progress: Callable[[int], None] = lambda pairs: None,
) -> FactoredGrid:
    """Compare every pair of matrices of which ``parts`` are kept, and each with itself.

    Args:
        parts: of each matrix, prepared for this index.
        index: one that is computed from parts.
        devices: share the pairs.
        memory_budget: bytes for parts on each device that has a memory of its own.
        progress: called with 1 after each pair.
    """
    count = len(parts)
    directions = np.full((count, count), np.nan)
    reflexive = Property.reflexivity in INDICES[index].properties
    np.fill_diagonal(directions, [1.0 if reflexive and index not in one.undefined else np.nan for one in parts])

    def order(capacity: int) -> Iterator[Pair]:
        if not reflexive:
            yield from ((i, i) for i in range(count))
        yield from pair_order(count, capacity)

    compared = _compare(parts, order, index, devices=devices, memory_budget=memory_budget, progress=progress)
    for (i, j), values in compared:
        directions[i, j], directions[j, i] = values
    fixed = np.array([index in one.fixed for one in parts])
    defined = np.array([index not in one.undefined for one in parts])
    sides = fixed[:, None].astype(int) + fixed
    return FactoredGrid(
        (directions + directions.T) / 2, directions, (sides >= factoring(index).fixed_by) & defined[:, None] & defined
    )


def factored_pairs(
    rows: Sequence[MatrixParts],
    columns: Sequence[MatrixParts],
    wanted: Callable[[int, int], bool],
    index: str,
    *,
    devices: Sequence[torch.device],
    memory_budget: int | None = None,
    progress: Callable[[int], None] = lambda pairs: None,
) -> np.ndarray:
    """Compare the matrices of one list with those of another, where ``wanted`` says so of row and column.

    Other arguments as ``factored_grid``.

    Returns:
        (R, C): means of both directions; NaN where not wanted, or a side has no value.
    """
    result = np.full((len(rows), len(columns)), np.nan)

    def order(capacity: int) -> Iterator[Pair]:
        pairs = cross_order(len(rows), len(columns), capacity)
        return (pair for pair in pairs if wanted(pair[0], pair[1] - len(rows)))

    compared = _compare(
        [*rows, *columns], order, index, devices=devices, memory_budget=memory_budget, progress=progress
    )
    for (i, j), values in compared:
        result[i, j - len(rows)] = sum(values) / 2
    return result


def _compare(
    parts: Sequence[MatrixParts],
    order: Callable[[int], Iterator[Pair]],
    index: str,
    *,
    devices: Sequence[torch.device],
    memory_budget: int | None,
    progress: Callable[[int], None],
) -> list[tuple[Pair, tuple[float, float]]]:
    rule, devices = factoring(index), with_float64(devices)
    capacity = min(_capacity(parts, rule.parts, device, memory_budget) for device in devices)
    runs = share(list(order(max(2, capacity - 1))), len(devices))  # the least recently used goes: one place to spare

    def compare(device: torch.device, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, tuple[float, float]]]:
        @lru_cache(maxsize=capacity)
        def on_device(number: int) -> dict[str, Tensor]:
            return {name: parts[number].tensors[name].to(device) for name in rule.parts}

        for pair in pairs:
            undefined = any(index in parts[number].undefined for number in pair)
            nothing = float("nan"), float("nan")
            yield pair, nothing if undefined else rule.compare(on_device(pair[0]), on_device(pair[1]))

    with full_float32():
        return run_together([compare(device, run) for device, run in zip(devices, runs, strict=True)], progress)


def _capacity(
    parts: Sequence[MatrixParts], names: Sequence[str], device: torch.device, memory_budget: int | None
) -> int:
    """How many matrices a device has room for; on the CPU the parts are where they are."""
    largest = max(sum(one.tensors[name].nbytes for name in names if name in one.tensors) for one in parts)
    if device.type == "cpu" or largest == 0:
        return len(parts)
    return max(2, (memory_budget or free_memory(device) // 2) // largest)
