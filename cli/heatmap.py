"""``docs-sim heatmap``: one matrix over all pairs of layers of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docs_sim.analyses.choices import IndexName, Precision
from docs_sim.report.choices import Format, Scale
from docs_sim.report.text import ranges

from . import options
from .output import complain, default_directory, print_lines, print_result, progress_bar, shortened

if TYPE_CHECKING:
    from docs_sim.analyses.heatmap import Heatmap
    from docs_sim.analyses.selection import Selection


def heatmap(
    model: options.Model,
    matrix: options.Matrix = "mlp_up",
    index: Annotated[IndexName, typer.Option("--index", help="What to compute.")] = IndexName.docs,
    layers: options.Layers = None,
    experts: options.Experts = "concat",
    stack: options.Stack = None,
    tower: options.Tower = "language",
    layout: options.Layout = None,
    scale: Annotated[
        Scale, typer.Option("--scale", help="Colours: the similarity, or its excess over chance.")
    ] = Scale.raw,
    vmin: Annotated[float | None, typer.Option("--vmin", help="Lower end of the colour scale.")] = None,
    vmax: Annotated[float | None, typer.Option("--vmax", help="Upper end of the colour scale.")] = None,
    formats: Annotated[
        list[Format] | None,
        typer.Option("--format", help="Format of the figure; may be repeated. Default: png."),
    ] = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
    out: options.Out = None,
    json: options.Json = False,
    device: options.Device = "auto",
    precision: Annotated[
        Precision, typer.Option("--precision", help="auto, or highest for float32 products everywhere.")
    ] = Precision.auto,
    memory_budget: options.MemoryBudget = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare one weight matrix over all pairs of layers: a figure, tables and a result file."""
    from docs_sim.analyses.selection import select_layers
    from docs_sim.checkpoint import open_checkpoint

    budget = None if memory_budget is None else options.parse_bytes(memory_budget)

    def arrived(count: int) -> None:
        bars.arrived(count)  # of the bars that are there by then: headers come now, weights under the next ones

    with progress_bar(f"headers of {Path(model).name}", quiet=quiet) as bars:
        checkpoint = open_checkpoint(model, revision, offline=offline, tower=tower, layout=layout, arrived=arrived)
    selection = select_layers(checkpoint, matrix, layers, experts, stack)  # a wrong name shall not wait for torch

    from docs_sim.analyses.heatmap import compare_layers
    from docs_sim.report.files import reserved
    from docs_sim.report.grids import check_colour_range

    check_colour_range(vmin, vmax)
    directory = out or _directory(selection, index, precision, layers=bool(layers), stack=stack, revision=revision)
    with reserved(directory):
        _tell_what_is_replaced(directory, selection)
        with progress_bar(f"{checkpoint.name} {matrix}", quiet=quiet) as bars:
            result = compare_layers(
                selection,
                index=index,
                device=device,
                precision=precision,
                memory_budget=budget,
                progress=bars.pairs,
            )
        suffixes = [str(suffix) for suffix in dict.fromkeys(formats or [Format.png])]
        written = result.save(directory, formats=suffixes, scale=scale, vmin=vmin, vmax=vmax)
    _tell(result, written, directory, json=json, quiet=quiet)


def _directory(
    selection: "Selection",
    index: IndexName,
    precision: Precision,
    *,
    layers: bool,
    stack: str | None,
    revision: str | None,
) -> Path:
    """Where the files go if nobody says: a folder for each choice that changes the numbers."""
    checkpoint, matrices = selection.checkpoint, selection.matrices
    numbers = ranges(one.layer for one in matrices if one.layer is not None).replace(", ", "_")
    choices = [
        "" if index == IndexName.docs else index,
        f"layers-{numbers}" if layers else "",
        "" if selection.experts in (None, "concat") else f"experts-{selection.experts}",
        stack or "",
        "" if checkpoint.tower == "language" else checkpoint.tower,
        "" if checkpoint.layout_file is None else f"layout-{checkpoint.layout_file.stem}",
        f"revision-{revision}" if revision else "",
        "" if precision == Precision.auto else precision,
    ]
    return default_directory("heatmap", checkpoint.name, matrices[0].name, *choices)


def _tell_what_is_replaced(directory: Path, selection: "Selection") -> None:
    """Models in folders of one name share a folder of results: say so while the earlier one can still be saved."""
    from docs_sim.report.files import earlier_result

    model = earlier_result(directory).get("model")
    source = model.get("source") if isinstance(model, dict) else None
    if isinstance(source, str) and Path(source).absolute() != selection.checkpoint.source.weights.absolute():
        complain(f"warning: {directory} holds the result of {shortened(source)}, which is replaced; --out keeps both")


def _tell(result: "Heatmap", written: Sequence[Path], directory: Path, *, json: bool, quiet: bool) -> None:
    """Warnings on standard error; on standard output the whole result, or its summary for people."""
    from docs_sim.report.files import json_text

    for warning in result.warnings:
        complain(f"warning: {warning}")
    if json:
        print_result(json_text(result.to_dict()))
    elif not quiet:
        files = ", ".join(path.name for path in written)
        print_lines([*result.summary(), f"  {files} in {directory}"])
