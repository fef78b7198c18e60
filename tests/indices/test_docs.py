"""DOCS as mathematics: invariances, closed forms, chance, and brute force in float64."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard
from scipy.stats import gumbel_r, ortho_group

import docs_sim
from docs_sim.indices.docs import chance_level, chance_level_mean, docs, docs_mean, unit_neurons
from docs_sim.indices.gini import mean_gini
from docs_sim.indices.table import INDICES

SHAPES = [(16, 8, 8), (16, 16, 16), (16, 40, 40), (16, 9, 50), (3, 200, 7), (1, 5, 5)]


def gaussian(n: int, m: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def brute_force(x: torch.Tensor, y: torch.Tensor, reduce: str = "max") -> float:
    """The definition, with numpy and scipy."""
    a, b = x.numpy(), y.numpy()
    cosines = np.abs((a / np.linalg.norm(a, axis=0)).T @ (b / np.linalg.norm(b, axis=0)))
    sides = [getattr(cosines, reduce)(axis=axis) for axis in (1, 0)]
    return float(np.mean([side[0] if np.ptp(side) < 1e-15 else gumbel_r.fit(side)[0] for side in sides]))


@pytest.mark.parametrize(("n", "m_x", "m_y"), SHAPES)
def test_equals_its_definition(n: int, m_x: int, m_y: int) -> None:
    x, y = gaussian(n, m_x, 1), gaussian(n, m_y, 2)
    assert docs(x, y) == pytest.approx(brute_force(x, y), abs=1e-9)
    assert docs(x.float(), y.float()) == pytest.approx(brute_force(x, y), abs=1e-5)
    assert docs_mean(x, y) == pytest.approx(brute_force(x, y, "mean"), abs=1e-9)


@given(st.integers(2, 24), st.integers(2, 30), st.integers(2, 30), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_invariances(n: int, m_x: int, m_y: int, seed: int) -> None:
    x, y = gaussian(n, m_x, seed), gaussian(n, m_y, seed + 1)
    generator = torch.Generator().manual_seed(seed)
    order_x, order_y = torch.randperm(m_x, generator=generator), torch.randperm(m_y, generator=generator)
    signs = torch.randint(0, 2, (m_x,), generator=generator) * 2 - 1
    rotation = torch.from_numpy(ortho_group.rvs(n, random_state=seed))
    value = docs(x, y)
    assert docs(x[:, order_x], y[:, order_y]) == pytest.approx(value, abs=1e-12)  # permutation of neurons
    assert docs(y, x) == pytest.approx(value, abs=1e-12)  # symmetry
    assert docs(-3.7 * x, 0.001 * y) == pytest.approx(value, abs=1e-12)  # scaling
    assert docs(x * signs * torch.arange(1, m_x + 1), y) == pytest.approx(value, abs=1e-9)  # of each neuron
    assert docs(rotation @ x, rotation @ y) == pytest.approx(value, abs=1e-9)  # common rotation of the space


def test_a_rotation_of_one_side_alone_is_seen() -> None:
    x = gaussian(32, 64)
    rotation = torch.from_numpy(ortho_group.rvs(32, random_state=0))
    assert docs(x, rotation @ x) < 0.8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "m"), [(2, 1), (8, 8), (8, 30), (100, 7)])
def test_a_matrix_is_exactly_like_itself(n: int, m: int, dtype: torch.dtype) -> None:
    x = gaussian(n, m).to(dtype)
    assert docs(x, x.clone()) == 1.0
    assert docs(x, -2 * x[:, torch.randperm(m)]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("m", [2, 4, 64])
def test_discriminates_orthogonal_matrices(m: int) -> None:
    """Theorem 1 of the paper: far apart, and DOCS is 1 / sqrt(m). The samples have no spread."""
    identity, walsh = np.eye(m), hadamard(m) / np.sqrt(m)
    assert np.linalg.norm(identity - walsh) == pytest.approx(
        np.sqrt(2 * (m - np.sqrt(m) * np.trace(walsh) / np.sqrt(m)))
    )
    assert docs(identity, walsh) == pytest.approx(1 / np.sqrt(m), abs=1e-7)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e6, 1e30])
def test_size_of_the_weights_does_not_matter(size: float) -> None:
    x, y = gaussian(16, 20, 1).float(), gaussian(16, 20, 2).float()
    assert docs(x * size, y) == pytest.approx(docs(x, y), abs=1e-6)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_float64_weights_beyond_float32(size: float) -> None:
    x = gaussian(16, 20, 1)
    assert unit_neurons(x * size, torch.float32).sub(unit_neurons(x, torch.float32)).abs().max() < 1e-6


def test_float16_norms_do_not_overflow() -> None:
    x = (gaussian(64, 20).clamp(-3, 3) * 2e4).half()
    assert docs(x, gaussian(64, 20)) == pytest.approx(docs(x.double(), gaussian(64, 20)), abs=1e-6)


def test_zero_columns_are_left_out() -> None:
    x, y = gaussian(8, 10, 1), gaussian(8, 12, 2)
    padded = torch.cat([torch.zeros(8, 3), x, torch.zeros(8, 1)], dim=1)
    assert docs(padded, y) == pytest.approx(docs(x, y), abs=1e-12)
    assert unit_neurons(padded, torch.float64).shape == (10, 8)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 3)), "different spaces"),
        (np.ones(3), np.ones((3, 3)), "expected a real matrix"),
        (np.ones((3, 0)), np.ones((3, 3)), "expected a real matrix"),
        (np.full((3, 3), np.nan), np.ones((3, 3)), "NaN"),
        (np.full((3, 3), np.inf), np.ones((3, 3)), "infinity"),
        (np.zeros((3, 3)), np.ones((3, 3)), "zero columns"),
    ],
)
def test_bad_input_is_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    for similarity in (docs, docs_mean):
        with pytest.raises(ValueError, match=message):
            similarity(x, y)


@pytest.mark.parametrize(
    ("n", "m", "published"), [(4096, 14336, 0.0620), (4096, 4096, 0.0572), (4096, 1024, 0.0513), (576, 1536, 0.1411)]
)
def test_chance_level_of_well_known_shapes(n: int, m: int, published: float) -> None:
    assert chance_level(n, m, m) == pytest.approx(published, abs=5.1e-5)


@pytest.mark.parametrize(("n", "m_x", "m_y"), [(2, 3, 3), (64, 256, 256), (128, 32, 512), (256, 128, 128)])
@pytest.mark.parametrize(("index", "chance"), [("docs", chance_level), ("docs_mean", chance_level_mean)])
def test_chance_is_what_independent_matrices_give(index: str, chance, n: int, m_x: int, m_y: int) -> None:
    """Within five standard errors; a fit to few samples is biased, so many columns or a small allowance."""
    if index == "docs_mean" and n == 2:
        pytest.skip("the normal approximation of the mean variant is for large m")
    repeats = 40
    values = [INDICES[index].function(gaussian(n, m_x, seed), gaussian(n, m_y, seed + 1000)) for seed in range(repeats)]
    error = np.std(values) / np.sqrt(repeats)
    assert np.mean(values) == pytest.approx(chance(n, m_x, m_y), abs=5 * error + 0.5 / min(m_x, m_y) / np.sqrt(n))


def test_neurons_of_a_line_are_all_parallel() -> None:
    assert chance_level(1, 4, 4) == 1.0
    assert docs(gaussian(1, 4, 1), gaussian(1, 5, 2)) == 1.0


def test_similarity_takes_the_index_by_name() -> None:
    x, y = gaussian(8, 9, 1), gaussian(8, 9, 2)
    assert docs_sim.similarity(x, y) == docs(x, y)
    assert docs_sim.similarity(x.numpy(), y.numpy(), index="docs_mean") == docs_mean(x, y)
    with pytest.raises(ValueError, match="known: docs, docs_mean"):
        docs_sim.similarity(x, y, index="cosine")


def test_gini_of_a_grid() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(size=(6, 6))
    rows = [np.delete(row, number) for number, row in enumerate(values)]
    expected = np.mean([np.abs(row[:, None] - row).sum() / (2 * len(row) ** 2 * row.mean()) for row in rows])
    assert mean_gini(values) == pytest.approx(expected, abs=1e-12)
    assert mean_gini(np.ones((5, 5))) == pytest.approx(0, abs=1e-12)
    assert np.isnan(mean_gini(np.ones((2, 2))))


def test_takes_the_weights_of_a_live_model() -> None:
    layers = [torch.nn.Linear(16, 20) for _ in range(2)]
    value = docs(layers[0].weight.T, layers[1].weight.T)
    assert value == pytest.approx(docs(layers[0].weight.detach().numpy().T, layers[1].weight.detach().numpy().T))


def test_an_error_says_which_side_is_broken() -> None:
    with pytest.raises(ValueError, match="y holds NaN"):
        docs(np.ones((2, 2)), np.full((2, 2), np.nan))


@pytest.mark.parametrize("shape", [(0, 4, 4), (4, 0, 1), (4, 1, -1)])
def test_no_chance_without_a_matrix(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no matrix"):
        docs_sim.chance_level(*shape)


@pytest.mark.parametrize("general", ["none", "tf32"])
@pytest.mark.parametrize("own", ["none", "bf16"])
def test_products_are_full_products_whatever_the_program_allows(general: str, own: str) -> None:
    x, y = gaussian(256, 300, 1).float(), gaussian(256, 300, 2).float()
    expected = docs(x, y)
    matmul = torch.backends.mkldnn.matmul
    try:
        torch.backends.fp32_precision, matmul.fp32_precision = general, own
        assert docs(x, y) == expected
        assert matmul.fp32_precision == (general if own == "none" else own)
        torch.backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == ("ieee" if own == "none" else own), "it no longer follows the general setting"
    finally:
        torch.backends.fp32_precision = matmul.fp32_precision = "none"


def test_computations_at_once_leave_the_switches_as_they_were() -> None:
    x, y = gaussian(64, 80, 1).float(), gaussian(64, 80, 2).float()
    before = torch.backends.mkldnn.matmul.fp32_precision
    with ThreadPoolExecutor(8) as pool:
        values = set(pool.map(lambda _: docs(x, y), range(64)))
    assert len(values) == 1
    assert torch.backends.mkldnn.matmul.fp32_precision == before
