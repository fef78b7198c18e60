"""What chance gives: drawn matrices are what they are called; formula, simulation and null agree."""

import math

import numpy as np
import pytest
import torch

from docs_sim.analyses.index_grid import index_grids
from docs_sim.engine.nulls import ByChance, gaussian, random_rotation, rotated
from docs_sim.indices.docs import chance_level, docs
from docs_sim.indices.table import INDICES
from tests.engine.in_memory import InMemory

CPU = [torch.device("cpu")]
SHAPES = [
    *((16, 16, 16), (16, 64, 64), (32, 20, 20), (32, 200, 50), (64, 64, 64), (64, 256, 256)),
    *((96, 256, 100), (128, 40, 40), (128, 512, 512), (200, 300, 600), (256, 128, 128), (384, 1000, 700)),
]
REPEATS = 30


def independent(n: int, neurons: list[int], seed: int = 0) -> list[InMemory]:
    random = torch.Generator().manual_seed(seed)
    return [InMemory(torch.randn((n, m), generator=random), key=f"layers.{i}.mlp_up") for i, m in enumerate(neurons)]


@pytest.mark.parametrize("n", [1, 2, 3, 64])
def test_a_rotation_is_one(n):
    rotation = random_rotation(n, 0).double()
    assert torch.allclose(rotation.T @ rotation, torch.eye(n, dtype=torch.float64), atol=1e-6)


def test_rotations_have_no_favourite_direction():
    """Entries have mean 0 and variance 1 / n, and half of all rotations mirror: without the signs all would not."""
    drawn = torch.stack([random_rotation(4, seed) for seed in range(2000)]).double()
    error = 3 / math.sqrt(2000)
    assert (drawn.mean(0).abs() < error * 0.5 * 1.3).all()
    assert ((drawn.square().mean(0) - 0.25).abs() < error * 0.3 * 1.3).all()
    assert abs(float(torch.linalg.det(drawn).sign().mean())) < error
    assert abs(float(drawn[:, 0, 0].sign().mean())) < error


def test_a_turned_matrix_keeps_its_own_geometry():
    (matrix,) = independent(24, [40])
    turned = rotated(matrix, 3)
    assert torch.allclose(turned.T @ turned, (matrix.matrix.T @ matrix.matrix).double(), atol=1e-4)
    assert not torch.allclose(turned, matrix.matrix.double(), atol=0.1)
    assert torch.equal(turned, ByChance(matrix, rotated, 3).load())
    assert not torch.equal(turned, rotated(matrix, 4))


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e20])
def test_a_layer_anew_has_the_shape_and_the_size(size):
    matrix = InMemory(torch.full((50, 80), size))
    drawn = gaussian(matrix, 3)
    assert drawn.shape == matrix.shape
    assert float(drawn.double().square().mean().sqrt()) == pytest.approx(size, rel=0.05)
    assert abs(float(drawn.double().mean())) < 0.1 * size
    assert torch.equal(drawn, gaussian(matrix, 3))
    assert not torch.equal(drawn, gaussian(matrix, 4))


@pytest.mark.parametrize(("n", "m_x", "m_y"), SHAPES)
def test_formula_simulation_and_rotation_agree(n, m_x, m_y):
    """Independent Gaussian matrices: the analytic chance level, brute simulation, and the rotation null's mean."""
    simulated = []
    for seed in range(REPEATS):
        x, y = independent(n, [m_x, m_y], seed)
        simulated.append(docs(x.matrix, y.matrix))
    mean, error = np.mean(simulated), np.std(simulated, ddof=1) / math.sqrt(REPEATS)
    assert abs(chance_level(n, m_x, m_y) - mean) < 3 * error
    grid = index_grids(independent(n, [m_x, m_y], 99), ["docs"], devices=CPU, null="rotation", repeats=REPEATS)["docs"]
    null_error = grid.null.deviation[0, 1] / math.sqrt(REPEATS)
    assert abs(grid.null.mean[0, 1] - chance_level(n, m_x, m_y)) < 3 * null_error
    assert abs(grid.null.mean[0, 1] - mean) < 3 * math.hypot(error, null_error)


@pytest.mark.parametrize("null", ["rotation", "reinit"])
@pytest.mark.parametrize("index", INDICES)
def test_the_null_of_an_index_is_what_pairs_of_such_matrices_give(index, null):
    """Brute force: each repeat drawn, turned and compared by hand."""
    matrices = independent(24, [10, 12, 9])
    grid = index_grids(matrices, [index], devices=CPU, null=null, repeats=3)[index]
    samples = np.full((3, 3, 3), np.nan)
    for repeat in range(3):
        for i in range(3):
            for j in range(i + 1, 3):
                if null == "rotation":
                    x, y = matrices[i].matrix, rotated(matrices[j], repeat)
                else:
                    x, y = (gaussian(matrices[one], 3 * repeat + one) for one in (i, j))
                samples[repeat, i, j] = samples[repeat, j, i] = INDICES[index].function(x, y)
    np.testing.assert_allclose(grid.null.mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(grid.null.deviation, samples.std(0, ddof=1), rtol=1e-2, atol=1e-7)
    if not grid.degenerate:
        spread = np.where(grid.null.deviation > 0, grid.null.deviation, np.nan)
        np.testing.assert_allclose(grid.z, (grid.values - grid.null.mean) / spread)
    if np.isfinite(INDICES[index].highest):
        np.testing.assert_allclose(grid.excess, (grid.telling - grid.null.mean) / (1 - grid.null.mean))
    else:
        assert grid.excess is None


def test_one_repeat_has_no_z_score():
    grid = index_grids(independent(16, [10, 12]), ["docs"], devices=CPU, null="rotation", repeats=1)["docs"]
    assert grid.z is None
    assert np.isnan(grid.null.deviation).all()
    assert np.isfinite(grid.excess[0, 1])


def test_related_layers_stand_out_of_the_rotation_null():
    x, y, z = (one.matrix for one in independent(32, [40, 40, 40]))
    family = [InMemory(x), InMemory(x[:, torch.randperm(40)] + 0.3 * y), InMemory(z)]
    grids = index_grids(family, ["docs", "linear_cka_debiased"], devices=CPU, null="rotation", repeats=8)
    for grid in grids.values():
        assert grid.z[0, 1] > 5
        assert abs(grid.z[0, 2]) < 5


@pytest.mark.parametrize("index", ["cca", "linear_cka", "docs"])
def test_a_null_within_a_memory_budget_is_the_same(index):
    matrices = independent(24, [10, 12, 9])
    options = {"devices": CPU, "null": "rotation", "repeats": 2}
    tight = index_grids(matrices, [index], memory_budget=1, **options)[index]
    np.testing.assert_array_equal(tight.null.mean, index_grids(matrices, [index], **options)[index].null.mean)


def test_degenerate_values_have_neither_excess_nor_z():
    """Rounding over rounding would be any number."""
    grid = index_grids(independent(8, [20, 20]), ["linear_regression"], devices=CPU, null="reinit", repeats=3)
    assert np.isnan(grid["linear_regression"].excess).all()
    assert np.isnan(grid["linear_regression"].z).all()
