"""The Mantel test: equal and reversed grids, chance, and all relabellings of a small one by hand."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import spearmanr

from docs_sim.analyses.mantel import mantel


def grid(size: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).random((size, size))
    return values + values.T


def upper(values: np.ndarray) -> np.ndarray:
    return values[np.triu_indices(len(values), 1)]


def test_the_correlation_is_spearmans_over_pairs_of_layers():
    grids = np.array([grid(9, seed) for seed in range(3)])
    grids[2] = np.round(grids[2] * 4)  # with ties
    found = mantel(grids, permutations=9)
    for i in range(3):
        for j in range(3):
            expected = spearmanr(upper(grids[i]), upper(grids[j])).statistic
            assert found.correlation[i, j] == pytest.approx(expected)
    np.testing.assert_allclose(np.diag(found.correlation), 1)


def test_the_share_of_relabellings_is_that_of_all():
    first, second = grid(5, 1), grid(5, 1) + 0.3 * grid(5, 2)
    found = spearmanr(upper(first), upper(second)).statistic
    orders = [list(order) for order in permutations(range(5))]
    as_high = [spearmanr(upper(first), upper(second[order][:, order])).statistic >= found - 1e-12 for order in orders]
    assert mantel(np.array([first, second]), permutations=4000).p[0, 1] == pytest.approx(np.mean(as_high), abs=0.02)


def test_related_grids_are_found_and_unrelated_ones_are_not():
    first = grid(20, 0)
    found = mantel(np.array([first, first**3, -first, grid(20, 5)]))
    assert found.correlation[0, 1] == pytest.approx(1)
    assert found.p[0, 1] == 1 / 1000
    assert found.correlation[0, 2] == pytest.approx(-1)
    assert found.p[0, 2] == 1
    assert abs(found.correlation[0, 3]) < 0.3
    assert found.p[0, 3] > 0.01


def test_p_values_are_uniform_for_unrelated_grids():
    p = np.array([mantel(np.array([grid(8, 2 * k), grid(8, 2 * k + 1)]), permutations=99).p[0, 1] for k in range(200)])
    assert abs(np.mean(p < 0.1) - 0.1) < 0.07
    assert abs(p.mean() - 0.5) < 0.07


@pytest.mark.parametrize("spoil", ["constant", "missing"])
def test_what_says_nothing_correlates_with_nothing(spoil):
    bad = np.ones((6, 6)) if spoil == "constant" else grid(6, 1)
    if spoil == "missing":
        bad[2, 3] = bad[3, 2] = np.nan
    found = mantel(np.array([grid(6, 0), bad, grid(6, 2)]))
    assert np.isnan(found.correlation[1]).all()
    assert np.isnan(found.p[:, 1]).all()
    assert np.isfinite(found.correlation[0, 2])


def test_two_layers_have_one_pair_and_nothing_to_compare():
    assert np.isnan(mantel(np.array([grid(2, 0), grid(2, 1)])).correlation).all()
