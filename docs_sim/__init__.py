"""docs-sim: how similar are the weights of language models, layer by layer, without running them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docs_sim.analyses.heatmap import Heatmap, heatmap
    from docs_sim.checkpoint import Checkpoint, WeightMatrix, open_checkpoint
    from docs_sim.errors import InputError
    from docs_sim.indices.docs import chance_level, docs, docs_mean
    from docs_sim.indices.table import similarity

__all__ = [
    "Checkpoint",
    "Heatmap",
    "InputError",
    "WeightMatrix",
    "chance_level",
    "docs",
    "docs_mean",
    "heatmap",
    "open_checkpoint",
    "similarity",
]

# Imported on first use: `docs-sim --help` and `inspect` must not wait for torch.
_HOMES = {
    "Checkpoint": "docs_sim.checkpoint",
    "Heatmap": "docs_sim.analyses.heatmap",
    "InputError": "docs_sim.errors",
    "WeightMatrix": "docs_sim.checkpoint",
    "chance_level": "docs_sim.indices.docs",
    "docs": "docs_sim.indices.docs",
    "docs_mean": "docs_sim.indices.docs",
    "heatmap": "docs_sim.analyses.heatmap",
    "open_checkpoint": "docs_sim.checkpoint",
    "similarity": "docs_sim.indices.table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
