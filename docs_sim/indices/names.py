"""The names of the indices, without the indices: these need torch, and the command line's help does not wait for it."""

from enum import StrEnum


class IndexName(StrEnum):
    """The indices of ``table.INDICES``."""

    docs = "docs"
    docs_mean = "docs_mean"
