"""Layout files: TOML -> ``Layout``. Whatever a file says that is not understood is an error that names the key."""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from docs_sim.checkpoint.layout import GROUPS, Entry, Layout
from docs_sim.checkpoint.matrix_names import ALIASES
from docs_sim.checkpoint.rows import RULES
from docs_sim.errors import InputError, shown

_NUMBERS = {"{expert}": r"(?P<expert>\d{1,6})", "{sub}": r"(?P<sub>\d{1,6})"}
_PLACEHOLDER = re.compile(r"\{.*?\}|[{}]")


@cache
def layouts() -> tuple[Layout, ...]:
    """All built-in layouts, by name."""
    return tuple(parse_layout(name, _built_in(name)) for name in _built_in_names())


def read_layout(path: Path) -> Layout:
    """A layout from a file of the user.

    Raises:
        InputError: naming the file, if it cannot be read or says something that is not understood.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no layout file ({error}); the README shows one") from error
    return parse_layout(path.stem, table)


def parse_layout(name: str, table: Mapping[str, Any]) -> Layout:
    """A layout from the content of its TOML file; what it ``extends`` holds wherever it says nothing itself.

    Raises:
        InputError: naming the key that is not understood.
    """
    try:
        _check(table)
        return _layout(name, table)
    except InputError as error:
        raise InputError(f"layout {name}: {error}") from error


@cache
def _built_in_names() -> tuple[str, ...]:
    found = (entry.name for entry in (files(__package__) / "layouts").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


@cache
def _built_in(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "layouts" / f"{name}.toml").read_text(encoding="utf-8"))


def _are_texts(value: object, least: int = 0) -> bool:
    return isinstance(value, list) and len(value) >= least and all(isinstance(one, str) for one in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


# What a value must be, in words, and whether it is.
_Kind = tuple[str, Callable[[object], bool]]
_TEXT: _Kind = ("a text", _is_text)
_PATHS: _Kind = ("a list of names", _are_texts)
_PATHS_OR_ALL: _Kind = ("true, false or a list of paths", lambda value: isinstance(value, bool) or _are_texts(value))
_RULE: _Kind = ("a list of a rule and matrices", lambda value: _are_texts(value, 2))
_MARK: _Kind = ("a list of beginnings of paths and a reason", lambda value: _are_texts(value, 2))
_GROUP: _Kind = ("a table of paths", lambda value: isinstance(value, dict))
_VALUES = {
    "extends": _TEXT,
    "tied": _TEXT,
    "layers": _PATHS,
    "requires": _PATHS,
    "model_types": _PATHS,
    "reshaped": _PATHS,
    "unchecked": _PATHS,
    "in_out": _PATHS_OR_ALL,
}
_TABLES = {**dict.fromkeys((*GROUPS, "outside"), _PATHS), "others": _TEXT, "marked": _MARK}
_ABOVE = ("extends", "in_out", "model_types", "requires", "reshaped", "unchecked")  # no path is called like these
_KEYS = sorted({*_VALUES, *_TABLES, "fused"})


def _check(table: Mapping[str, Any]) -> None:
    """That all keys are known and hold what they should."""
    _known_keys("", table, _KEYS)
    for key, value in table.items():
        if key in _VALUES:
            _check_kind(key, value, _VALUES[key])
        elif key in _TABLES:
            _check_table(key, value, _TABLES[key])
        else:
            _check_table(key, value, _GROUP)
            _known_keys("fused.", value, GROUPS)
            for group, rules in value.items():
                _check_table(f"fused.{group}", rules, _RULE)


def _known_keys(prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise InputError(f"unknown key {shown(prefix + unknown)}; known: {', '.join(prefix + key for key in known)}")


def _check_table(key: str, value: object, kind: _Kind) -> None:
    if not isinstance(value, dict):
        raise InputError(f"{key} must be a table, [{key}]")
    for inner, one in value.items():
        if inner in _ABOVE:
            raise InputError(f"{inner} belongs above the first [table]; below [{key}] it counts to that")
        _check_kind(f"{key}.{shown(inner)}", one, kind)


def _check_kind(key: str, value: object, kind: _Kind) -> None:
    words, fits = kind
    if not fits(value):
        raise InputError(f"{key} must be {words}, not {shown(value)}")


def _layout(name: str, table: Mapping[str, Any]) -> Layout:
    base = _base(name, table)
    own = _entries(table)
    entries = dict(base.entries) if base else {}
    templates = {template.pattern: (template, entry) for template, entry in base.templates} if base else {}
    for path, entry in own.items():
        if "{" in path:
            pattern = _pattern(path)
            templates[pattern] = (re.compile(pattern), entry)
        else:
            entries[path] = entry
    containers = table.get("layers", base.containers if base else ())
    if not containers:
        raise InputError('layers is missing: what the list of layers is called, such as layers = ["layers"]')
    for container in containers:
        _check_path("layers", container, ["{stage}"])
        if "" in container.split(".") or container.startswith("{"):
            raise InputError(f"layers: {shown(container)} is no name of a list of layers")
    _check_names("unchecked", table.get("unchecked", []))
    marked = {path: (tuple(value[:-1]), value[-1]) for path, value in table.get("marked", {}).items()}
    return Layout(
        name=name,
        containers=frozenset(containers),
        requires=tuple(table.get("requires", ())),
        model_types=tuple(table.get("model_types", ())),
        entries=entries,
        templates=tuple(templates.values()),
        others={**(base.others if base else {}), **table.get("others", {})},
        marked={**(base.marked if base else {}), **marked},
        extended=base is not None,
        tied=table.get("tied"),
        unchecked=frozenset(table.get("unchecked", ())),
        outside={**(base.outside if base else {}), **_outside(table)},
        stated=tuple(own),
    )


def _base(name: str, table: Mapping[str, Any]) -> Layout | None:
    if "extends" not in table:
        return None
    others = [other for other in _built_in_names() if other != name]
    if table["extends"] not in others:
        raise InputError(f"cannot extend {shown(table['extends'])}; built in: {', '.join(others)}")
    return parse_layout(table["extends"], _built_in(table["extends"]))


def _entries(table: Mapping[str, Any]) -> dict[str, Entry]:
    """Path -> what it stands for, of this file alone."""
    in_out, reshaped = table.get("in_out", []), table.get("reshaped", [])
    entries: dict[str, Entry] = {}
    for key, path, group, rule, names in _statements(table):
        if path in entries:
            raise InputError(f"{key}: {shown(path)} is given a second time")
        _check_path(key, path, _NUMBERS)
        _check_names(key, names)
        if rule is not None and rule not in RULES:
            raise InputError(f"{key}: no rule {shown(rule)}; known: {', '.join(RULES)}")
        entries[path] = Entry(
            names=names,
            rule=rule,
            group=group,
            in_out=in_out is True or (in_out is not False and path in in_out),
            numbered="{expert}" in path,
            reshaped=path in reshaped,
        )
    for key, paths in (("in_out", in_out), ("reshaped", reshaped)):
        stray = next((path for path in paths if path not in entries), None) if isinstance(paths, list) else None
        if stray is not None:
            raise InputError(f"{key}: this file names no matrix at {shown(stray)}")
    return entries


class _Statement(NamedTuple):
    """What a file says of a path inside a layer, and under which key."""

    key: str
    path: str
    group: str
    rule: str | None
    names: tuple[str, ...]


def _statements(table: Mapping[str, Any]) -> Iterator[_Statement]:
    for group in GROUPS:
        for matrix, paths in table.get(group, {}).items():
            for path in paths:
                yield _Statement(f"{group}.{shown(matrix)}", path, group, None, (matrix,))
        for path, (rule, *names) in table.get("fused", {}).get(group, {}).items():
            yield _Statement(f"fused.{group}.{shown(path)}", path, group, rule, tuple(names))


def _outside(table: Mapping[str, Any]) -> dict[str, str]:
    """Path outside the layers -> matrix."""
    names: dict[str, str] = {}
    for matrix, paths in table.get("outside", {}).items():
        _check_names(f"outside.{shown(matrix)}", (matrix,))
        for path in paths:
            if path in names:
                raise InputError(f"outside.{shown(matrix)}: {shown(path)} is given a second time")
            if "{" in path:
                raise InputError(
                    f"outside.{shown(matrix)}: {shown(path)} has a placeholder, and outside the layers are none"
                )
            names[path] = matrix
    return names


def _check_names(key: str, names: Sequence[str]) -> None:
    unknown = next((matrix for matrix in names if matrix not in ALIASES), None)
    if unknown is not None:
        raise InputError(f"{key}: {shown(unknown)} is no matrix; known: {', '.join(ALIASES)}")
    if len(set(names)) < len(names):
        raise InputError(f"{key}: one matrix twice in {', '.join(names)}")


def _check_path(key: str, path: str, placeholders: Collection[str]) -> None:
    found = _PLACEHOLDER.findall(path)
    if not set(found) <= set(placeholders) or len(set(found)) < len(found):
        raise InputError(f"{key}: {shown(path)} may hold {' and '.join(placeholders)}, once, and no other braces")


def unused_paths(layout: Layout, names: Iterable[str]) -> tuple[str, ...]:
    """The matrices inside layers that the file of a layout names and no tensor is."""
    inside = {name.removesuffix(".weight") for name in names}
    patterns = {path: re.compile(rf".*\.\d{{1,6}}\.{_pattern(path)}") for path in layout.stated}
    return tuple(path for path, pattern in patterns.items() if not any(map(pattern.fullmatch, inside)))


def _pattern(template: str) -> str:
    pattern = re.escape(template)
    for placeholder, number in _NUMBERS.items():
        pattern = pattern.replace(re.escape(placeholder), number)
    return pattern
