"""A whole result in one directory: figures, tables, and ``result.json``."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs_sim.errors import check_choice
from docs_sim.report.choices import Format
from docs_sim.report.files import RESULT, check_replaceable, json_text, write_files
from docs_sim.report.grids import figure_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_result(
    directory: str | Path,
    result: Mapping[str, Any],
    tables: Mapping[str, str],
    figures: "Mapping[str, Figure]",
    *,
    formats: str | Sequence[str] = (),
    optional: Iterable[str] = (),
) -> list[Path]:
    """Write ``<figure>.<format>``, the tables and ``result.json``: each whole, the last one last.

    Args:
        directory: made if it is not there.
        result: what ``result.json`` holds.
        tables: name of a file -> its text.
        figures: name without a format -> figure.
        formats: one or several.
        optional: names of tables, and of figures without a format, that an earlier run may have left and this one has
            not: they go. So do figures in other formats.

    Raises:
        InputError: if the directory cannot be written or holds a result of something else, or a format is unknown.
    """
    directory = Path(directory)
    formats = [formats] if isinstance(formats, str) else formats
    for suffix in formats:
        check_choice("format", suffix, Format)
    check_replaceable(directory)
    contents = {
        f"{name}.{suffix}": figure_bytes(figure, suffix) for name, figure in figures.items() for suffix in formats
    }
    contents |= {name: text.encode() for name, text in tables.items()}
    contents[RESULT] = json_text(result).encode()
    earlier = [name for name in optional if "." in name]
    earlier += [f"{name}.{suffix}" for name in {*figures, *optional} if "." not in name for suffix in Format]
    return write_files(directory, contents, [name for name in earlier if name not in contents])
