"""``docs-sim heatmap``: one matrix over all pairs of layers of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docs_sim.analyses.choices import SVCCA_VARIANCE, Computation, IndexName, Precision
from docs_sim.report.choices import Scale

from . import options
from .request import Progress, Request, changed, suffixes

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
    null: options.Null = None,
    null_repeats: options.NullRepeats = 1,
    svcca_threshold: options.SvccaThreshold = SVCCA_VARIANCE,
    scale: Annotated[
        Scale, typer.Option("--scale", help="Colours: the similarity, or its excess over chance.")
    ] = Scale.raw,
    vmin: Annotated[float | None, typer.Option("--vmin", help="Lower end of the colour scale.")] = None,
    vmax: Annotated[float | None, typer.Option("--vmax", help="Upper end of the colour scale.")] = None,
    formats: options.Formats = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
    out: options.Out = None,
    json: options.Json = False,
    device: options.Device = "auto",
    precision: options.Precisions = Precision.auto,
    memory_budget: options.MemoryBudget = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Compare one weight matrix over all pairs of layers: a figure, tables and a result file."""
    budget = options.parse_bytes(memory_budget)
    computation = Computation(device, precision, budget, svcca_threshold, null, null_repeats)
    request = Request(
        "heatmap", model, matrix, layers, experts, stack, tower, layout, revision, offline, out, json, quiet
    )

    def compute(selection: "Selection", progress: Progress) -> "Heatmap":
        from docs_sim.analyses.heatmap import compare_layers
        from docs_sim.report.grids import check_colour_range

        check_colour_range(vmin, vmax)
        return compare_layers(selection, index, computation, progress)

    def save(result: "Heatmap", directory: Path) -> list[Path]:
        return result.save(directory, formats=suffixes(formats), scale=scale, vmin=vmin, vmax=vmax)

    request.carry_out(["" if index == IndexName.docs else index, *changed(computation)], compute, save)
