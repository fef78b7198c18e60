"""How grids may be computed. Imports nothing that takes time: the command line lists the choices in its help."""

from dataclasses import dataclass
from enum import StrEnum

from docs_sim.indices.choices import SVCCA_VARIANCE, IndexName

__all__ = ["SVCCA_VARIANCE", "Computation", "IndexName", "NullName", "Precision"]


class Precision(StrEnum):
    """How products are computed."""

    auto = "auto"
    highest = "highest"


class NullName(StrEnum):
    """What stands for unrelated matrices."""

    rotation = "rotation"  # one side turned at random: each matrix keeps its own geometry
    reinit = "reinit"  # independent Gaussian matrices of the same shapes


@dataclass(frozen=True)
class Computation:
    """How grids are computed; ``layer_grids.check_computation`` says whether it can be.

    Attributes:
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        precision: ``auto`` or ``highest`` (float32 products everywhere), for DOCS.
        memory_budget: bytes for prepared matrices; half of the free memory if None.
        svcca_variance: share of the variance that SVCCA keeps, in (0, 1].
        null: what stands for unrelated matrices, ``rotation`` or ``reinit``; no simulation if None.
        null_repeats: how often each pair is drawn.
    """

    device: str = "auto"
    precision: str = "auto"
    memory_budget: int | None = None
    svcca_variance: float = SVCCA_VARIANCE
    null: str | None = None
    null_repeats: int = 1
