"""Coarse and fine forms of unit neurons against float64."""

import pytest
import torch

from docs_sim.engine.coarse import coarse_bytes, coarse_neurons, padded, same_coarse_neurons
from docs_sim.engine.rotation import rotated
from docs_sim.indices.docs import unit_neurons

CPU = torch.device("cpu")


def normal(n: int, m: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [64, 300, 331, 1024])
def test_both_forms_are_the_rotated_neurons(n: int) -> None:
    matrix = normal(n, 700)
    matrix[:, 5] = 0
    neurons = coarse_neurons(matrix, CPU)
    exact = rotated(unit_neurons(matrix, torch.float32))
    assert neurons.count == 699
    assert len(neurons.rows) == len(neurons.fine) == len(neurons.steps) == 704
    fine = neurons.fine * neurons.steps.unsqueeze(1)
    assert float((fine[:699] - exact).abs().max()) <= 0.51 * float(neurons.steps.max())
    within = exact.abs() < 4 / exact.shape[1] ** 0.5
    rounded = neurons.rows[:699].float() * neurons.unit
    assert float((rounded - exact)[within].abs().max()) <= 0.51 * neurons.unit
    assert not any(tensor[699:].any() for tensor in neurons.tensors)


def test_memory_is_used_again_if_it_has_the_right_size() -> None:
    neurons = coarse_neurons(normal(64, 700), CPU)
    again = coarse_neurons(normal(64, 600, 1), CPU, neurons.room)
    assert again.room is not neurons.room
    again = coarse_neurons(normal(64, 699, 1), CPU, neurons.room)
    assert again.room is neurons.room
    for one, other in zip(again.tensors, coarse_neurons(normal(64, 699, 1), CPU).tensors, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (8, 33), (331, 100), (4096, 64)])
def test_size_in_memory(n: int, m: int) -> None:
    neurons = coarse_neurons(normal(n, m), CPU)
    assert neurons.nbytes == coarse_bytes(n, m) == sum(tensor.nbytes for tensor in neurons.tensors)
    assert len(neurons.rows) == padded(m)


@pytest.mark.parametrize("kind", ["normal", "a large coordinate"])
def test_errors_of_coarse_cosines_are_as_stated(kind: str) -> None:
    """With other vectors by ``noise``, with themselves by ``lean``, whatever int8 clips."""
    matrix = normal(1024, 300)
    if kind == "a large coordinate":
        turned_back = torch.linalg.solve(rotated(torch.eye(1024)).T, torch.eye(1024)[7])  # one after the rotation
        matrix += 8 * turned_back.unsqueeze(1)
    neurons, exact = coarse_neurons(matrix, CPU), rotated(unit_neurons(matrix, torch.float32)).double()
    errors = neurons.rows[:300].double() * neurons.unit - exact
    others = torch.nn.functional.normalize(normal(2000, 1024, 1).double())
    found = (errors @ others.T).square().mean(1).sqrt()
    torch.testing.assert_close(found, neurons.noise[:300].double(), rtol=0.15, atol=0)
    torch.testing.assert_close((errors * exact).sum(1).abs(), neurons.lean[:300].double(), rtol=1e-3, atol=1e-6)
    assert (float(neurons.lean.max()) > 0.01) == (kind == "a large coordinate")


def test_fine_cosines_err_as_stated() -> None:
    x, y = normal(256, 500, 1), normal(256, 400, 2)
    left, right = coarse_neurons(x, CPU), coarse_neurons(y, CPU)
    exact = unit_neurons(x, torch.float64) @ unit_neurons(y, torch.float64).T
    fine = (side.fine.double() * side.steps.double().unsqueeze(1) for side in (left, right))
    found = next(fine) @ next(fine).T
    error = float((found[:500, :400] - exact).square().mean().sqrt())
    stated = (left.fine_error**2 + right.fine_error**2) ** 0.5
    assert 0.5 * stated < error < stated


def test_the_same_neurons_whatever_their_lengths() -> None:
    matrix = normal(64, 80)
    neurons = coarse_neurons(matrix, CPU)
    assert same_coarse_neurons(neurons, coarse_neurons(4 * matrix, CPU))
    assert not same_coarse_neurons(neurons, coarse_neurons(matrix[:, 1:], CPU))
    assert not same_coarse_neurons(neurons, coarse_neurons(normal(64, 80, 1), CPU))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_direction_is_refused(value: float) -> None:
    broken = normal(8, 9)
    broken[2, 3] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        coarse_neurons(broken, CPU)
    with pytest.raises(ValueError, match="zero columns"):
        coarse_neurons(torch.zeros(8, 9), CPU)
