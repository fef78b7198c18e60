"""The ``docs-sim`` program: its commands, and how their errors end."""

import errno
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import FrameType

import typer

from docs_sim.errors import InputError

from . import heatmap, histogram, indices, inspect, models
from .output import close_output, complain, make_streams_safe, print_result

app = typer.Typer(
    name="docs-sim",
    help="How similar are the weights of language models, layer by layer? No model is run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "heatmap": heatmap.heatmap,
    "histogram": histogram.histogram,
    "indices": indices.indices,
    "inspect": inspect.inspect,
    "models": models.models,
}
for name, command in _COMMANDS.items():
    app.command(name)(command)

_DEBUG = "--debug"
_INTERRUPTED = 130
# typer carries its own copy of click without naming this class; BadParameter is its best known child.
_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")


@app.callback(invoke_without_command=True)
def options_of_all(
    version: bool = typer.Option(False, "--version", metavar="", help="Print the version and end."),
) -> None:
    """How similar are the weights of language models, layer by layer? No model is run."""
    if version:
        from importlib.metadata import version as installed

        print_result(installed("docs-sim"))
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status: 0, 2 (wrong input), 1 (a fault of docs-sim), 130, 128 + a signal."""
    # Threads that spin while they wait make the work ten times slower as soon as another program runs. Before torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    signal.signal(signal.SIGTERM, _terminate)
    make_streams_safe()
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before = [argument for argument in arguments[:end] if argument != _DEBUG]
    return _run([*before, *arguments[end:]], debug=len(before) < end)


def _show_warning(message: Warning | str, *_: object) -> None:
    complain(f"warning: {' '.join(str(message).split())}")


def _terminate(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that what was begun is cleared away


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        status = int(app(arguments, standalone_mode=False) or 0)
        if status == _INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except BaseException as error:
        status, message = _end(error, arguments)
        if debug and message:
            traceback.print_exc()
        if message:
            complain(" ".join(message.split()))
    finally:
        close_output()
    return status


def _end(error: BaseException, arguments: list[str]) -> tuple[int, str]:
    """Exit status and last words."""
    if isinstance(error, _UsageError):
        command = f" {arguments[0]}" if arguments and arguments[0] in _COMMANDS else ""
        message = error.format_message().replace("Value error, ", "").rstrip(".")  # type: ignore[attr-defined]
        return (
            2,
            message
            and f"{message.removesuffix('.')}{'' if message.endswith('?') else '.'} See `docs-sim{command} --help`.",
        )  # without a command the help was shown
    if isinstance(error, InputError):
        return 2, str(error)
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, BrokenPipeError | SystemExit):
        return _status_of_end(error), ""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # typer writes the help by itself
        return 2, f"cannot be written: {error.strerror}"
    return 1, f"a fault of docs-sim: {type(error).__name__}: {error}; --debug shows where"


def _status_of_end(end: BrokenPipeError | SystemExit) -> int:
    """0 if the reader of a pipe is gone, which has seen what it wanted; typer makes an end of its own of that."""
    if isinstance(end, BrokenPipeError) or isinstance(end.__context__, BrokenPipeError):
        return 0
    return end.code if isinstance(end.code, int) else 1
