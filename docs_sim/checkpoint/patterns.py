"""Regular expressions that somebody else wrote, matched as PEFT does, in a time that is bounded."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping

from docs_sim.errors import InputError

_SECONDS = 10.0
_CHOOSING = frozenset("*+?{|")  # without any of these there is nothing to try twice
_MATCHER = """
import json, re, sys
pattern, paths = json.load(sys.stdin)
matches = re.compile(pattern).match
print(json.dumps([path for path in paths if matches(path)]))
"""


def by_pattern(patterns: object, paths: Iterable[str], name: str) -> dict[str, object]:
    """The value of the first pattern that a path matches, for each path that matches one.

    Args:
        patterns: regular expression of the end of a path -> value; anything but a mapping has none.
        paths: of modules.
        name: of what says so, for messages.

    Raises:
        InputError: if a pattern takes more than ten seconds.
    """
    left, values = list(dict.fromkeys(paths)), dict[str, object]()
    for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
        whole = rf"(.*\.)?({pattern})$"
        try:
            matches = re.compile(whole).match
        except (re.error, OverflowError, RecursionError):
            continue
        found = _matching(whole, left, name) if _CHOOSING & set(pattern) else [path for path in left if matches(path)]
        values |= dict.fromkeys(found, value)
        left = [path for path in left if path not in values]
    return values


def _matching(pattern: str, paths: list[str], name: str) -> list[str]:
    """In another process: nothing else ends the matching of a pattern that tries everything in every way."""
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps([pattern, paths]),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:  # the limit, or one of the expressions themselves
        raise InputError(
            f"{name}: its patterns cannot be matched ({type(error).__name__}); write them more simply"
        ) from error
    found: list[str] = json.loads(ended.stdout)
    return found
