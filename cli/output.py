"""What commands say: progress and warnings on standard error, results on standard output."""

import hashlib
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from docs_sim.errors import InputError
from docs_sim.report.text import printable

_LONGEST_NAME = 200  # bytes, of a directory
_LONGEST_TEXT = 100
_PATIENCE = 1.0  # seconds before a progress bar is worth a reader's attention


def default_directory(command: str, *choices: str) -> Path:
    """``docs-sim-out/<command>-<choice>-...``, where every choice that changes the result has its own.

    Nothing is in it that a file system dislikes.
    """
    name = "-".join([command, *filter(None, choices)])
    harmless = re.sub(r"[^\w.+-]+", "-", name)
    if len(harmless.encode()) > _LONGEST_NAME:
        mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        harmless = f"{harmless.encode()[:_LONGEST_NAME].decode(errors='ignore')}-{mark}"
    return Path("docs-sim-out") / harmless


def shortened(text: str | None) -> str | None:
    """Not more of an untrusted text than anybody reads."""
    return text if text is None or len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def make_streams_safe() -> None:
    """Standard streams that may be closed, and may not know every letter."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w")))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def close_output() -> None:
    """Python would complain by itself, while it ends, of output that cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    """One line on standard error."""
    with suppress(OSError):  # nobody listens; the exit status, or the result, says it as well
        print(f"docs-sim: {printable(message)}\n", end="", file=sys.stderr)  # at once, as threads warn as well


def print_result(text: str) -> None:
    """Text on standard output.

    Raises:
        InputError: if it cannot be written: a full disk.
        BrokenPipeError: if its reader is gone.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"standard output cannot be written: {error.strerror}") from error


def print_lines(lines: list[str]) -> None:
    """Plain text for people on standard output, which wraps for nobody."""
    print_result("\n".join(map(printable, lines)))


class Bars(NamedTuple):
    """What is told to a reader who watches: pairs done and in all, and numbers of bytes that arrived."""

    pairs: Callable[[int, int], None]
    arrived: Callable[[int], None]


class _Fetched:
    """A second line, of bytes, from the first byte on that comes over the network."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bytes = 0
        self._task: TaskID | None = None
        self._lock = threading.Lock()  # several files arrive at once

    def advance(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._task is None:
                self._task = self._progress.add_task("", total=None)
            self._progress.update(self._task, description=f"fetched {decimal(self._bytes)}")


@contextmanager
def progress_bar(description: str, *, quiet: bool) -> Iterator[Bars]:
    """A bar on standard error, with the remaining time, if the work takes over a second and someone watches."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield Bars(lambda done, total: None, lambda count: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True)
    fetched = _Fetched(progress)
    task = progress.add_task(escape(printable(description)), total=None)
    starter = threading.Timer(_PATIENCE, progress.start)
    starter.daemon = True
    starter.start()
    try:
        yield Bars(lambda done, total: progress.update(task, completed=done, total=total), fetched.advance)
    finally:
        starter.cancel()
        starter.join()
        progress.stop()
