"""All pairs of the classical indices: what pair by pair gives, whatever the memory, and what cannot be said."""

import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from docs_sim.analyses.index_grid import index_grids
from docs_sim.engine.factored import factored_grid, factored_pairs
from docs_sim.engine.parts import prepared_parts
from docs_sim.errors import InputError
from docs_sim.indices.factoring import Factoring
from docs_sim.indices.table import INDICES, Property
from tests.engine.in_memory import InMemory

PROCESS = Path("/proc/self/smaps_rollup")
CPU = [torch.device("cpu")]
FACTORED = [name for name, index in INDICES.items() if isinstance(index.rule, Factoring)]


def layers(n: int, neurons: list[int], dtype: torch.dtype = torch.float32) -> list[InMemory]:
    """Related matrices: each shares half of its columns with the first."""
    random = torch.Generator().manual_seed(n)
    first = torch.randn((n, max(neurons)), generator=random, dtype=torch.float64)
    return [
        InMemory(
            torch.cat(
                [first[:, : m // 2], torch.randn((n, m - m // 2), generator=random, dtype=torch.float64)], dim=1
            ).to(dtype),
            key=f"layers.{number}.mlp_up",
            tensors=(f"model.layers.{number}.mlp.up_proj.weight",),
        )
        for number, m in enumerate(neurons)
    ]


@pytest.mark.parametrize("index", FACTORED)
@pytest.mark.parametrize("neurons", [[6, 9, 9, 7], [30, 30, 30], [29, 40, 8], [24, 23, 24]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("budget", [None, 1], ids=["held", "spilled"])
def test_all_pairs_are_pair_by_pair(index, neurons, dtype, budget):
    matrices = layers(24, neurons, dtype)
    with prepared_parts(matrices, [index], devices=CPU, memory_budget=budget) as parts:
        grid = factored_grid(parts, index, devices=CPU, memory_budget=budget)
    assert [matrix.loads for matrix in matrices] == [1] * len(matrices), "L factorizations for L matrices"
    for i, j in combinations(range(len(matrices)), 2):
        x, y = matrices[i].matrix, matrices[j].matrix
        assert grid.values[i, j] == grid.values[j, i]
        assert grid.values[i, j] == pytest.approx(INDICES[index].function(x, y), rel=1e-6)
        assert (grid.directions[i, j], grid.directions[j, i]) == pytest.approx(
            INDICES[index].directions(x, y), rel=1e-6
        )
    if Property.reflexivity in INDICES[index].properties:
        assert np.array_equal(np.diag(grid.values), np.ones(len(matrices)))


def test_one_preparation_serves_all_indices():
    matrices = layers(16, [10, 12, 20])
    together = index_grids(matrices, list(INDICES), devices=CPU)
    assert list(together) == list(INDICES)
    for name, grid in together.items():
        alone = index_grids(matrices, [name], devices=CPU)[name]
        np.testing.assert_array_equal(alone.values, grid.values)


def test_what_is_beyond_the_budget_is_gone_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with prepared_parts(layers(16, [10, 12]), FACTORED, devices=CPU, memory_budget=1):
        (folder,) = tmp_path.iterdir()
        assert sum(path.suffix == ".npy" for path in folder.iterdir()) > 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError("144 requested and 0 written")], ids=["system", "numpy"]
)
def test_a_full_disk_is_told(error, monkeypatch):
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(np, "save", full)
    with (
        pytest.raises(InputError, match=rf"\({error.args[-1]}\).*TMPDIR"),
        prepared_parts(layers(16, [10, 12]), ["cca"], devices=CPU, memory_budget=1),
    ):
        pass


def test_rows_and_columns_of_two_lists():
    matrices = layers(16, [10, 12, 9, 20])
    with (
        prepared_parts(matrices[:2], FACTORED, devices=CPU) as rows,
        prepared_parts(matrices[2:], FACTORED, devices=CPU) as columns,
    ):
        for index in FACTORED:
            values = factored_pairs(rows, columns, lambda row, column: row <= column, index, devices=CPU)
            assert values.shape == (2, 2)
            assert np.isnan(values[1, 0])
            for i, j in ((0, 0), (0, 1), (1, 1)):
                expected = INDICES[index].function(matrices[i].matrix, matrices[2 + j].matrix)
                assert values[i, j] == pytest.approx(expected, rel=1e-6)


def test_progress_counts_every_step():
    seen = []
    index_grids(
        layers(16, [10, 12, 9]),
        list(INDICES),
        devices=CPU,
        null="rotation",
        repeats=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    total = seen[0][1]
    assert seen == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("index", FACTORED)
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda matrix: matrix[:1], "one row"),
        (torch.ones_like, "constant columns"),
        (torch.zeros_like, "constant columns"),
    ],
    ids=["one row", "constant", "zero"],
)
def test_no_value_is_said_and_why(index, spoil, reason):
    matrices = layers(12, [8, 9, 10])
    spoilt = [InMemory(spoil(one.matrix), one.key, one.tensors) for one in matrices]
    matrices = spoilt if reason == "one row" else [matrices[0], spoilt[1], matrices[2]]
    grid = index_grids(matrices, [index], devices=CPU)[index]
    assert np.isnan(grid.values[1]).all()
    assert np.isnan(grid.values[0, 2]) == (reason == "one row")
    (doubt,) = [doubt for doubt in grid.doubts if "no value" in doubt]
    assert doubt.startswith(f"{index} has no value for layers.")
    assert "layers.1.mlp_up" in doubt
    assert reason in doubt


