"""Screening against the whole product: which matches it finds, how finely, and what it says of those that it misses."""

import pytest
import torch

from docs_sim.engine import screening
from docs_sim.engine.coarse import coarse_neurons, fine_cosines
from docs_sim.engine.screening import Screener, steps_around

CPU = torch.device("cpu")
PRODUCTS = {torch.int8: torch.int32, torch.bfloat16: torch.bfloat16}


def normal(n: int, m: int, seed: int) -> torch.Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [48, 100, 1024])
@pytest.mark.parametrize(("m_x", "m_y"), [(1, 1), (5, 300), (255, 64), (2500, 130), (3100, 2049)])
def test_matches_and_shortfalls_are_those_of_the_whole_product(m_x, m_y, rows, dtype):
    x, y = (coarse_neurons(normal(96, m, seed), dtype, CPU) for m, seed in ((m_x, 1), (m_y, 2)))
    screener = Screener(rows, PRODUCTS[dtype], CPU)
    screener.screen(y, y)  # what another pair leaves in the buffers does not matter
    sides = screener.screen(x, y)
    for side, one, other in ((sides[0], x, y), (sides[1], y, x)):
        count = len(one.rows)
        coarse = (one.rows.float() @ other.rows.float().T).abs().to(PRODUCTS[dtype])
        everyone = torch.arange(count).repeat_interleave(len(other.rows)), torch.arange(len(other.rows)).repeat(count)
        fine = fine_cosines(one, everyone[0], other, everyone[1]).view(count, -1)
        looks_best = coarse == coarse.amax(1, keepdim=True)
        assert ((side.cosines.unsqueeze(1) == fine) & looks_best).any(1).all()  # of equals, any may be taken
        assert torch.equal(side.shortfalls, fine.amax(1)[side.sample] - side.cosines[side.sample])
        assert len(side.sample) >= min(count, screening.SAMPLED)
        assert len(side.sample) == count or int(side.sample[1]) % 2 == 1


def test_rivals_without_number_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(screening, "_MOST_RIVALS", 2)
    copies = coarse_neurons(normal(64, 10, 1).repeat(1, 8), torch.int8, CPU)
    others = coarse_neurons(normal(64, 50, 2), torch.int8, CPU)
    of_copies, of_others = Screener(64, torch.int32, CPU).screen(copies, others)
    assert of_others.shortfalls is None
    assert of_copies.shortfalls is not None


def test_steps_are_those_of_the_format():
    values = torch.tensor([0.1, 0.25, 0.7, 1.0]).bfloat16()
    following = (values.view(torch.int16) + 1).view(torch.bfloat16)
    assert torch.equal(steps_around(values, torch.bfloat16), following.float() - values.float())
    assert steps_around(values, torch.float32).sum() == 0
