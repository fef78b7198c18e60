"""docs-sim: how similar are the weights of language models, layer by layer, without running them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docs_sim.analyses.column_orthogonality import ColumnOrthogonality, column_orthogonality
    from docs_sim.analyses.heatmap import Heatmap, heatmap
    from docs_sim.analyses.histogram import Histogram, histogram
    from docs_sim.analyses.index_comparison import IndexComparison, compare_indices
    from docs_sim.analyses.index_properties import IndexProperties, index_properties
    from docs_sim.checkpoint import Checkpoint, WeightMatrix, open_checkpoint
    from docs_sim.errors import InputError
    from docs_sim.indices.docs import chance_level, docs, docs_mean
    from docs_sim.indices.table import similarity

__all__ = [
    "Checkpoint",
    "ColumnOrthogonality",
    "Heatmap",
    "Histogram",
    "IndexComparison",
    "IndexProperties",
    "InputError",
    "WeightMatrix",
    "chance_level",
    "column_orthogonality",
    "compare_indices",
    "docs",
    "docs_mean",
    "heatmap",
    "histogram",
    "index_properties",
    "open_checkpoint",
    "similarity",
]

# Imported on first use: `docs-sim --help` and `inspect` must not wait for torch.
_HOMES = {
    "Checkpoint": "docs_sim.checkpoint",
    "ColumnOrthogonality": "docs_sim.analyses.column_orthogonality",
    "Heatmap": "docs_sim.analyses.heatmap",
    "Histogram": "docs_sim.analyses.histogram",
    "IndexComparison": "docs_sim.analyses.index_comparison",
    "IndexProperties": "docs_sim.analyses.index_properties",
    "InputError": "docs_sim.errors",
    "WeightMatrix": "docs_sim.checkpoint",
    "chance_level": "docs_sim.indices.docs",
    "column_orthogonality": "docs_sim.analyses.column_orthogonality",
    "compare_indices": "docs_sim.analyses.index_comparison",
    "docs": "docs_sim.indices.docs",
    "docs_mean": "docs_sim.indices.docs",
    "heatmap": "docs_sim.analyses.heatmap",
    "histogram": "docs_sim.analyses.histogram",
    "index_properties": "docs_sim.analyses.index_properties",
    "open_checkpoint": "docs_sim.checkpoint",
    "similarity": "docs_sim.indices.table",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
