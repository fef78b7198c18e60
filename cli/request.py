"""What commands that compare the layers of a model have in common: from their options to files and words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from docs_sim.analyses.choices import Computation
from docs_sim.report.choices import Format
from docs_sim.report.text import ranges

from .output import complain, default_directory, print_lines, print_result, progress_bar, shortened

if TYPE_CHECKING:
    from docs_sim.analyses.selection import Selection


class Result(Protocol):
    """What an analysis gives."""

    @property
    def warnings(self) -> list[str]:
        """What was left out, and what says nothing."""

    def summary(self) -> list[str]:
        """For people."""

    def to_dict(self) -> dict[str, Any]:
        """For ``result.json``."""


Found = TypeVar("Found", bound=Result)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Request:
    """Which matrices of which model, and where the result goes.

    Attributes:
        command: its name.
        model, matrix, layers, experts, stack, tower, layout, revision, offline, out, json, quiet: as in ``options``.
    """

    command: str
    model: str
    matrix: str
    layers: str | None
    experts: str
    stack: str | None
    tower: str
    layout: Path | None
    revision: str | None
    offline: bool
    out: Path | None
    json: bool
    quiet: bool

    def carry_out(
        self,
        choices: Sequence[str],
        compute: "Callable[[Selection, Progress], Found]",
        save: Callable[[Found, Path], list[Path]],
    ) -> None:
        """Open the model, compute, save, and tell.

        Args:
            choices: what else changes the numbers, for the name of the folder.
            compute: the analysis of a selection, with progress.
            save: writes the result into a directory.
        """
        from docs_sim.analyses.selection import select_layers
        from docs_sim.checkpoint import open_checkpoint

        def arrived(count: int) -> None:
            bars.arrived(count)  # of the bars that are there by then: headers come now, weights under the next ones

        with progress_bar(f"headers of {Path(self.model).name}", quiet=self.quiet) as bars:
            checkpoint = open_checkpoint(
                self.model, self.revision, offline=self.offline, tower=self.tower, layout=self.layout, arrived=arrived
            )
        selection = select_layers(checkpoint, self.matrix, self.layers, self.experts, self.stack)

        directory = self.out or self._directory(selection, choices)

        def watched() -> Found:
            nonlocal bars
            _tell_what_is_replaced(directory, selection)
            with progress_bar(f"{checkpoint.name} {self.matrix}", quiet=self.quiet) as bars:
                return compute(selection, bars.pairs)

        deliver(watched, save, directory, json=self.json, quiet=self.quiet)

    def _directory(self, selection: "Selection", choices: Sequence[str]) -> Path:
        """Where the files go if nobody says: a folder for each choice that changes the numbers."""
        checkpoint, matrices = selection.checkpoint, selection.matrices
        numbers = ranges(one.layer for one in matrices if one.layer is not None).replace(", ", "_")
        return default_directory(
            self.command,
            checkpoint.name,
            matrices[0].name,
            f"layers-{numbers}" if self.layers else "",
            "" if selection.experts in (None, "concat") else f"experts-{selection.experts}",
            self.stack or "",
            "" if checkpoint.tower == "language" else checkpoint.tower,
            "" if checkpoint.layout_file is None else f"layout-{checkpoint.layout_file.stem}",
            f"revision-{self.revision}" if self.revision else "",
            *choices,
        )


def deliver(
    compute: Callable[[], Found],
    save: Callable[[Found, Path], list[Path]],
    directory: Path,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Compute once it is known that the directory can be written, save, and tell."""
    from docs_sim.report.files import reserved

    with reserved(directory):
        result = compute()
        written = save(result, directory)
    _tell(result, written, directory, json=json, quiet=quiet)


def changed(computation: Computation) -> list[str]:
    """The choices of a computation that change the numbers, for the name of a folder."""
    usual = Computation()
    return [
        *([computation.precision] if computation.precision != usual.precision else []),
        *([f"svcca-{computation.svcca_variance}"] if computation.svcca_variance != usual.svcca_variance else []),
        *([f"{computation.null}-{computation.null_repeats}"] if computation.null else []),
    ]


def suffixes(formats: Sequence[Format] | None) -> list[str]:
    """The formats of a figure that were asked for, each once; png if none was."""
    return [str(suffix) for suffix in dict.fromkeys(formats or [Format.png])]


def _tell_what_is_replaced(directory: Path, selection: "Selection") -> None:
    """Models in folders of one name share a folder of results: say so while the earlier one can still be saved."""
    from docs_sim.report.files import earlier_result

    model = earlier_result(directory).get("model")
    source = model.get("source") if isinstance(model, dict) else None
    if isinstance(source, str) and Path(source).absolute() != selection.checkpoint.source.weights.absolute():
        complain(f"warning: {directory} holds the result of {shortened(source)}, which is replaced; --out keeps both")


def _tell(result: Result, written: Sequence[Path], directory: Path, *, json: bool, quiet: bool) -> None:
    """Warnings on standard error; on standard output the whole result, or its summary for people."""
    from docs_sim.report.files import json_text

    for warning in result.warnings:
        complain(f"warning: {warning}")
    if json:
        print_result(json_text(result.to_dict()))
    elif not quiet:
        print_lines([*result.summary(), f"  {_listed(written)} in {directory}"])


def _listed(paths: Sequence[Path]) -> str:
    """The names of files; a few and a number where there are many."""
    names = [path.name for path in paths]
    return ", ".join(names if len(names) <= 6 else [*names[:3], f"{len(names) - 4} more", names[-1]])
