"""Coarse and fine forms of unit neurons against float64."""

import pytest
import torch

from docs_sim.engine.coarse import MOST_CLIPPED, coarse_neurons, fine_cosines, fine_error, same_coarse_neurons
from docs_sim.engine.rotation import rotated
from docs_sim.indices.docs import unit_neurons

CPU = torch.device("cpu")
COARSE = pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16], ids=str)


def normal(n: int, m: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed))


@COARSE
@pytest.mark.parametrize("n", [64, 300, 1024])
def test_both_forms_are_the_rotated_neurons(dtype: torch.dtype, n: int) -> None:
    matrix = normal(n, 700)
    matrix[:, 5] = 0
    neurons = coarse_neurons(matrix, dtype, CPU)
    exact = rotated(unit_neurons(matrix, torch.float32))
    assert len(neurons.rows) == 699
    fine = neurons.fine * neurons.steps.unsqueeze(1)
    assert float((fine - exact).abs().max()) <= 0.51 * float(neurons.steps.max())
    within = exact.abs() < 4 / n**0.5
    step = neurons.unit if dtype == torch.int8 else 2**-7 * float(exact.abs().max())
    assert float((neurons.rows.float() * neurons.unit - exact)[within].abs().max()) <= 0.51 * step
    again = coarse_neurons(normal(n, 700, 1), dtype, CPU, neurons.room)
    assert again.room is neurons.room
    assert torch.equal(again.fine, coarse_neurons(normal(n, 700, 1), dtype, CPU).fine)
    assert coarse_neurons(normal(n, 70, 1), dtype, CPU, neurons.room).nbytes < neurons.nbytes


def test_fine_cosines_err_as_estimated() -> None:
    x, y = normal(256, 500, 1), normal(256, 400, 2)
    left, right = coarse_neurons(x, torch.int8, CPU), coarse_neurons(y, torch.int8, CPU)
    of_x, of_y = torch.randint(0, 500, (3000,)), torch.randint(0, 400, (3000,))
    exact = (unit_neurons(x, torch.float64) @ unit_neurons(y, torch.float64).T).abs()[of_x, of_y]
    error = (fine_cosines(left, of_x, right, of_y) - exact).square().mean().sqrt()
    assert 0.7 * fine_error(left, right) < float(error) < 1.3 * fine_error(left, right)


def test_neurons_that_do_not_fit_int8_are_noticed() -> None:
    spread, single = normal(1024, 300), normal(1024, 300)
    turned_back = torch.linalg.solve(
        rotated(torch.eye(1024)).T, torch.eye(1024)[7]
    )  # one coordinate after the rotation
    single[:, 3] = turned_back
    assert coarse_neurons(spread, torch.int8, CPU).clipped < MOST_CLIPPED / 2
    assert coarse_neurons(single, torch.int8, CPU).clipped > 0.9
    assert coarse_neurons(single, torch.bfloat16, CPU).clipped == 0


@COARSE
def test_the_same_neurons_whatever_their_lengths(dtype: torch.dtype) -> None:
    matrix = normal(64, 80)
    neurons = coarse_neurons(matrix, dtype, CPU)
    assert same_coarse_neurons(neurons, coarse_neurons(4 * matrix, dtype, CPU))
    assert not same_coarse_neurons(neurons, coarse_neurons(matrix[:, 1:], dtype, CPU))
    assert not same_coarse_neurons(neurons, coarse_neurons(normal(64, 80, 1), dtype, CPU))


@COARSE
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_direction_is_refused(dtype: torch.dtype, value: float) -> None:
    broken = normal(8, 9)
    broken[2, 3] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        coarse_neurons(broken, dtype, CPU)
    with pytest.raises(ValueError, match="zero columns"):
        coarse_neurons(torch.zeros(8, 9), dtype, CPU)
