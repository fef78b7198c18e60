"""Results on disk: JSON that every parser reads, and files that appear whole or not at all."""

import json
import math
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


@contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Make ``directory`` before the work, so that a wrong one is refused now and not after hours.

    If the work fails, the directories that were made for it go again.

    Raises:
        InputError: if it cannot be made or written.
    """
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


def write_files(directory: Path, contents: Mapping[str, bytes], stale: Iterable[str] = ()) -> list[Path]:
    """Write all files under temporary names, then rename them in this order: nobody ever sees half a file.

    Where an earlier result lies, its files called like one of ``stale`` are removed: they would not fit the new one.

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
        if (directory / RESULT).exists():
            for name in stale:
                (directory / name).unlink(missing_ok=True)
        for path, partial in temporary.items():
            partial.replace(path)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            for partial in temporary.values():
                partial.unlink(missing_ok=True)
    return list(temporary)
