"""Results on disk: JSON that every parser reads, and files that appear whole or not at all."""

import json
import math
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from docs_sim.errors import InputError


def json_text(result: Mapping[str, Any]) -> str:
    """A result as JSON: arrays as lists, NaN and infinity as null."""
    return json.dumps(_plain(result), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


RESULT = "result.json"
_LARGEST_RESULT = 10**9  # bytes


@contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Make ``directory`` before the work, so that a wrong one is refused now and not after hours.

    If the work fails, the directories that were made for it go again.

    Raises:
        InputError: if it cannot be made or written, or holds a result of something else.
    """
    check_replaceable(directory)
    made: list[Path] = []
    try:
        try:
            made += [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise InputError(f"{directory}: cannot be written: {error.strerror}; choose another directory") from error
        yield
    except BaseException:
        for path in made:
            with suppress(OSError):  # another process may have put its results there
                path.rmdir()
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Wait until no other run renames files in ``directory``; where the system knows no such lock, do not wait."""
    try:
        import fcntl

        handle = os.open(directory, os.O_RDONLY)
    except (ImportError, OSError):  # Windows; a folder that may be written and not read
        yield
        return
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # and the lock is gone


def earlier_result(directory: Path) -> dict[str, Any]:
    """The result that lies in ``directory``; empty if there is none that can be read."""
    try:
        content = json.loads(_bytes(directory / RESULT))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def check_replaceable(directory: Path) -> None:
    """Nothing but results of docs-sim is replaced, and what is empty, such as the trace of a full disk.

    Raises:
        InputError: if ``RESULT`` is there and of something else.
    """
    if _bytes(directory / RESULT).strip(b"\0\n ") and "docs_sim" not in earlier_result(directory):
        raise InputError(f"{directory / RESULT}: is not of docs-sim and would be lost; choose another directory")


def _bytes(path: Path) -> bytes:
    """Of a file; nothing of what is none, or cannot be a result."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= _LARGEST_RESULT else b""
    except OSError:
        return b""


def write_files(directory: Path, contents: Mapping[str, bytes], stale: Iterable[str] = ()) -> list[Path]:
    """Write all files under temporary names, then rename them: nobody ever sees half a file.

    ``RESULT`` stands for the whole: an earlier one goes first, with files called like one of ``stale``, and the new
    one, which must be among ``contents``, comes last: where it is, all files are of one run.

    Raises:
        InputError: if the directory cannot be written, or a directory has the name of a file.
    """
    for name in contents:
        if (directory / name).is_dir():
            raise InputError(f"{directory / name}: is a directory where a result belongs; choose another directory")
    mark = secrets.token_hex(4)
    temporary = {directory / name: directory / f".{name}.{mark}" for name in contents}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in zip(temporary.values(), contents.values(), strict=True):
            path.write_bytes(content)
        with _locked(directory):
            earlier = any(path.exists() for path in temporary)
            for name in (RESULT, *stale) if earlier else ():
                (directory / name).unlink(missing_ok=True)
            for path in sorted(temporary, key=lambda path: path.name == RESULT):
                temporary[path].replace(path)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            for partial in temporary.values():
                partial.unlink(missing_ok=True)
    return list(temporary)
