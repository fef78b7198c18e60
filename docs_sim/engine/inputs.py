"""What all grids ask of their matrices and their memory before anything is read."""

import operator
from collections.abc import Sequence

from docs_sim.engine.prepared import LoadableMatrix
from docs_sim.errors import InputError, shown


def check_comparable(matrices: Sequence[LoadableMatrix], memory_budget: int | None) -> None:
    """Refuse what cannot be compared.

    Raises:
        InputError: if n differs, a matrix is empty, or the budget is not above zero.
    """
    widths = {matrix.shape[0]: matrix.key for matrix in matrices}
    if len(widths) > 1:
        differing = ", ".join(f"{key} has n = {n}" for n, key in widths.items())
        raise InputError(f"neurons of different spaces cannot be compared: {differing}")
    empty = next((matrix for matrix in matrices if 0 in matrix.shape), None)
    if empty is not None:
        raise InputError(f"{empty.key} has the shape {empty.shape}: there is nothing to compare")
    if memory_budget is not None and not _is_positive(memory_budget):
        raise InputError(f"a memory budget is a number of bytes above zero, not {shown(memory_budget)}")


def _is_positive(number: object) -> bool:
    try:
        return not isinstance(number, bool) and operator.index(number) > 0  # type: ignore[arg-type]
    except TypeError:
        return False
