"""What matrices are by themselves: how near to orthogonal their columns lie, matrix by matrix on all devices."""

from collections.abc import Callable, Sequence

import torch

from docs_sim.engine.device import with_float64
from docs_sim.engine.parallel import map_together
from docs_sim.engine.prepared import LoadableMatrix, naming_tensors
from docs_sim.indices.orthogonality import Orthogonality, orthogonality


def orthogonality_of_all(
    matrices: Sequence[LoadableMatrix],
    devices: Sequence[torch.device],
    progress: Callable[[int], None] = lambda matrices: None,
) -> list[Orthogonality]:
    """The orthogonality of the columns of each matrix; ``progress`` gets 1 after each.

    Raises:
        InputError: naming the tensor, if one is empty, or holds NaN, infinity or only zero columns.
    """

    def measure(matrix: LoadableMatrix, device: torch.device) -> Orthogonality:
        with naming_tensors(matrix):
            return orthogonality(matrix.load().to(device))

    return map_together(measure, matrices, with_float64(devices), progress)
