"""The batched Gumbel fit against scipy and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gumbel_r

from docs_sim.indices.gumbel import fit_gumbel


def samples(kind: str, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return {
        "gumbel": lambda: rng.gumbel(0.1, 0.01, count),
        "normal": lambda: rng.normal(0, 1, count),
        "uniform": lambda: rng.uniform(0, 1, count),
        "low outliers": lambda: np.r_[rng.normal(0.9975, 1e-4, count), np.full(1 + count // 50, 0.1)],
        "high outlier": lambda: np.r_[np.full(count, 0.05) + rng.normal(0, 1e-3, count), 1.0],
        "bimodal": lambda: np.r_[rng.normal(0.05, 0.003, count), rng.normal(0.99, 0.001, count)],
        "large": lambda: rng.gumbel(-3e9, 1e8, count),
    }[kind]()


@pytest.mark.parametrize("count", [3, 100, 4096])
@pytest.mark.parametrize("kind", ["gumbel", "normal", "uniform", "low outliers", "high outlier", "bimodal", "large"])
def test_agrees_with_scipy(kind: str, count: int) -> None:
    x = samples(kind, count, seed=count)
    fit = fit_gumbel(torch.from_numpy(x))
    location, scale = gumbel_r.fit(x)
    assert float(fit.location) == pytest.approx(location, rel=1e-6, abs=1e-6)
    assert float(fit.scale) == pytest.approx(scale, rel=1e-6, abs=1e-6)


def test_a_batch_is_its_rows() -> None:
    rows = torch.rand(3, 4, 50, dtype=torch.float64)
    batch = fit_gumbel(rows)
    assert batch.location.shape == (3, 4)
    for row in np.ndindex(3, 4):
        assert float(batch.location[row]) == pytest.approx(float(fit_gumbel(rows[row]).location), rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1 / 8])
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_sample_without_spread_has_its_value_as_location(value: float, count: int) -> None:
    fit = fit_gumbel(torch.full((count,), value))
    assert (float(fit.location), float(fit.scale)) == (value, 0.0)


def test_a_batch_may_mix_constant_and_spread_rows() -> None:
    fit = fit_gumbel(torch.tensor([[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]]))
    assert float(fit.location[0]) == 2.0
    assert float(fit.location[1]) == pytest.approx(gumbel_r.fit([1.0, 2.0, 3.0])[0])


def test_low_outliers_pull_the_location_down() -> None:
    """The measured trap: 80 of 4096 columns at 0.1 among 0.9975 give about 0.89."""
    rng = np.random.default_rng(0)
    x = np.r_[rng.normal(0.9975, 1e-3, 4016), np.full(80, 0.1)]
    assert float(fit_gumbel(torch.from_numpy(x)).location) == pytest.approx(0.89, abs=0.02)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=2, max_size=40).filter(lambda x: max(x) > min(x)),
    st.floats(1e-3, 1e3),
    st.floats(-1e3, 1e3),
)
@settings(max_examples=200, deadline=None)
def test_shift_and_scale_pass_through(values: list[float], factor: float, shift: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    plain, moved = fit_gumbel(x), fit_gumbel(x * factor + shift)
    size = float((x.abs().max() + 1) * factor + abs(shift))
    assert float(moved.location) == pytest.approx(float(plain.location) * factor + shift, rel=1e-6, abs=1e-9 * size)
    assert float(moved.scale) == pytest.approx(float(plain.scale) * factor, rel=1e-5, abs=1e-9 * size)


@pytest.mark.parametrize("x", [[], [1.0, float("nan")], [1.0, float("inf")]])
def test_refuses_what_has_no_fit(x: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot fit"):
        fit_gumbel(torch.tensor(x))
