"""``docs-sim inspect``: what a checkpoint holds, from its headers."""

import re
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from docs_sim.errors import shown
from docs_sim.report.text import aligned, ranges

from . import options
from .output import default_directory, print_lines, print_result, progress_bar, shortened
from .request import deliver, suffixes

if TYPE_CHECKING:
    from docs_sim.analyses.column_orthogonality import ColumnOrthogonality
    from docs_sim.checkpoint import Checkpoint, WeightMatrix
    from docs_sim.checkpoint.unnamed import Unnamed

_OF_ORTHOGONALITY = {"matrix", "formats", "out", "device", "quiet"}
_NUMBER = re.compile(r"(?<=\w\.)\d+(?=\.\w)")  # of a layer or an expert in a name; shapes and conv1d have others


def inspect(
    context: typer.Context,
    model: options.Model,
    orthogonality: Annotated[
        bool,
        typer.Option(
            "--orthogonality",
            metavar="",
            help="Read the weights instead, and measure |cos| between the columns of each matrix.",
        ),
    ] = False,
    matrix: Annotated[
        str | None, typer.Option("--matrix", "-m", help="With --orthogonality: only this one.", show_default=False)
    ] = None,
    tower: options.Tower = "language",
    layout: options.Layout = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
    formats: options.Formats = None,
    out: options.Out = None,
    json: options.Json = False,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """List layers, matrices, experts, shapes, storage, and every other tensor with a reason, from headers alone."""
    from docs_sim.checkpoint import open_checkpoint
    from docs_sim.report.files import json_text

    if not orthogonality:
        options.refuse_given(context, _OF_ORTHOGONALITY, "goes with --orthogonality; else headers are all that is read")

    def arrived(count: int) -> None:
        bars.arrived(count)

    with progress_bar(f"headers of {Path(model).name}", quiet=quiet) as bars:
        checkpoint = open_checkpoint(model, revision, offline=offline, tower=tower, layout=layout, arrived=arrived)
    if not orthogonality:
        if json:
            print_result(json_text(_contents(checkpoint)))
        else:
            print_lines([*_heading(checkpoint), "", *_matrix_table(checkpoint.matrices()), *_unnamed_table(checkpoint)])
        return

    def compute() -> "ColumnOrthogonality":
        from docs_sim.analyses.column_orthogonality import column_orthogonality

        nonlocal bars
        with progress_bar(f"{checkpoint.name} columns", quiet=quiet) as bars:
            return column_orthogonality(checkpoint, matrix, device=device, progress=bars.pairs)

    def save(result: "ColumnOrthogonality", directory: Path) -> list[Path]:
        return result.save(directory, formats=suffixes(formats))

    directory = out or default_directory("orthogonality", checkpoint.name, matrix or "")
    deliver(compute, save, directory, json=json, quiet=quiet)


def _contents(checkpoint: "Checkpoint") -> dict[str, Any]:
    return {
        "schema": 1,
        "command": "inspect",
        "docs_sim": version("docs-sim"),
        "model": checkpoint.describe() | {"layout": checkpoint.layout, "dtype": checkpoint.dtype},
        "towers": checkpoint.towers,
        "tower": checkpoint.tower,
        "layout_file": None if checkpoint.layout_file is None else str(checkpoint.layout_file),
        "unused_paths": checkpoint.unused_paths,
        "adapter_ranks": checkpoint.adapter_ranks,
        "layers": checkpoint.layers,
        "bytes": sum(tensor.bytes for tensor in checkpoint.tensors.values()),
        "matrices": [
            {
                "key": matrix.key,
                "name": matrix.name,
                "layer": matrix.layer,
                "expert": matrix.expert,
                "block": matrix.block,
                "stack": matrix.stack,
                "shape": matrix.shape,
                "dtype": matrix.dtype,
                "tensors": matrix.tensors,
            }
            for matrix in checkpoint.matrices()
        ],
        "unnamed": [
            {
                "name": unnamed.name,
                "shape": checkpoint.tensors[unnamed.name].shape,
                "dtype": checkpoint.tensors[unnamed.name].dtype,
                "reason": unnamed.reason,
            }
            for unnamed in checkpoint.unnamed
        ],
    }


def _heading(checkpoint: "Checkpoint") -> list[str]:
    size = sum(tensor.bytes for tensor in checkpoint.tensors.values())
    layout = f"{checkpoint.layout} names" if checkpoint.layout else "no known layout"
    return [
        f"{checkpoint.name}  {shortened(checkpoint.architecture) or 'architecture not stated'}  ({layout})",
        f"  {checkpoint.source.weights}" + (f"  at {checkpoint.source.revision}" if checkpoint.source.revision else ""),
        f"  {len(checkpoint.tensors)} tensors, {size / 1e6:,.1f} MB, mostly {checkpoint.dtype}, "
        f"{len(checkpoint.layers)} layers",
        *([f"  towers: {', '.join(checkpoint.towers)}"] if len(checkpoint.towers) > 1 else []),
        *_adapter(checkpoint),
        *(f"  no tensor is at {shown(path)} of {checkpoint.layout_file}" for path in checkpoint.unused_paths),
    ]


def _adapter(checkpoint: "Checkpoint") -> list[str]:
    """What an adapter changes of its base."""
    if checkpoint.source.adapter is None:
        return []
    ranks = ranges(checkpoint.adapter_ranks)
    modules = f"{len(checkpoint.adapter_ranks)} LoRA modules" + (f" of rank {ranks}" if ranks else "")
    return [f"  adapter {checkpoint.source.adapter.weights}, {modules}"]


def _matrix_table(matrices: list["WeightMatrix"]) -> list[str]:
    """One line for each kind of matrix: equal name, shape and storage."""
    kinds: dict[tuple[Any, ...], list[WeightMatrix]] = defaultdict(list)
    for matrix in matrices:
        shared = matrix.expert if isinstance(matrix.expert, str) else ""
        name = matrix.name if matrix.stack is None else f"{matrix.stack} {matrix.name}"
        kinds[name, matrix.block or shared, matrix.shape, matrix.dtype, matrix.expert is None].append(matrix)
    rows = [("matrix", "layers", "experts", "shape (n, m)", "stored as")]
    for (name, part, shape, dtype, _), members in kinds.items():
        layers = ranges(member.layer for member in members if member.layer is not None)
        numbers = ranges(member.expert for member in members if isinstance(member.expert, int))
        rows.append((name, layers, " ".join(filter(None, [part, numbers])), str(shape), dtype))
    return aligned(rows) if len(rows) > 1 else ["no matrix could be named"]


def _unnamed_table(checkpoint: "Checkpoint") -> list[str]:
    """The tensors without a name, alike ones together."""
    alike: dict[tuple[str, str], list[Unnamed]] = defaultdict(list)
    for unnamed in checkpoint.unnamed:
        alike[_NUMBER.sub("*", unnamed.name), _NUMBER.sub("*", unnamed.reason)].append(unnamed)
    if not alike:
        return []
    rows = [("not a neuron matrix", "tensors", "reason")]
    for (pattern, reason), members in alike.items():
        one = members[0]
        names = {member.name for member in members}
        reasons = {member.reason for member in members}
        rows.append(
            (
                one.name if len(names) == 1 else pattern,
                str(len(members)),
                one.reason if len(reasons) == 1 else reason,
            )
        )
    return ["", *aligned(rows)]
