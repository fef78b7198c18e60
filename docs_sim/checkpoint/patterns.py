"""Regular expressions that somebody else wrote, matched as PEFT does, in a time that is bounded."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping

from docs_sim.errors import InputError, shown

_SECONDS = 10.0
_CHOOSING = frozenset("*+?{|")  # without any of these there is nothing to try twice
_MATCHER = """
import json, re, sys
patterns, paths = json.load(sys.stdin)
compiled = [re.compile(pattern).match for pattern in patterns]
first = lambda path: next((number for number, match in enumerate(compiled) if match(path)), None)
print(json.dumps([first(path) for path in paths]))
"""


def by_pattern(patterns: object, paths: Iterable[str], name: str) -> dict[str, object]:
    """The value of the first pattern that a path matches, for each path that matches one.

    Args:
        patterns: regular expression of the end of a path -> value; anything but a mapping has none.
        paths: of modules.
        name: of what says so, for messages.

    Raises:
        InputError: if a pattern is no regular expression, or all together take more than ten seconds.
    """
    if not isinstance(patterns, Mapping) or not patterns:
        return {}
    wholes, left = [rf"(.*\.)?({pattern})$" for pattern in patterns], list(dict.fromkeys(paths))
    compiled = [_compiled(pattern, whole, name) for pattern, whole in zip(patterns, wholes, strict=True)]
    if _CHOOSING.isdisjoint("".join(patterns)):
        found = [next((number for number, one in enumerate(compiled) if one.match(path)), None) for path in left]
    else:
        found = _first_matches(wholes, left, name)
    values = list(patterns.values())
    return {path: values[number] for path, number in zip(left, found, strict=True) if number is not None}


def _compiled(pattern: str, whole: str, name: str) -> re.Pattern[str]:
    try:
        return re.compile(whole)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{name}: {shown(pattern)} is no regular expression ({error})") from error


def _first_matches(patterns: list[str], paths: list[str], name: str) -> list[int | None]:
    """In another process: nothing else ends the matching of a pattern that tries everything in every way."""
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps([patterns, paths]),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:  # the limit, or one of the expressions themselves
        raise InputError(
            f"{name}: its patterns cannot be matched ({type(error).__name__}); write them more simply"
        ) from error
    found: list[int | None] = json.loads(ended.stdout)
    return found
