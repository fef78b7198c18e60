"""The options that several commands share, each in one place."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from docs_sim.analyses.choices import NullName, Precision
from docs_sim.errors import InputError, shown
from docs_sim.report.choices import Format

_UNITS = {"": 1, "B": 1, "K": 2**10, "KIB": 2**10, "M": 2**20, "MIB": 2**20, "G": 2**30, "GIB": 2**30, "T": 2**40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "TIB": 2**40}


def _directory(text: str) -> Path:
    if not text:
        raise InputError("--out is empty; leave it out, or name a directory")
    return Path(text)


_MODEL = (
    "A directory, a .safetensors or .gguf file, a Hub id, a short alias, ADAPTER+BASE, or demo (demo-tuned, demo-moe)."
)
Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)]
ModelIfAny = Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)]
Matrix = Annotated[str, typer.Option("--matrix", "-m", help="Which weight matrix: mlp_up, attn_q, ... or an alias.")]
Layers = Annotated[str | None, typer.Option("--layers", help="Only these layers, such as 0-15,20.")]
Experts = Annotated[
    str,
    typer.Option(
        "--experts",
        help="In mixture-of-experts layers: concat, shared, dense (what stands beside the experts), or the number of "
        "an expert. Where a layer has several blocks: the name of one, such as sub0.",
    ),
]
Stack = Annotated[str | None, typer.Option("--stack", help="encoder or decoder, of a model that has both.")]
Tower = Annotated[str, typer.Option("--tower", help="Of a multimodal model: language, vision or audio.")]
Layout = Annotated[
    Path | None, typer.Option("--layout", help="A TOML file that says how this model names its tensors (README).")
]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit of a Hub id.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Directory for the results.", show_default=False, parser=_directory, metavar="DIRECTORY"
    ),
]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="Print the result as JSON on standard output, and nothing else.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        "--memory-budget",
        help="Memory for weights at work, such as 4GiB, at least that of two matrices. Default: half of what is free.",
    ),
]
Null = Annotated[
    NullName | None,
    typer.Option(
        "--null",
        help="Simulate what unrelated matrices give: rotation (one side turned at random; each matrix keeps its own "
        "geometry) or reinit (both sides Gaussian).",
        show_default=False,
    ),
]
NullRepeats = Annotated[
    int, typer.Option("--null-repeats", help="How often the null is drawn; two or more give z-scores.")
]
SvccaThreshold = Annotated[
    float, typer.Option("--svcca-threshold", help="Share of the variance that SVCCA keeps, in (0, 1].")
]
Precisions = Annotated[Precision, typer.Option("--precision", help="auto, or highest for float32 products everywhere.")]
Formats = Annotated[
    list[Format] | None,
    typer.Option("--format", help="Format of the figure; may be repeated. Default: png."),
]
Offline = Annotated[
    bool, typer.Option("--offline", metavar="", help="Never use the network, also for models that are not here.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="No progress and no summary; warnings and errors only.")
]
# Taken out by app.run before a command sees it; each command lists it for its help.
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.")]


def refuse_given(context: typer.Context, names: Collection[str], reason: str) -> None:
    """Refuse what has no meaning beside the other options, where it was given.

    Raises:
        InputError: naming the first of them, with ``reason``.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise InputError(f"{option if option.startswith('-') else option.upper()} {reason}")


def parse_bytes(text: str | None) -> int | None:
    """``4GiB``, ``256 MiB``, ``500MB`` or a plain number of bytes; None stays None.

    Raises:
        InputError: if it is none of these, or not above zero.
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    size = int(float(found[1]) * unit) if found and unit else 0
    if size <= 0:
        raise InputError(f"{shown(text)} is not an amount of memory; write it like 256MiB or 4GiB")
    return size
