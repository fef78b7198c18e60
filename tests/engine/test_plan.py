"""The order of pairs: complete, without repetition, evenly shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs_sim.engine.plan import pair_order, share


@given(st.integers(0, 40), st.integers(2, 50))
def test_every_pair_once(count: int, capacity: int) -> None:
    pairs = list(pair_order(count, capacity))
    assert sorted(pairs) == [(i, j) for i in range(count) for j in range(i + 1, count)]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_plan_is_shared_evenly(workers: int) -> None:
    pairs = list(pair_order(9, 4))
    runs = share(pairs, workers)
    assert [pair for run in runs for pair in run] == pairs
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
