"""All indices on one matrix: the table, what says nothing, chance, the files and the figure."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

import docs_sim
from docs_sim.errors import InputError
from docs_sim.indices.svcca import svcca
from docs_sim.indices.table import INDICES


@pytest.fixture(scope="module")
def found() -> docs_sim.IndexComparison:
    return docs_sim.compare_indices("demo")


def test_every_index_has_a_grid_and_a_row(found):
    assert list(found.grids) == list(found.table().index) == list(INDICES)


@pytest.mark.parametrize("index", INDICES)
def test_grids_are_those_of_heatmap_and_of_two_matrices(index, found):
    heatmap = docs_sim.heatmap("demo", index=index)
    np.testing.assert_allclose(found.grids[index].values, heatmap.values, rtol=1e-6, atol=1e-9)
    up = docs_sim.open_checkpoint("demo").matrices("mlp_up")
    pair = docs_sim.similarity(up[1].load().float(), up[6].load().float(), index=index)
    assert found.grids[index].values[1, 6] == pytest.approx(pair, rel=1e-5)


def test_gini_is_that_of_each_grid(found):
    """The mean over rows of the Gini coefficient of what is off the diagonal, by its definition."""

    def gini(row: np.ndarray) -> float:
        return np.abs(row[:, None] - row).sum() / (2 * len(row) * row.sum())

    for name in ("docs", "linear_cka", "procrustes"):
        values = found.grids[name].values
        rows = [np.delete(row, number) for number, row in enumerate(values)]
        assert found.table()["gini"][name] == pytest.approx(np.mean([gini(row) for row in rows]), rel=1e-9)


def test_degenerate_ones_are_marked_and_explained(found):
    table = found.table()
    degenerate = {name for name in table.index if table["note"][name] == "degenerate"}
    assert degenerate == {"linear_regression", "cca", "cca_r2", "pwcca"}  # m = 160 exceeds n = 96
    for name in degenerate:
        assert math.isnan(table["gini"][name])
        assert any(f"{name} is degenerate for all 28 pairs" in line for line in found.warnings)
        assert any(name in line and "degenerate" in line for line in found.summary())
    assert not any("docs is degenerate" in line for line in found.warnings)


def test_below_n_nothing_is_degenerate():
    found = docs_sim.compare_indices("demo", "attn_k")  # (96, 32)
    assert set(found.table()["note"]) == {""}


def test_matrices_without_a_value_are_named(write_model, llama_tensors):
    tensors = llama_tensors()
    constant = tensors["model.layers.1.mlp.up_proj.weight"]
    constant[:] = torch.arange(1.0, 1 + len(constant))[:, None]
    found = docs_sim.compare_indices(write_model(tensors))
    assert np.isnan(found.grids["linear_cka"].values[1]).all()
    assert any("linear_cka has no value for layers.1.mlp_up: each has only constant" in w for w in found.warnings)
    assert np.isfinite(found.grids["docs"].values).all()
    assert found.plot()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_rows_end_with_reasons(n, write_model, tmp_path):
    random = torch.Generator().manual_seed(n)
    path = write_model(
        {f"model.layers.{layer}.mlp.up_proj.weight": torch.randn((6, n), generator=random) for layer in range(3)}
    )
    found = docs_sim.compare_indices(path)
    assert np.isnan(found.table()["median"]["linear_cka_debiased"])
    assert found.table()["note"]["linear_cka_debiased"] == "undefined"
    assert any("linear_cka_debiased has no value for layers.0.mlp_up" in line for line in found.warnings)
    found.save(tmp_path / "out")


def test_unequal_n_names_the_matrices(write_model, llama_tensors):
    wide = {name: tensor for name, tensor in llama_tensors(3, width=32).items() if ".2." in name}
    with pytest.raises(InputError, match=r"layers\.1\.mlp_up has n = 16, layers\.2\.mlp_up has n = 32"):
        docs_sim.compare_indices(write_model(llama_tensors(2) | wide), indices=["linear_cka"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("index", ["linear_cka", "cca", "procrustes"])
def test_entries_that_are_no_numbers_name_the_tensor(index, value, write_model, llama_tensors):
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][2, 3] = value
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        docs_sim.compare_indices(write_model(tensors), indices=[index])


def test_nulls_come_with_excess_and_z():
    found = docs_sim.compare_indices("demo", indices=["docs", "linear_cka", "cca"], null="rotation", null_repeats=4)
    for name in ("docs", "linear_cka"):
        grid = found.grids[name]
        off = ~np.eye(len(grid.values), dtype=bool)
        np.testing.assert_allclose(grid.excess[off], ((grid.values - grid.chance) / (1 - grid.chance))[off])
        np.testing.assert_allclose(grid.z[off], ((grid.values - grid.null.mean) / grid.null.deviation)[off])
        assert np.isnan(np.diag(grid.null.mean)).all()
    assert {"excess", "z", "chance"} <= set(found.table())
    assert found.table()["z"]["linear_cka"] > 3  # the demo's layers are alike
    assert math.isnan(found.table()["z"]["cca"])
    assert found.found.settings["null"] == "rotation"
    assert found.found.settings["null_repeats"] == 4


@pytest.mark.parametrize(
    "choice",
    [
        {"null": "shuffle"},
        {"null": "rotation", "null_repeats": 0},
        {"svcca_variance": 0.0},
        {"svcca_variance": 1.5},
        {"svcca_variance": math.nan},
        {"precision": "low"},
        {"indices": ["cka"]},
        {"indices": []},
        {"device": "tpu"},
    ],
    ids=str,
)
def test_wrong_choices(choice):
    with pytest.raises(InputError):
        docs_sim.compare_indices("demo", **choice)


def test_share_of_the_variance_reaches_svcca():
    few = docs_sim.compare_indices("demo", indices=["svcca"], svcca_variance=0.3)
    up = docs_sim.open_checkpoint("demo").matrices("mlp_up")
    expected = svcca(up[0].load().float(), up[1].load().float(), variance=0.3)
    assert few.grids["svcca"].values[0, 1] == pytest.approx(expected, rel=1e-5)


def test_files_hold_the_same_numbers(found, tmp_path):
    names = {path.name for path in found.save(tmp_path / "out", formats=["png", "svg"])}
    tables = {"indices.csv", "mantel.csv", "orthogonality.csv", *(f"{name}.csv" for name in INDICES)}
    assert names == {"indices.png", "indices.svg", "result.json", *tables}
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["schema"], result["command"]) == (1, "indices")
    assert [grid["index"] for grid in result["grids"]] == list(INDICES)
    for grid in result["grids"]:
        frame = pd.read_csv(tmp_path / f"out/{grid['index']}.csv", index_col="layer")
        np.testing.assert_allclose(frame.to_numpy(), np.array(grid["values"], dtype=float), rtol=1e-12)
    mantel = pd.read_csv(tmp_path / "out/mantel.csv")
    assert len(mantel) == len(INDICES) * (len(INDICES) - 1) // 2
    # A later run with fewer indices leaves none of the others behind.
    docs_sim.compare_indices("demo", indices=["docs"]).save(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {
        "indices.csv",
        "mantel.csv",
        "orthogonality.csv",
        "docs.csv",
    }


def test_figure_has_a_panel_for_each_index_and_its_own_scale(found):
    figure = found.plot()
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes if axes.get_title()]
    assert len(titles) == len(INDICES)
    assert "CCA (mean): degenerate" in titles
    assert f"DOCS, Gini {found.grids['docs'].gini:.3f}" in titles
    scales = {
        axes.get_title(): axes.collections[0].get_clim()
        for axes in figure.axes
        if axes.get_title() and axes.collections
    }
    assert len(set(scales.values())) > 8


def test_one_index_and_two_layers_are_enough(tmp_path):
    found = docs_sim.compare_indices("demo", indices=["linear_cka"], layers="0,1")
    assert found.summary()
    found.save(tmp_path / "out")


def test_one_layer_is_refused():
    with pytest.raises(InputError, match="layer"):
        docs_sim.compare_indices("demo", layers="3")


def test_progress_reaches_its_end(write_model, llama_tensors):
    seen: list[tuple[int, int]] = []
    docs_sim.compare_indices("demo", null="rotation", progress=lambda done, total: seen.append((done, total)))
    dones = [done for done, _ in seen]
    assert dones == sorted(dones)
    assert dones[-1] == seen[-1][1]
