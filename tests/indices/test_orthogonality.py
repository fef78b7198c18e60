"""How near columns are to orthogonal: closed forms, brute force, and the law of chance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from docs_sim.indices.orthogonality import BINS, chance_orthogonality, orthogonality


def gaussian(n: int, m: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, m))


def brute_force(matrix: np.ndarray) -> np.ndarray:
    unit = matrix / np.linalg.norm(matrix, axis=0)
    return np.abs(unit.T @ unit)


@given(st.integers(2, 20), st.integers(2, 40), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_equals_brute_force(n, m, seed):
    matrix = gaussian(n, m, seed)
    cosines = brute_force(matrix)
    pairs = cosines[np.triu_indices(m, 1)]
    found = orthogonality(matrix)
    assert found.columns == m
    assert found.mean == pytest.approx(pairs.mean(), abs=1e-9)
    assert found.highest == pytest.approx(pairs.max(), abs=1e-9)
    assert found.deviation == pytest.approx(np.linalg.norm(cosines - np.eye(m)), abs=1e-9)
    assert found.counts.sum() == len(pairs)
    assert orthogonality(matrix.astype(np.float32)).mean == pytest.approx(pairs.mean(), abs=1e-6)


@pytest.mark.parametrize("m", [1023, 1024, 1025, 2500])
def test_all_tiles_are_counted_once(m):
    matrix = torch.from_numpy(gaussian(30, m)).float()
    cosines = brute_force(matrix.numpy())[np.triu_indices(m, 1)]
    found = orthogonality(matrix)
    assert found.counts.sum() == m * (m - 1) // 2
    assert found.mean == pytest.approx(cosines.mean(), abs=1e-6)
    expected = np.histogram(cosines, BINS, (0, 1))[0]
    assert np.abs(found.counts.cumsum() - expected.cumsum()).max() < 1e-4 * len(cosines)


def test_orthogonal_columns_are_orthogonal():
    found = orthogonality(hadamard(64).astype(float))
    assert (found.mean, found.highest, found.deviation) == (0, 0, 0)
    assert found.counts[0] == 64 * 63 / 2


def test_equal_columns_are_parallel():
    found = orthogonality(np.outer(np.arange(1, 6), [1.0, -2, 3]))
    assert (found.mean, found.highest) == (pytest.approx(1), pytest.approx(1))
    assert found.deviation == pytest.approx(np.sqrt(6))
    assert found.counts[-1] == 3


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_sizes_of_columns_do_not_matter(size):
    matrix = torch.from_numpy(gaussian(16, 20)).float()
    scales = torch.logspace(0, 3, 20)
    assert orthogonality(matrix * scales * size).mean == pytest.approx(orthogonality(matrix).mean, abs=1e-6)


def test_zero_columns_are_left_out():
    matrix = gaussian(8, 10)
    padded = np.concatenate([np.zeros((8, 3)), matrix], axis=1)
    found = orthogonality(padded)
    assert found.columns == 10
    assert found.mean == orthogonality(matrix).mean


def test_one_column_has_no_pair():
    found = orthogonality(gaussian(8, 1))
    assert np.isnan(found.mean)
    assert np.isnan(found.highest)
    assert found.deviation == 0
    assert np.isnan(chance_orthogonality(8, 1).mean)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.zeros((4, 3)), "only zero columns"),
        (np.full((4, 3), np.nan), "NaN"),
        (np.full((4, 3), np.inf), "infinity"),
        (np.ones(4), "real matrix"),
        (np.ones((0, 4)), "real matrix"),
    ],
)
def test_what_has_no_columns_is_refused(matrix, words):
    with pytest.raises(ValueError, match=words):
        orthogonality(matrix)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_no_chance_without_a_shape(shape):
    with pytest.raises(ValueError, match="no matrix"):
        chance_orthogonality(*shape)


@pytest.mark.parametrize(("n", "m"), [(2, 30), (16, 50), (64, 200), (200, 100), (1, 4)])
def test_chance_is_what_independent_columns_give(n, m):
    chance = chance_orthogonality(n, m)
    drawn = [orthogonality(gaussian(n, m, seed)) for seed in range(60)]
    for name in ("mean", "deviation"):
        values = np.array([getattr(one, name) for one in drawn]) ** (2 if name == "deviation" else 1)
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - getattr(chance, name) ** (2 if name == "deviation" else 1)) <= 3 * error + 1e-9
    below = np.mean([one.highest <= chance.highest + 1e-12 for one in drawn])
    assert 0.3 < below <= (1 if n == 1 else 0.7)
    assert np.mean([one.distance(chance) for one in drawn]) < (0.2 if n == 2 else 0.05)
    assert chance.counts.sum() == pytest.approx(m * (m - 1) / 2)


def test_a_low_rank_matrix_is_far_from_chance():
    matrix = gaussian(64, 3) @ gaussian(3, 100, 1)
    found, chance = orthogonality(matrix), chance_orthogonality(64, 100)
    assert found.distance(chance) > 0.5
    assert found.distance(chance_orthogonality(3, 100)) < 0.1
