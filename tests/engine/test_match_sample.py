"""What is noted of rounded products while they pass, against the whole product."""

import pytest
import torch

from docs_sim.engine.match_sample import MatchSample, steps_around
from docs_sim.engine.rounding import ProductNoise, location_error
from docs_sim.indices.docs import Tile, best_matches


def rounded(m: int, seed: int) -> torch.Tensor:
    rows = torch.randn(m, 96, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows).bfloat16()


@pytest.mark.parametrize("rows", [64, 100, 1024])
@pytest.mark.parametrize(("m_x", "m_y"), [(1, 1), (5, 300), (255, 64), (2500, 130), (4100, 2049)])
def test_noted_matches_are_those_of_the_whole_product(m_x, m_y, rows):
    x, y = rounded(m_x, 1), rounded(m_y, 2)
    sample = MatchSample(x, y, torch.bfloat16)
    best_matches(x, y, sample.watched(Tile(torch.empty(rows**2, dtype=torch.bfloat16), rows)))
    for side, one, other in ((sample.sides[0], x, y), (sample.sides[1], y, x)):
        products = (one[:: side.step] @ other.T).abs()
        assert len(side.values) == len(products) <= 2048
        assert torch.equal(side.values, products.amax(1))
        assert torch.equal(products.gather(1, side.matches.unsqueeze(1)).squeeze(1), side.values)
        exact = (one[:: side.step].float() * other[side.matches].float()).sum(1).abs()
        torch.testing.assert_close(side.exact(), exact)
        assert ((side.values.float() - side.exact()).abs() <= steps_around(side.values, torch.bfloat16)).all()
        assert 1 <= side.rivals(0.0) <= len(other)


def test_concentration_is_the_chance_of_a_shared_match():
    x = rounded(400, 1)
    hub = x[:1] + 0.1 * rounded(200, 2)
    sample = MatchSample(torch.nn.functional.normalize(hub.float()).bfloat16(), x, torch.bfloat16)
    side = sample.sides[0]
    side.matches[:] = 0
    assert side.concentration() == 1.0
    side.matches[:] = torch.arange(len(side.matches))
    assert side.concentration() == pytest.approx(3 / (200 * 199 / 2))


def test_steps_are_those_of_the_format():
    values = torch.tensor([0.1, 0.25, 0.7, 1.0]).bfloat16()
    following = (values.view(torch.int16) + 1).view(torch.bfloat16)
    assert torch.equal(steps_around(values, torch.bfloat16), following.float() - values.float())
    assert steps_around(values, torch.float32).sum() == 0


@pytest.mark.parametrize(
    "noise",
    [
        ProductNoise(0.0, (0.0, 0.0), 0.0, 0.0, rivals=3.0),
        ProductNoise(0.0, (1e-3, 0.0), 0.0, 0.0, rivals=1.0),
        ProductNoise(1.0, (0.0, 0.0), 0.0, 0.0, rivals=1.0),
    ],
    ids=["rivals", "bias", "noise"],
)
def test_what_rounding_spoils_is_not_trusted(noise):
    assert location_error(0.01, samples=1000, noise=noise) > 1e-3
    assert location_error(0.0, samples=1000, noise=noise) == float("inf")
