"""A rotation keeps lengths and cosines, is the same in every run, and leaves no coordinate special."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docs_sim.engine.rotation import rotated, rotated_length


@given(n=st.integers(1, 300), k=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_products_stay(n: int, k: int, seed: int) -> None:
    rows = torch.randn(k, n, generator=torch.Generator().manual_seed(seed))
    turned = rotated(rows)
    torch.testing.assert_close(turned @ turned.T, rows @ rows.T, atol=1e-4, rtol=1e-5)
    assert torch.equal(turned, rotated(rows))
    assert turned.shape[1] == rotated_length(n)


@pytest.mark.parametrize("n", [384, 576, 768, 1024, 1536, 2048, 2304, 2560, 3072, 4096, 5120, 8192, 14336])
def test_widths_of_models_are_not_padded(n: int) -> None:
    assert rotated_length(n) == n


@given(n=st.integers(128, 10**6))
def test_no_width_is_padded_by_much(n: int) -> None:
    """Prime ones would cost n^2."""
    assert n <= rotated_length(n) < 1.13 * n
    assert rotated_length(n) % 8 == 0


@pytest.mark.parametrize("n", [384, 576, 1024, 4096])
def test_single_coordinates_are_spread_over_all(n: int) -> None:
    turned = rotated(torch.eye(n)[:: n // 48])
    assert float(turned.square().max()) < 0.5
    assert float((turned != 0).float().mean()) == 1
