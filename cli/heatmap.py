"""``docs-sim heatmap``: one matrix over all pairs of layers of a model."""

from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .output import default_directory, print_lines, progress_bar, warn

if TYPE_CHECKING:
    from pathlib import Path

    from docs_sim.analyses.heatmap import Heatmap


def heatmap(
    model: options.Model,
    matrix: options.Matrix = "mlp_up",
    index: Annotated[str, typer.Option("--index", help="docs or docs_mean.")] = "docs",
    layers: options.Layers = None,
    experts: options.Experts = "concat",
    stack: options.Stack = None,
    scale: Annotated[
        options.Scale, typer.Option("--scale", help="Colours: the similarity, or its excess over chance.")
    ] = options.Scale.raw,
    vmin: Annotated[float | None, typer.Option("--vmin", help="Lower end of the colour scale.")] = None,
    vmax: Annotated[float | None, typer.Option("--vmax", help="Upper end of the colour scale.")] = None,
    formats: Annotated[
        list[options.Format] | None,
        typer.Option("--format", help="Format of the figure; may be repeated.  [default: png]"),
    ] = None,
    revision: options.Revision = None,
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
    from docs_sim.analyses.heatmap import heatmap as compute
    from docs_sim.checkpoint import open_checkpoint
    from docs_sim.engine.device import parse_bytes
    from docs_sim.report.files import json_text, reserved
    from docs_sim.report.grids import check_colour_range

    check_colour_range(vmin, vmax)
    budget = None if memory_budget is None else parse_bytes(memory_budget)
    checkpoint = open_checkpoint(model, revision)
    directory = out or default_directory("heatmap", checkpoint.name, checkpoint.matrices(matrix)[0].name)
    with reserved(directory):
        with progress_bar(f"{checkpoint.name} {matrix}", quiet=quiet) as progress:
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
                progress=progress,
            )
        warn(result.warnings)
        suffixes = [str(suffix) for suffix in dict.fromkeys(formats or [options.Format.png])]
        written = result.save(directory, formats=suffixes, scale=scale.value, vmin=vmin, vmax=vmax)
    if json:
        print(json_text(result.to_dict()))
    elif not quiet:
        print_lines(_summary(result, written))


def _summary(result: "Heatmap", written: list["Path"]) -> list[str]:
    """What a reader wants to know before opening the figure."""
    pairs = result.pairs().sort_values(result.index, ascending=False)
    neighbours = pairs[pairs["layer_y"].astype(int) - pairs["layer_x"].astype(int) == 1]
    strongest = [f"{row.layer_x}-{row.layer_y} {getattr(row, result.index):.4f}" for row in pairs.head(3).itertuples()]
    model, settings = result.model, result.settings
    lines = [
        f"{model['name']} ({model['architecture'] or 'architecture not stated'}, {model['dtype']}), {result.matrix}, "
        f"{len(result.labels)} layers",
        f"  {result.index}: median {pairs[result.index].median():.4f}, "
        f"from {pairs[result.index].min():.4f} to {pairs[result.index].max():.4f}; chance level {result.chance:.4f}",
        f"  neighbouring layers: mean {neighbours[result.index].mean():.4f}" if len(neighbours) else "",
        f"  most similar layers: {', '.join(strongest)}",
        f"  Gini {result.gini:.4f}" if len(result.labels) > 2 else "",
        f"  {result.seconds:.1f} s on {settings['device']}, {settings['product']} products",
        f"  {', '.join(path.name for path in written)} in {written[0].parent}",
    ]
    return [line for line in lines if line]
