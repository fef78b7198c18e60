"""What a family of models calls its tensors, as data: ``layouts/*.toml``."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from docs_sim.checkpoint.matrix_names import ALIASES
from docs_sim.checkpoint.rows import RULES
from docs_sim.errors import InputError, shown

GROUPS = ("dense", "experts", "shared", "attn_experts", "shared_experts")
_NUMBERS = {"{expert}": r"(?P<expert>\d{1,6})", "{sub}": r"(?P<sub>\d{1,6})"}


@dataclass(frozen=True)
class Entry:
    """What a path inside a layer stands for.

    Attributes:
        names: the matrices that its output rows hold, in order.
        rule: how they share the rows (``rows.RULES``); None if the whole tensor is one matrix.
        group: one of ``GROUPS``.
        in_out: whether it is stored (in, out), where the shapes do not tell.
        numbered: whether there is one tensor for each expert; else experts are stacked in one.
        reshaped: whether it is stored with heads as a dimension of their own.
    """

    names: tuple[str, ...]
    rule: str | None
    group: str
    in_out: bool
    numbered: bool
    reshaped: bool


Meaning = tuple[Entry, int | None, int | None]  # its expert and its half of the layer, where the path has them


@dataclass(frozen=True)
class Layout:
    """How one family names its tensors.

    Attributes:
        name: of the file.
        containers: what the list of layers is called: ``layers``, ``h``.
        requires: paths of which a model of this family has at least one.
        entries: path inside the layer -> what it stands for.
        templates: the same for paths with ``{expert}`` or ``{sub}``.
        others: beginning of a path -> what it is instead.
        marked: path -> (beginnings of paths, what these are in a layer that has the path).
        extended: whether it builds on another.
        tied: path of a layer that has no matrices of its own and uses those of an earlier one.
        outside: path outside the layers -> matrix name; always stored (out, in).
    """

    name: str
    containers: frozenset[str]
    requires: tuple[str, ...]
    entries: Mapping[str, Entry]
    templates: tuple[tuple[re.Pattern[str], Entry], ...]
    others: Mapping[str, str]
    marked: Mapping[str, tuple[tuple[str, ...], str]]
    extended: bool
    tied: str | None
    outside: Mapping[str, str]

    def meaning(self, path: str) -> Meaning | None:
        """What a path inside a layer stands for, its expert and its half of the layer."""
        if path in self.entries:
            return self.entries[path], None, None
        for template, entry in self.templates:
            found = template.fullmatch(path)
            if found:
                numbers = found.groupdict()
                return entry, _number(numbers.get("expert")), _number(numbers.get("sub"))
        return None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


@cache
def layouts() -> tuple[Layout, ...]:
    """All built-in layouts, by name."""
    names = sorted(entry.name for entry in (files(__package__) / "layouts").iterdir() if entry.name.endswith(".toml"))
    return tuple(parse_layout(name.removesuffix(".toml"), _table(name.removesuffix(".toml"))) for name in names)


def read_layout(path: Path) -> Layout:
    """A layout from a file of the user.

    Raises:
        InputError: naming the file, if it cannot be read or says something that is not understood.
    """
    try:
        return parse_layout(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, re.error) as error:
        raise InputError(f"{path}: is no layout file ({error}); the README shows one") from error


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "layouts" / f"{name}.toml").read_text(encoding="utf-8"))


_KEYS = {"extends", "layers", "requires", "in_out", "reshaped", "tied", "fused", "others", "marked", "outside", *GROUPS}


def parse_layout(name: str, table: Mapping[str, Any]) -> Layout:
    """A layout from the content of its TOML file; what it ``extends`` holds wherever it says nothing itself.

    Raises:
        InputError: naming the key that is not understood.
    """
    base = _base(table, name)
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise InputError(f"layout {name}: unknown key {shown(unknown[0])}; known: {', '.join(sorted(_KEYS))}")
    for key in ("layers", "requires"):
        if not all(isinstance(name, str) for name in _list(table.get(key, []))):
            raise InputError(f"layout {name}: {key} is a list of names")
    in_out = table.get("in_out", [])
    entries = dict(base.entries) if base else {}
    templates = {template.pattern: (template, entry) for template, entry in base.templates} if base else {}
    for path, entry in _entries(name, table, in_out).items():
        if "{" in path:
            pattern = _pattern(path)
            templates[pattern] = (re.compile(pattern), entry)
        else:
            entries[path] = entry
    marked = {path: (tuple(value[:-1]), value[-1]) for path, value in table.get("marked", {}).items()}
    return Layout(
        name=name,
        containers=frozenset(table.get("layers", base.containers if base else ())),
        requires=tuple(table.get("requires", ())),
        entries=entries,
        templates=tuple(templates.values()),
        others={**(base.others if base else {}), **table.get("others", {})},
        marked={**(base.marked if base else {}), **marked},
        extended=base is not None,
        tied=table.get("tied"),
        outside={**(base.outside if base else {}), **_by_path(table.get("outside", {}))},
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [None]


def _base(table: Mapping[str, Any], name: str) -> Layout | None:
    if "extends" not in table:
        return None
    known = [path.name.removesuffix(".toml") for path in (files(__package__) / "layouts").iterdir()]
    if table["extends"] not in known or table["extends"] == name:
        raise InputError(
            f"layout {name}: cannot extend {shown(table['extends'])}; built in: {', '.join(sorted(known))}"
        )
    return parse_layout(table["extends"], _table(table["extends"]))


def _entries(name: str, table: Mapping[str, Any], in_out: bool | list[str]) -> dict[str, Entry]:
    def entry(path: str, names: tuple[str, ...], rule: str | None, group: str) -> Entry:
        unknown = [matrix for matrix in names if matrix not in ALIASES]
        if unknown:
            raise InputError(f"layout {name}: {shown(unknown[0])} is no matrix; known: {', '.join(ALIASES)}")
        if rule is not None and rule not in RULES:
            raise InputError(f"layout {name}: no rule {shown(rule)}; known: {', '.join(RULES)}")
        return Entry(
            names=names,
            rule=rule,
            group=group,
            in_out=in_out is True or (in_out is not False and path in in_out),
            numbered="{expert}" in path,
            reshaped=path in table.get("reshaped", []),
        )

    entries = {}
    for group in GROUPS:
        for path, matrix in _by_path(table.get(group, {})).items():
            entries[path] = entry(path, (matrix,), None, group)
        for path, (rule, *names) in table.get("fused", {}).get(group, {}).items():
            entries[path] = entry(path, tuple(names), rule, group)
    return entries


def _by_path(table: Mapping[str, list[str]]) -> dict[str, str]:
    return {path: name for name, paths in table.items() for path in paths}


def _pattern(template: str) -> str:
    pattern = re.escape(template)
    for placeholder, number in _NUMBERS.items():
        pattern = pattern.replace(re.escape(placeholder), number)
    return pattern
