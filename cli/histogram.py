"""``docs-sim histogram``: the best matches that DOCS is fitted to, for few layers of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docs_sim.analyses.choices import Computation

from . import options
from .request import Progress, Request, suffixes

if TYPE_CHECKING:
    from docs_sim.analyses.histogram import Histogram
    from docs_sim.analyses.selection import Selection


def histogram(
    model: options.Model,
    matrix: options.Matrix = "mlp_up",
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            help="Two to four layers, such as 4,8. Default: the first, the middle and the last.",
            show_default=False,
        ),
    ] = None,
    variants: Annotated[
        bool,
        typer.Option("--variants", metavar="", help="Also the grids of DOCS and of its mean variant, over all layers."),
    ] = False,
    experts: options.Experts = "concat",
    stack: options.Stack = None,
    tower: options.Tower = "language",
    layout: options.Layout = None,
    formats: options.Formats = None,
    revision: options.Revision = None,
    offline: options.Offline = False,
    out: options.Out = None,
    json: options.Json = False,
    device: options.Device = "auto",
    memory_budget: options.MemoryBudget = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show how well each neuron of a layer is matched in another, and the Gumbel curves that give DOCS."""
    computation = Computation(device, memory_budget=options.parse_bytes(memory_budget))
    # All layers are selected: the variants are over all of them.
    request = Request(
        "histogram", model, matrix, None, experts, stack, tower, layout, revision, offline, out, json, quiet
    )

    def compute(selection: "Selection", progress: Progress) -> "Histogram":
        from docs_sim.analyses.histogram import histogram_of_layers

        return histogram_of_layers(selection, layers, variants, computation, progress)

    def save(result: "Histogram", directory: Path) -> list[Path]:
        return result.save(directory, formats=suffixes(formats))

    chosen = f"layers-{layers.replace(',', '_')}" if layers else ""
    request.carry_out([chosen, "variants" if variants else ""], compute, save)
