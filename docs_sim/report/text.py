"""Words for people: text that comes from files and does no harm where it is shown, lists of numbers."""

from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """One line that does nothing to a terminal: names in checkpoints are untrusted, and so are file names."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def ranges(numbers: Iterable[int]) -> str:
    """{0, 1, 2, 5} -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Rows of one length as lines in columns, two spaces apart; all but the first column to the right if ``right``."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if right and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
