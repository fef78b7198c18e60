"""Text that comes from files and does no harm where it is shown."""


def printable(text: str) -> str:
    """One line that does nothing to a terminal: names in checkpoints are untrusted, and so are file names."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
