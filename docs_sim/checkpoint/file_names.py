"""Names of files that somebody else wrote: an index of shards, the listing of a repository."""

from pathlib import Path, PurePosixPath


def stays_inside(name: str) -> bool:
    r"""Whether a name means something inside the directory that it is joined to, on every system.

    Names are judged, not where they lead: the files of the Hugging Face cache are links to elsewhere.

    >>> [stays_inside(name) for name in ("a/b.json", "../a", "/a", "a\\b", "C:a", "a\0")]
    [True, False, False, False, False, False]
    """
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and not set(name) & set("\\:\0")


def is_file(path: Path) -> bool:
    """Whether a file is there; not if its name is one that no file system takes."""
    try:
        return path.is_file()
    except OSError:
        return False