def test_the_debiased_index_needs_four_rows():
    grid = index_grids(layers(3, [8, 9]), ["linear_cka_debiased", "linear_cka"], devices=CPU)
    assert np.isnan(grid["linear_cka_debiased"].values).all()
    assert "has 3 rows; the unbiased estimate needs 4" in grid["linear_cka_debiased"].doubts[0]
    assert np.isfinite(grid["linear_cka"].values).all()


@pytest.mark.parametrize("index", FACTORED)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_names_the_tensor(index, value):
    matrices = layers(12, [8, 9, 10])
    matrices[2].matrix[3, 4] = value
    with pytest.raises(InputError, match=r"layers\.2\.mlp_up \(model\.layers\.2\.mlp\.up_proj\.weight\) holds NaN"):
        index_grids(matrices, [index], devices=CPU)


def test_unequal_n_names_both():
    with pytest.raises(InputError, match=r"layers\.0\.mlp_up has n = 12, layers\.0\.mlp_up has n = 8"):
        index_grids([*layers(12, [8]), *layers(8, [8])], ["cca"], devices=CPU)


def test_degenerate_pairs_are_those_that_say_nothing():
    """m of n - 1 or more reaches all directions; one such side fixes CCA, two of them linear regression."""
    grids = index_grids(layers(12, [20, 20, 5]), ["cca", "linear_regression", "linear_cka"], devices=CPU)
    one_side, two_sides = grids["cca"], grids["linear_regression"]
    assert one_side.factored.degenerate.all(where=~np.eye(3, dtype=bool)) == np.True_
    assert two_sides.factored.degenerate.tolist() == [[True, True, False], [True, True, False], [False, False, False]]
    assert not grids["linear_cka"].factored.degenerate.any()
    assert "cca is degenerate for all 3 pairs" in one_side.doubts[0]
    assert "linear_regression is degenerate for 1 of 3 pairs" in two_sides.doubts[0]
    assert (one_side.degenerate, two_sides.degenerate) == (True, False)
    np.testing.assert_array_equal(np.isnan(two_sides.telling), two_sides.factored.degenerate)


def test_square_orthogonal_matrices_are_degenerate():
    random = torch.Generator().manual_seed(0)
    squares = [InMemory(torch.linalg.qr(torch.randn(16, 16, generator=random)).Q) for _ in range(3)]
    grids = index_grids(squares, FACTORED, devices=CPU)
    assert all(grids[index].degenerate for index in FACTORED if index not in ("linear_cka_debiased",))
    assert "leaves only rounding" in grids["linear_cka_debiased"].doubts[0]


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_another_device_finds_the_same(name):
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name]:
        pytest.skip(f"no {name.upper()} device on this machine")
    matrices = layers(24, [9, 30, 24])
    there = index_grids(matrices, FACTORED, devices=[torch.device(name)])
    here = index_grids(matrices, FACTORED, devices=CPU)
    for index in FACTORED:
        np.testing.assert_allclose(there[index].values, here[index].values, rtol=1e-5)


def test_several_devices_share_the_matrices_in_order():
    matrices = layers(24, [9, 30, 24, 11, 8])
    several = index_grids(matrices, FACTORED, devices=CPU * 3, memory_budget=1)
    one = index_grids(matrices, FACTORED, devices=CPU)
    for index in FACTORED:
        np.testing.assert_array_equal(several[index].values, one[index].values)


def test_memory_stays_within_the_budget():
    """24 matrices whose parts are 6 MB each, with a budget for one of them."""
    if not PROCESS.exists():
        pytest.skip("reads the anonymous memory of the process from /proc")

    def anonymous() -> int:
        with PROCESS.open() as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous"))

    matrices = layers(768, [400] * 24)
    with prepared_parts(matrices[:2], ["linear_cka"], devices=CPU):
        before = anonymous()
    with prepared_parts(matrices, ["linear_cka", "cca_r2"], devices=CPU, memory_budget=6_000_000) as parts:
        grown = anonymous() - before
        held = sum(tensor.nbytes for one in parts for tensor in one.tensors.values())
    assert held > 100_000_000
    assert grown < 60_000_000
