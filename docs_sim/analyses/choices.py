"""How a grid may be computed, by name. Imports nothing that takes time: the command line lists these in its help."""

from enum import StrEnum

from docs_sim.indices.names import IndexName

__all__ = ["IndexName", "Precision"]


class Precision(StrEnum):
    """How products are computed."""

    auto = "auto"
    highest = "highest"
