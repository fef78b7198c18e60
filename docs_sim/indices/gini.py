"""The Gini coefficient of a similarity grid: how concentrated the similarity of a layer is on a few others."""

import numpy as np


def mean_gini(values: np.ndarray) -> float:
    """Mean over rows of the Gini coefficient of the row without its diagonal entry (the paper's Table 2).

    Args:
        values: (L, L) similarities, not negative off the diagonal.

    Returns:
        0 for equal entries, towards 1 for a single large one; NaN for fewer than three rows, negative or missing
        values, or a row of zeros.

    >>> mean_gini(np.ones((4, 4)))
    0.0
    """
    count = len(values)
    if count < 3:
        return float("nan")
    rows = np.sort(values[~np.eye(count, dtype=bool)].reshape(count, count - 1), axis=1)
    totals = rows.sum(axis=1)
    if not (np.all(rows >= 0) and np.all(totals > 0)):
        return float("nan")
    # Sum of |a - b| over ordered pairs, from the sorted row.
    ranks = 2 * np.arange(1, count) - count
    return float(np.mean(rows @ ranks / ((count - 1) * totals)))
