"""``docs-sim indices``: every index on one matrix of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from docs_sim.analyses.choices import SVCCA_VARIANCE, Computation, IndexName, Precision
from docs_sim.errors import InputError, shown

from . import options
from .output import default_directory
from .request import Progress, Request, changed, deliver, suffixes

if TYPE_CHECKING:
    from docs_sim.analyses.index_comparison import IndexComparison
    from docs_sim.analyses.selection import Selection

_OF_PROPERTIES = {"properties", "only", "out", "json", "quiet", "debug"}


def indices(
    context: typer.Context,
    model: options.ModelIfAny = None,
    matrix: options.Matrix = "mlp_up",
    only: Annotated[
        str | None,
        typer.Option("--only", help=f"Only these indices, such as docs,linear_cka. Known: {', '.join(IndexName)}."),
    ] = None,
    properties: Annotated[
        bool,
        typer.Option(
            "--properties",
            metavar="",
            help="Try what each index promises, on random and structured matrices: no MODEL.",
        ),
    ] = False,
    layers: options.Layers = None,
    experts: options.Experts = "concat",
    stack: options.Stack = None,
    tower: options.Tower = "language",
    layout: options.Layout = None,
    null: options.Null = None,
    null_repeats: options.NullRepeats = 1,
    svcca_threshold: options.SvccaThreshold = SVCCA_VARIANCE,
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
    """Compare one weight matrix over all pairs of layers with every index, and the indices with each other."""
    names = _names(only)
    if properties:
        of_models = {parameter.name or "" for parameter in context.command.params} - _OF_PROPERTIES
        options.refuse_given(
            context, of_models, "does not go with --properties, which tries the indices without a model"
        )
        _properties(names, out or default_directory("indices", "properties"), json=json, quiet=quiet)
        return
    if model is None:
        raise InputError("which MODEL? Give one, or --properties. See `docs-sim indices --help`.")
    budget = options.parse_bytes(memory_budget)
    computation = Computation(device, precision, budget, svcca_threshold, null, null_repeats)
    request = Request(
        "indices", model, matrix, layers, experts, stack, tower, layout, revision, offline, out, json, quiet
    )

    def compute(selection: "Selection", progress: Progress) -> "IndexComparison":
        from docs_sim.analyses.index_comparison import indices_over_layers

        return indices_over_layers(selection, names, computation, progress)

    def save(result: "IndexComparison", directory: Path) -> list[Path]:
        return result.save(directory, formats=suffixes(formats))

    request.carry_out(["" if only is None else "_".join(names), *changed(computation)], compute, save)


def _names(only: str | None) -> list[str]:
    """The indices that were asked for, in the order of the table."""
    if only is None:
        return list(IndexName)
    asked = {name.strip().lower().replace("-", "_") for name in only.split(",")}
    unknown = sorted(asked - set(IndexName))
    if unknown:
        raise InputError(f"unknown index {shown(unknown[0])}; known: {', '.join(IndexName)}")
    return [name for name in IndexName if name in asked]


def _properties(names: list[str], directory: Path, *, json: bool, quiet: bool) -> None:
    from docs_sim.analyses.index_properties import index_properties

    deliver(
        lambda: index_properties(names),
        lambda result, directory: result.save(directory),
        directory,
        json=json,
        quiet=quiet,
    )
