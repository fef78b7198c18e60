"""Grids of one or several indices over the layers of a model, with what a reader must know of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docs_sim.analyses.choices import SVCCA_VARIANCE, Computation, IndexName, NullName, Precision
from docs_sim.analyses.index_grid import IndexGrid, index_grids, off_diagonal
from docs_sim.analyses.selection import Selection
from docs_sim.checkpoint import WeightMatrix
from docs_sim.engine.device import find_devices
from docs_sim.engine.grid import DocsGrid
from docs_sim.errors import InputError, check_choice
from docs_sim.indices.docs import excess
from docs_sim.indices.table import INDICES

_BY_ACCIDENT = -0.005  # mean excess; that of random experts as small as (64, 40) is above
_MOST_REPEATS = 10_000


@dataclass(frozen=True, eq=False)
class LayerGrids:
    """Indices over all pairs of layers of one model.

    Attributes:
        model: ``name``, ``source``, ``revision``, ``architecture``, ``dtype``.
        matrix: canonical name.
        labels: of the rows and columns: layer numbers.
        grids: by index.
        warnings: what was left out and what says nothing, in words.
        settings: how it was computed.
        seconds: wall time of the computation.
    """

    model: dict[str, Any]
    matrix: str
    labels: list[str]
    grids: dict[str, IndexGrid]
    warnings: list[str]
    settings: dict[str, Any]
    seconds: float


def layer_grids(
    selection: Selection,
    indices: Sequence[str],
    computation: Computation,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LayerGrids:
    """Compute ``indices`` over the layers of a selection.

    Args:
        selection: one matrix for each layer.
        indices: their names.
        computation: how.
        progress: called with the steps done and the steps in all.

    Raises:
        InputError: if an argument is unknown, there are fewer than two layers, or a weight cannot be compared.
    """
    check_computation(computation, indices)
    checkpoint, matrices = selection.checkpoint, selection.matrices
    if len(matrices) < 2:
        raise InputError(
            f"{checkpoint.name}: comparing needs at least two layers with {matrices[0].name}; "
            f"there is one, layer {matrices[0].layer}"
        )
    devices = find_devices(computation.device)
    started = time.monotonic()
    grids = index_grids(
        matrices,
        indices,
        devices=devices,
        precision=computation.precision,
        memory_budget=computation.memory_budget,
        svcca_variance=computation.svcca_variance,
        null=computation.null,
        repeats=computation.null_repeats,
        progress=progress,
    )
    seconds = time.monotonic() - started
    neurons = next((grid.neurons for grid in grids.values() if grid.neurons is not None), None)
    return LayerGrids(
        model=selection.model(),
        matrix=matrices[0].name,
        labels=[str(one.layer) for one in matrices],
        grids=grids,
        warnings=[
            *selection.notes,
            *([] if neurons is None else [*_below_chance(selection, neurons), *_zero_columns(matrices, neurons)]),
            *(doubt for grid in grids.values() for doubt in grid.doubts),
        ],
        settings={
            "device": ",".join(map(str, devices)),
            "precision": computation.precision,
            "product": None if neurons is None else neurons.product,
            "exact_pairs": None if neurons is None else neurons.exact_pairs,
            "memory_budget": computation.memory_budget,
            "svcca_variance": computation.svcca_variance,
            "null": computation.null,
            "null_repeats": None if computation.null is None else computation.null_repeats,
            **selection.settings(),
            "sample": None,
        },
        seconds=seconds,
    )


def subject(matrix: str, settings: dict[str, Any]) -> str:
    """What was compared, in words: ``mlp_up``, ``mlp_up of expert 3``, ``encoder attn_q``, ``vision attn_q``."""
    tower, chosen, layout = (settings[choice] for choice in ("tower", "experts", "layout"))
    words = [*([] if tower == "language" else [tower]), settings["stack"], matrix]
    experts = {"concat": "of all experts", "shared": "of the shared experts"}
    if chosen is not None:
        words.append(experts.get(chosen, f"of expert {chosen}" if chosen.isdecimal() else f"of {chosen}"))
    return " ".join([*filter(None, words), *([] if layout is None else [f"by {Path(layout).name}"])])


def check_computation(computation: Computation, indices: Sequence[str]) -> None:
    """Refuse what cannot be computed, or says nothing to any of ``indices``, before anything is read.

    Raises:
        InputError: naming the choice.
    """
    check_indices(indices)
    check_choice("precision", computation.precision, Precision)
    if computation.precision != Precision.auto and not {IndexName.docs, IndexName.docs_mean} & set(indices):
        raise InputError(
            "the precision is of docs and docs_mean; the other indices have one, and these were not asked for"
        )
    find_devices(computation.device)
    if not 0 < computation.svcca_variance <= 1:
        raise InputError(f"the SVCCA threshold is a share of the variance in (0, 1], not {computation.svcca_variance}")
    if computation.svcca_variance != SVCCA_VARIANCE and not {IndexName.svcca, IndexName.svcca_r2} & set(indices):
        raise InputError("the SVCCA threshold is of the indices svcca and svcca_r2, and neither was asked for")
    if computation.null is not None:
        check_choice("null", computation.null, NullName)
    elif computation.null_repeats != 1:
        raise InputError("which null is to be repeated? --null rotation or --null reinit")
    if not 1 <= computation.null_repeats <= _MOST_REPEATS:
        raise InputError(f"a null is drawn 1 to {_MOST_REPEATS:,} times, not {computation.null_repeats}")


def check_indices(indices: Sequence[str]) -> None:
    """Refuse names of no index, and none at all.

    Raises:
        InputError: that lists the indices.
    """
    for index in indices:
        check_choice("index", index, INDICES)
    if not indices:
        raise InputError(f"which indices? Known: {', '.join(INDICES)}")


def _below_chance(selection: Selection, grid: DocsGrid) -> list[str]:
    """Why layers of experts side by side may be less alike than chance, if they are, and by more than by accident."""
    above = off_diagonal(excess(grid.values, grid.chance))
    above = above[np.isfinite(above)]  # where chance is 1 nothing is above it
    if selection.experts != "concat" or not above.size or above.mean() > _BY_ACCIDENT:
        return []
    return [
        "the layers are less alike than chance, which counts the neurons of all experts as independent: experts of a "
        "layer that are near copies of each other count as fewer; --experts 0 compares one of each layer"
    ]


def _zero_columns(matrices: Sequence[WeightMatrix], grid: DocsGrid) -> list[str]:
    return [
        f"{matrix.key}: {count} of {matrix.shape[1]} columns are zero and were left out"
        for matrix, count in zip(matrices, grid.zero_columns, strict=True)
        if count
    ]
