"""Prepared matrices: within the budget, read as seldom as the plan allows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_memory import InMemory

from docs_sim.engine.plan import pair_order
from docs_sim.engine.prepared import PreparedMatrices, unit_bytes
from docs_sim.errors import InputError

CPU = torch.device("cpu")
BYTES = 4 * 3 * 4  # of one prepared matrix (3, 4) in float32


def run_plan(count: int, capacity: int) -> int:
    """Walk a plan; return how often a matrix was loaded. The budget holds at every step."""
    matrices = [InMemory(torch.randn(3, 4)) for _ in range(count)]
    plan = list(pair_order(count, capacity))
    prepared = PreparedMatrices(matrices, CPU, capacity * BYTES, plan)
    for step, pair in enumerate(plan):
        x, y = prepared.pair(pair, torch.float32, step)
        assert x.rows.shape == y.rows.shape == (4, 3)
        assert sum(kept.nbytes for kept in prepared._kept.values()) <= max(2, capacity) * BYTES
    assert prepared.loads == sum(matrix.loads for matrix in matrices)
    return prepared.loads


@given(st.integers(2, 30), st.integers(2, 32))
def test_reads_no_more_than_its_blocks(count: int, capacity: int) -> None:
    """One block of capacity - 1 at a time, and the matrices after it once for each block."""
    block = capacity - 1
    expected = sum(min(block, count - start) + max(0, count - start - block) for start in range(0, count, block))
    assert run_plan(count, capacity) <= (count if capacity >= count else expected)


def test_a_budget_below_two_matrices_still_works() -> None:
    prepared = PreparedMatrices([InMemory(torch.randn(3, 4)) for _ in range(3)], CPU, 1, [(0, 1), (0, 2)])
    prepared.pair((0, 1), torch.float32, 0)
    x, y = prepared.pair((0, 2), torch.float32, 1)
    assert len(x.rows) == len(y.rows) == 4
    assert prepared.loads == 3


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32], ids=str)
def test_what_is_kept_takes_what_was_planned(dtype: torch.dtype) -> None:
    matrix = InMemory(torch.randn(64, 500))
    x, _ = PreparedMatrices([matrix, matrix], CPU, 10**9, [(0, 1)]).pair((0, 1), dtype, 0)
    assert x.nbytes == unit_bytes(matrix, dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nan_and_infinity_are_errors_that_name_the_tensor(value: float, dtype: torch.dtype) -> None:
    broken = torch.randn(3, 4)
    broken[1, 2] = value
    prepared = PreparedMatrices([InMemory(torch.randn(3, 4)), InMemory(broken.to(dtype))], CPU, 10**6, [(0, 1)])
    with pytest.raises(InputError, match=r"layers\.0\.mlp_up .*up_proj.weight.* NaN or infinity"):
        prepared.pair((0, 1), torch.float32, 0)


def test_a_matrix_of_zeros_is_an_error() -> None:
    prepared = PreparedMatrices([InMemory(torch.zeros(3, 4)), InMemory(torch.randn(3, 4))], CPU, 10**6, [(0, 1)])
    with pytest.raises(InputError, match="zero columns"):
        prepared.pair((0, 1), torch.float32, 0)
