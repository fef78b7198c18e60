"""Every classical index against a slow formula of its own (``oracles``), on all shapes and on awkward matrices."""

import math
import warnings
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, default_rng
from torch import Tensor

from docs_sim.indices.table import INDICES
from tests.indices.oracles import ORACLES

ACCURACY = {torch.float64: 1e-9, torch.float32: 1e-6}
# n, m_x, m_y: below, equal to and above n, at the n - 1 directions that centring leaves, few rows, unequal m.
SHAPES = [
    (20, 6, 6),
    (20, 7, 9),
    (20, 1, 5),
    (20, 19, 19),
    (20, 20, 20),
    (20, 31, 40),
    (20, 6, 40),
    (5, 2, 2),
    (4, 9, 1),
]
OVERLAPPING = (20, 13, 12)  # two subspaces of so many dimensions that some directions are in both


def gaussian(random: Generator, n: int, m: int) -> np.ndarray:
    return random.standard_normal((n, m))


def related(random: Generator, n: int, m_x: int, m_y: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated directions of different size, off the origin."""
    shared = gaussian(random, n, 3)
    return tuple(
        gaussian(random, n, m) * np.geomspace(1, 0.1, m) + shared @ gaussian(random, 3, m) + gaussian(random, 1, m)
        for m in (m_x, m_y)
    )


def low_rank(random: Generator, n: int, m: int) -> np.ndarray:
    """Of rank 3 exactly, in float32 too: small integers."""
    return (random.integers(-3, 4, (n, 3)) @ random.integers(-3, 4, (3, m))).astype(np.float64)


def assert_agrees(index: str, x: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> None:
    """The oracle sees the entries as they are once rounded to ``dtype``."""
    sides: list[Tensor] = [torch.tensor(side, dtype=dtype) for side in (x, y)]
    expected = ORACLES[index](*(side.double().numpy() for side in sides))
    got = INDICES[index].function(*sides)
    assert got == pytest.approx(expected, rel=ACCURACY[dtype], abs=ACCURACY[dtype] if index != "linear_hsic" else 0)


def test_every_classical_index_has_an_oracle():
    assert set(ORACLES) == set(INDICES) - {"docs", "docs_mean"}


@pytest.mark.parametrize("index", ORACLES)
@pytest.mark.parametrize("dtype", ACCURACY, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(index, dtype, shape):
    assert_agrees(index, *related(default_rng(sum(shape)), *shape), dtype)


@pytest.mark.parametrize("index", [name for name in ORACLES if name != "pwcca"])  # equal correlations: no one weight
@pytest.mark.parametrize("dtype", ACCURACY, ids=str)
def test_overlapping_subspaces(index, dtype):
    assert_agrees(index, *related(default_rng(0), *OVERLAPPING), dtype)


AWKWARD = {
    "rank-deficient": lambda random, x: low_rank(random, *x.shape),
    "duplicated columns": lambda random, x: np.concatenate([x, x, x[:, :1]], axis=1),
    "constant columns": lambda random, x: np.concatenate([x, np.full((len(x), 3), 7.25)], axis=1),
    "zero columns": lambda random, x: np.concatenate([np.zeros((len(x), 3)), x], axis=1),
    "far from the origin": lambda random, x: x + 64,
    "one large column": lambda random, x: x * np.where(np.arange(x.shape[1]) == 0, 2.0**12, 1),
    "duplicated rows": lambda random, x: np.concatenate([x[:-2], x[:2]]),
}


@pytest.mark.parametrize("index", ORACLES)
@pytest.mark.parametrize("dtype", ACCURACY, ids=str)
@pytest.mark.parametrize(("left", "right"), [*((name, None) for name in AWKWARD), *((name, name) for name in AWKWARD)])
@pytest.mark.parametrize("columns", [5, 30])
def test_awkward_matrices(index, dtype, left, right, columns):
    if index == "pwcca" and (left, columns) == ("duplicated rows", 30):
        pytest.skip("subspaces that overlap: equal correlations leave the weights open")
    random = default_rng(1)
    x, y = related(random, 16, columns, 4)
    assert_agrees(index, AWKWARD[left](random, x), AWKWARD[right](random, y) if right else y, dtype)


@pytest.mark.parametrize("index", ORACLES)
@pytest.mark.parametrize(("scale_x", "scale_y"), list(product((1e-30, 1, 1e30), repeat=2)))
def test_scales(index, scale_x, scale_y):
    """Squares of these over- or underflow in float32; fourth powers in float64."""
    x, y = related(default_rng(2), 16, 5, 8)
    plain = INDICES[index].function(x, y)
    scaled = INDICES[index].function(
        torch.tensor(x * scale_x, dtype=torch.float32), torch.tensor(y * scale_y, dtype=torch.float32)
    )
    expected = plain * (scale_x * scale_y) ** 2 if index == "linear_hsic" else plain
    assert scaled == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("index", ORACLES)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(4, 12), m_x=st.integers(1, 14), m_y=st.integers(1, 14))
def test_any_shape(index, seed, n, m_x, m_y):
    if index == "pwcca" and m_x + m_y > n - 1 and max(m_x, m_y) < n - 1:
        return
    assert_agrees(index, *related(default_rng(seed), n, m_x, m_y), torch.float64)


def directions(index: str, x: Tensor, y: Tensor) -> tuple[float, float]:
    return INDICES[index].directions(x, y)


@pytest.mark.parametrize("index", ["linear_regression", "pwcca"])
def test_directions_of_the_asymmetric_ones(index):
    x, y = (torch.tensor(side) for side in related(default_rng(3), 20, 5, 8))
    forwards, backwards = directions(index, x, y)
    assert forwards != pytest.approx(backwards, rel=1e-3)
    assert directions(index, y, x) == pytest.approx((backwards, forwards), rel=1e-9)
    assert INDICES[index].function(x, y) == pytest.approx((forwards + backwards) / 2, rel=1e-12)


@pytest.mark.parametrize("variance", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("index", ["svcca", "svcca_r2"])
def test_share_of_the_variance(index, variance):
    x, y = related(default_rng(4), 20, 9, 12)
    got = INDICES[index].function(x, y, variance=variance)
    assert got == pytest.approx(ORACLES[index](x, y, variance), rel=1e-9)


def test_debiased_values_are_negative_where_they_are():
    """Clipping them would bias every mean of chance."""
    values = [INDICES["linear_cka_debiased"].function(torch.randn(16, 9), torch.randn(16, 9)) for _ in range(64)]
    assert min(values) < 0 < max(values)


ROWS_NEEDED = {"linear_cka_debiased": 4}


@pytest.mark.parametrize("index", ORACLES)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_rows(index, n):
    x, y = torch.randn(n, 6), torch.randn(n, 3)
    if n >= ROWS_NEEDED.get(index, 2):
        assert math.isfinite(INDICES[index].function(x, y))
    else:
        with pytest.warns(UserWarning, match="undefined: x has (one row|[23] rows)"):
            assert math.isnan(INDICES[index].function(x, y))


@pytest.mark.parametrize("index", ORACLES)
@pytest.mark.parametrize("side", ["x", "y"])
def test_constant_columns_alone_have_no_value(index, side):
    constant, other = torch.full((6, 3), 0.1) + torch.arange(3), torch.randn(6, 4)
    sides = (constant, other) if side == "x" else (other, constant)
    with pytest.warns(UserWarning, match=f"undefined: {side} has only constant columns"):
        assert math.isnan(INDICES[index].function(*sides))


@pytest.mark.parametrize("index", ORACLES)
def test_one_column_has_a_value(index):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isfinite(INDICES[index].function(torch.randn(8, 1), torch.randn(8, 1)))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["x", "y"])
def test_entries_that_are_no_numbers(index, entry, side):
    broken, other = torch.randn(6, 4), torch.randn(6, 4)
    broken[2, 3] = entry
    with pytest.raises(ValueError, match=f"^{side} .*(NaN|infinit)"):
        INDICES[index].function(*((broken, other) if side == "x" else (other, broken)))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.randn(5, 3), torch.randn(6, 3), "n is 5 and 6"),
        (torch.randn(5), torch.randn(5, 3), r"\(5,\)"),
        (torch.randn(5, 0), torch.randn(5, 3), r"\(5, 0\)"),
        (torch.randn(0, 3), torch.randn(0, 3), r"\(0, 3\)"),
        (torch.randn(5, 3, dtype=torch.complex64), torch.randn(5, 3), "complex64"),
        (torch.randn(2, 5, 3), torch.randn(5, 3), r"\(2, 5, 3\)"),
    ],
)
def test_what_is_no_pair_of_matrices(index, x, y, message):
    with pytest.raises(ValueError, match=message):
        INDICES[index].function(x, y)


@pytest.mark.parametrize("variance", [0, -0.5, 1.5, math.nan])
def test_share_that_is_none(variance):
    with pytest.raises(ValueError, match="variance"):
        INDICES["svcca"].function(torch.randn(6, 3), torch.randn(6, 3), variance=variance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("index", ORACLES)
def test_other_types_are_read_as_their_values(index, dtype):
    x, y = (torch.randint(-4, 5, (12, m), generator=torch.Generator().manual_seed(m)).to(dtype) for m in (5, 7))
    assert INDICES[index].function(x, y) == pytest.approx(
        ORACLES[index](x.double().numpy(), y.double().numpy()), rel=1e-6
    )
