"""The ``docs-sim`` program: its commands, and how their errors end."""

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

import typer

from docs_sim.errors import InputError

from . import heatmap, inspect, models
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
    "inspect": inspect.inspect,
    "models": models.models,
}
for name, command in _COMMANDS.items():
    app.command(name)(command)

_DEBUG = "--debug"
_INTERRUPTED = 130
# typer carries its own copy of click without naming this class; BadParameter is its best known child.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@app.callback(invoke_without_command=True)
def options_of_all(version: bool = typer.Option(False, "--version", help="Print the version and end.")) -> None:
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
    end = arguments.index("--") if "--" in arguments else len(arguments)
    before = [argument for argument in arguments[:end] if argument != _DEBUG]
    return _run([*before, *arguments[end:]], debug=len(before) < end)


def _terminate(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that what was begun is cleared away


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        status = int(app(arguments, standalone_mode=False) or 0)
        if status == _INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except _UsageError as error:
        command = f" {arguments[0]}" if arguments and arguments[0] in _COMMANDS else ""
        message = error.format_message()  # type: ignore[attr-defined]
        message = message.removeprefix("Invalid value: Value error, ").replace("Value error, ", "").rstrip(".")
        return _fail(2, f"{message}. See `docs-sim{command} --help`.", debug)
    except InputError as error:
        return _fail(2, str(error), debug)
    except KeyboardInterrupt:
        return _fail(_INTERRUPTED, "interrupted", debug)
    except (BrokenPipeError, SystemExit) as end:
        return _status_of_end(end)
    except Exception as error:
        return _fail(1, f"a fault of docs-sim: {type(error).__name__}: {error}; --debug shows where", debug)
    else:
        return status
    finally:
        close_output()


def _status_of_end(end: BrokenPipeError | SystemExit) -> int:
    """0 if the reader of a pipe is gone, which has seen what it wanted; typer makes an end of its own of that."""
    if isinstance(end, BrokenPipeError) or isinstance(end.__context__, BrokenPipeError):
        return 0
    return end.code if isinstance(end.code, int) else 1


def _fail(status: int, message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    complain(" ".join(message.split()))
    return status
