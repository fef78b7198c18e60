"""Screening against the whole product in float64."""

import pytest
import torch

from docs_sim.engine import screening
from docs_sim.engine.coarse import CoarseNeurons, coarse_neurons
from docs_sim.engine.screening import Screener, worth_screening
from docs_sim.indices.docs import unit_neurons

CPU = torch.device("cpu")


def normal(n: int, m: int, seed: int) -> torch.Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed))


def fine_cosines(x: CoarseNeurons, y: CoarseNeurons) -> torch.Tensor:
    """Of the fine neurons, all of them."""
    left, right = (side.fine[: side.count].double() * side.steps[: side.count, None].double() for side in (x, y))
    return (left @ right.T).abs()


@pytest.mark.parametrize("square", [128, 1024, 16_384])
@pytest.mark.parametrize("rows", [64, 1024])
@pytest.mark.parametrize(("m_x", "m_y"), [(1, 1), (5, 300), (255, 64), (2500, 130), (1100, 2049)])
def test_matches_are_those_of_the_whole_product(m_x, m_y, rows, square, monkeypatch):
    """Over all shapes of tiles and squares, with padding and without."""
    monkeypatch.setattr(screening, "_SQUARE", square)
    monkeypatch.setattr(screening, "_MOST_CANDIDATES", 1)
    x, y = (coarse_neurons(normal(96, m, seed), CPU) for m, seed in ((m_x, 1), (m_y, 2)))
    screener = Screener(rows, max(m_x, m_y), CPU)
    screener.best_matches(y, y)  # what another pair leaves in the buffers does not matter
    of_x, of_y = screener.best_matches(x, y)
    cosines = fine_cosines(x, y)
    torch.testing.assert_close(of_x.double(), cosines.amax(1), rtol=0, atol=5e-7)
    torch.testing.assert_close(of_y.double(), cosines.amax(0), rtol=0, atol=5e-7)


def near_ties(n: int, m: int, copies: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Neurons of which each has ``copies`` matches that differ by about ``spread``, the rounding of coarse products."""
    centres = torch.nn.functional.normalize(normal(n, m // copies, 1), dim=0).repeat_interleave(copies, dim=1)
    aside = normal(n, centres.shape[1], 2)
    aside = torch.nn.functional.normalize(aside - centres * (centres * aside).sum(0), dim=0)
    cosines = 0.5 + spread * torch.randn(centres.shape[1], generator=torch.Generator().manual_seed(3))
    return centres, centres * cosines + aside * (1 - cosines**2).sqrt()


@pytest.mark.parametrize("spread", [0.2, 1, 3])
@pytest.mark.parametrize("copies", [2, 10, 40])
def test_near_ties_are_all_looked_at(copies: int, spread: float) -> None:
    sides = near_ties(256, 4000, copies, spread * 0.0129 / 256**0.5)
    found = Screener(2048, 4000, CPU).best_matches(*(coarse_neurons(side, CPU) for side in sides))
    if found is None:
        assert copies == 40  # every block may hold the best match: float32 decides
        return
    x, y = (unit_neurons(side.double(), torch.float64) for side in sides)
    exact = (x @ y.T).abs()
    assert float((found[0] - exact.amax(1)).abs().max()) < 2e-5
    assert float((found[1] - exact.amax(0)).abs().max()) < 2e-5


def test_too_many_candidates_are_left_to_float32() -> None:
    x, y = (coarse_neurons(normal(64, 1024, seed) + 20, CPU) for seed in (1, 2))
    assert Screener(1024, 1024, CPU).best_matches(x, y) is None


def test_small_and_very_wide_shapes_are_not_worth_it() -> None:
    assert worth_screening([(2048, 5632), (2048, 256)])
    assert not worth_screening([(2048, 256), (2048, 300)])
    assert not worth_screening([(8, 60_000)])
    assert not worth_screening([(4_000_000, 2000)])
