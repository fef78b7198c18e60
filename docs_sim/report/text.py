"""Words for people: text that comes from files and does no harm where it is shown, lists of numbers."""

from collections.abc import Iterable


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
