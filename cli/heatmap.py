"""``docs-sim heatmap``: one matrix over all pairs of layers of a model."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .output import complain, default_directory, print_lines, print_result, progress_bar


def heatmap(
    model: options.Model,
    matrix: options.Matrix = "mlp_up",
    index: Annotated[str, typer.Option("--index", help="docs or docs_mean.")] = "docs",
    layers: options.Layers = None,
    experts: options.Experts = "concat",
    stack: options.Stack = None,
    tower: options.Tower = "language",
    layout: options.Layout = None,
    scale: Annotated[
        options.Scale, typer.Option("--scale", help="Colours: the similarity, or its excess over chance.")
    ] = options.Scale.raw,
    vmin: Annotated[float | None, typer.Option("--vmin", help="Lower end of the colour scale.")] = None,
    vmax: Annotated[float | None, typer.Option("--vmax", help="Upper end of the colour scale.")] = None,
    formats: Annotated[
        list[options.Format] | None,
        typer.Option("--format", help="Format of the figure; may be repeated. Default: png."),
    ] = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
    out: options.Out = None,
    json: options.Json = False,
    device: options.Device = "auto",
    precision: Annotated[
        options.Precision, typer.Option("--precision", help="auto, or highest for float32 products everywhere.")
    ] = options.Precision.auto,
    memory_budget: options.MemoryBudget = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare one weight matrix over all pairs of layers: a figure, tables and a result file."""
    from docs_sim.analyses.selection import ranges, select_layers
    from docs_sim.checkpoint import open_checkpoint

    budget = None if memory_budget is None else options.parse_bytes(memory_budget)

    def arrived(count: int) -> None:
        bars.arrived(count)  # of the bars that are there by then: headers come now, weights under the next ones

    with progress_bar(f"headers of {Path(model).name}", quiet=quiet) as bars:
        checkpoint = open_checkpoint(model, revision, offline=offline, tower=tower, layout=layout, arrived=arrived)
    selected, _ = select_layers(checkpoint, matrix, layers, experts, stack)  # a wrong name shall not wait for torch

    from docs_sim.analyses.heatmap import heatmap as compute
    from docs_sim.report.files import json_text, reserved
    from docs_sim.report.grids import check_colour_range

    check_colour_range(vmin, vmax)
    name = selected[0].name
    numbers = ranges(one.layer for one in selected if one.layer is not None)
    choices = [
        "" if index == "docs" else index,
        f"layers-{numbers.replace(', ', '_')}" if layers else "",
        "" if experts == "concat" else f"experts-{experts}",
        stack or "",
        "" if tower == "language" else tower,
        f"revision-{revision}" if revision else "",
        "" if precision == options.Precision.auto else precision.value,
    ]
    directory = out or default_directory("heatmap", checkpoint.name, name, *choices)
    with reserved(directory):
        with progress_bar(f"{checkpoint.name} {matrix}", quiet=quiet) as bars:
            result = compute(
                checkpoint,
                matrix,
                index=index,
                layers=layers,
                experts=experts,
                stack=stack,
                device=device,
                precision=precision.value,
                memory_budget=budget,
                progress=bars.pairs,
            )
        suffixes = [str(suffix) for suffix in dict.fromkeys(formats or [options.Format.png])]
        written = result.save(directory, formats=suffixes, scale=scale.value, vmin=vmin, vmax=vmax)
    for warning in result.warnings:
        complain(f"warning: {warning}")
    if json:
        print_result(json_text(result.to_dict()))
    elif not quiet:
        files = ", ".join(path.name for path in written)
        print_lines([*result.summary(), f"  {files} in {directory}"])
