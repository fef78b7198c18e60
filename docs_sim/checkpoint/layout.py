"""What a family of models calls its tensors, as data. ``layout_file`` reads it from ``layouts/*.toml``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

GROUPS = ("dense", "experts", "shared", "attn_experts", "shared_experts")


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


class Meaning(NamedTuple):
    """What a path stands for, with the numbers of its expert and its half of the layer, where the path has them."""

    entry: Entry
    expert: int | None = None
    sub: int | None = None


@dataclass(frozen=True)
class Layout:
    """How one family names its tensors.

    Attributes:
        name: of the file.
        containers: what the list of layers is called: ``layers``, ``h``, ``layers.{stage}.blocks``.
        requires: paths of which a model of this family has at least one.
        model_types: what config.json calls it, for a family whose names and shapes are those of another.
        entries: path inside the layer -> what it stands for.
        templates: the same for paths with ``{expert}`` or ``{sub}``.
        others: beginning of a path -> what it is instead.
        marked: path -> (beginnings of paths, what these are in a layer that has the path).
        extended: whether it builds on another.
        tied: path of a layer that has no matrices of its own and uses those of an earlier one.
        unchecked: names of matrices whose shape does not follow from the others of the layer.
        outside: path outside the layers -> matrix name; always stored (out, in).
        stated: the paths inside a layer that its own file gives, with placeholders.
    """

    name: str
    containers: frozenset[str]
    requires: tuple[str, ...]
    model_types: tuple[str, ...]
    entries: Mapping[str, Entry]
    templates: tuple[tuple[re.Pattern[str], Entry], ...]
    others: Mapping[str, str]
    marked: Mapping[str, tuple[tuple[str, ...], str]]
    extended: bool
    tied: str | None
    unchecked: frozenset[str]
    outside: Mapping[str, str]
    stated: tuple[str, ...]

    def meaning(self, path: str) -> Meaning | None:
        """What a path inside a layer stands for, its expert and its half of the layer."""
        if path in self.entries:
            return Meaning(self.entries[path])
        for template, entry in self.templates:
            found = template.fullmatch(path)
            if found:
                numbers = found.groupdict()
                return Meaning(entry, _number(numbers.get("expert")), _number(numbers.get("sub")))
        return None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
