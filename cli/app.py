"""The ``docs-sim`` program: its commands, and how their errors end."""

import os
import sys
import traceback
from collections.abc import Callable

import typer

from docs_sim.errors import InputError

from . import heatmap, inspect, models
from .output import printable

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

        print(installed("docs-sim"))
        raise typer.Exit


def main() -> None:
    """Run the program: 0 done, 2 wrong input (one line), 1 a fault of docs-sim, 130 interrupted."""
    # Threads that spin while they wait make the work ten times slower as soon as another program runs. Before torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    arguments = [argument for argument in sys.argv[1:] if argument != _DEBUG]
    sys.exit(_run(arguments, debug=len(arguments) < len(sys.argv) - 1))


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        status = app(arguments, standalone_mode=False) or 0
        sys.stdout.flush()
    except _UsageError as error:
        command = f" {arguments[0]}" if arguments and arguments[0] in _COMMANDS else ""
        message = error.format_message()  # type: ignore[attr-defined]
        return _fail(2, f"{message} See `docs-sim{command} --help`.", debug)
    except InputError as error:
        return _fail(2, str(error), debug)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except (BrokenPipeError, SystemExit):  # typer ends the program by itself when the reader of a pipe is gone
        # The reader has seen enough. Python would complain once more while it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _fail(1, f"a fault of docs-sim: {type(error).__name__}: {error}; --debug shows where", debug)
    return _fail(status, "interrupted", debug) if status == _INTERRUPTED else int(status)


def _fail(status: int, message: str, debug: bool) -> int:
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(f"docs-sim: {printable(' '.join(message.split()))}", file=sys.stderr)
    return status
