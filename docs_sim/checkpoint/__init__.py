"""What is on disk -> named, lazily loaded neuron matrices."""

from docs_sim.checkpoint.checkpoint import Checkpoint, open_checkpoint
from docs_sim.checkpoint.matrix import WeightMatrix

__all__ = ["Checkpoint", "WeightMatrix", "open_checkpoint"]
