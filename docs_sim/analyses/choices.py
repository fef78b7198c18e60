"""How a grid may be computed, by name. Imports nothing that takes time: the command line lists these in its help."""

from enum import StrEnum

from docs_sim.indices.names import IndexName

__all__ = ["IndexName", "NullName", "Precision"]


class Precision(StrEnum):
    """How products are computed."""

    auto = "auto"
    highest = "highest"


class NullName(StrEnum):
    """What stands for unrelated matrices."""

    rotation = "rotation"  # one side turned at random: each matrix keeps its own geometry
    reinit = "reinit"  # independent Gaussian matrices of the same shapes
