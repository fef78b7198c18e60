"""Histograms of best matches: what is counted, how the fits are judged, and which files are left."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import gumbel_r, kstest

import docs_sim
from docs_sim.errors import InputError
from docs_sim.indices.gumbel import gumbel_distance_limit


def cosines(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = x.double(), y.double()
    return ((x / x.norm(dim=0)).T @ (y / y.norm(dim=0))).abs()


@pytest.fixture
def found() -> docs_sim.Histogram:
    return docs_sim.histogram("demo", layers="2,5")


def test_matches_are_the_largest_cosines(found):
    up = docs_sim.open_checkpoint("demo").matrices("mlp_up")
    table = cosines(up[2].load(), up[5].load())
    (x, y), *others = found.pairs
    assert not others
    np.testing.assert_allclose(x.matches, table.max(1).values, atol=1e-6)
    np.testing.assert_allclose(y.matches, table.max(0).values, atol=1e-6)


def test_locations_average_to_docs(found):
    up = docs_sim.open_checkpoint("demo").matrices("mlp_up")
    x, y = found.pairs[0]
    assert (x.location + y.location) / 2 == pytest.approx(docs_sim.docs(up[2].load(), up[5].load()), abs=1e-6)


def test_fit_and_distance_are_those_of_scipy(found):
    for side in found.pairs[0]:
        location, scale = gumbel_r.fit(side.matches)
        assert (side.location, side.scale) == pytest.approx((location, scale), rel=1e-4)
        expected = kstest(side.matches, gumbel_r(side.location, side.scale).cdf).statistic
        assert side.distance == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("m", [100, 1000])
def test_limit_is_what_true_samples_stay_below(m):
    random = np.random.default_rng(m)
    distances = []
    for _ in range(400):
        sample = gumbel_r.rvs(0.3, 0.02, size=m, random_state=random)
        distances.append(kstest(sample, gumbel_r(*gumbel_r.fit(sample)).cdf).statistic)
    above = np.mean(np.array(distances) > gumbel_distance_limit(m))
    assert pytest.approx(above, abs=3 * (0.05 * 0.95 / 400) ** 0.5 + 0.005) == 0.05


def test_first_middle_and_last_layer_if_none_is_said():
    found = docs_sim.histogram("demo")
    assert found.settings["layers"] == [0, 3, 7]
    assert [(x.layer, y.layer) for x, y in found.pairs] == [("0", "3"), ("0", "7"), ("3", "7")]


@pytest.mark.parametrize("layers", ["3", "0-4", "9", "x"])
def test_wrong_layers(layers):
    with pytest.raises(InputError, match="layer"):
        docs_sim.histogram("demo", layers=layers)


def test_zero_columns_are_left_out_and_said(write_model, llama_tensors):
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][:3] = 0
    found = docs_sim.histogram(write_model(tensors), layers="0,1")
    assert found.warnings == ["layers.1.mlp_up: 3 zero columns were left out"]
    m = len(tensors["model.layers.1.mlp.up_proj.weight"])
    assert [len(side.matches) for side in found.pairs[0]] == [m, m - 3]


def test_equal_layers_have_no_spread(write_model, llama_tensors, tmp_path):
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].clone()
    found = docs_sim.histogram(write_model(tensors), layers="0,1")
    for side in found.pairs[0]:
        assert (side.location, side.scale) == (1.0, 0.0)
        assert np.isnan(side.distance)
    found.save(tmp_path / "out")
    assert json.loads((tmp_path / "out/result.json").read_text())["rows"][0]["distance"] is None


def test_variants_are_the_grids_of_both(found):
    with pytest.raises(InputError, match="variants"):
        found.plot_variants()
    both = docs_sim.histogram("demo", layers="2,5", variants=True)
    for name, grid in both.variants.grids.items():
        np.testing.assert_allclose(grid.values, docs_sim.heatmap("demo", index=name).values, atol=1e-6)
    figure = both.plot_variants()
    assert [axes.get_title() for axes in figure.axes[:2]] == ["DOCS", "DOCS (mean variant)"]


def test_files_hold_the_same_numbers(tmp_path):
    found = docs_sim.histogram("demo", layers="1,2", variants=True)
    written = found.save(tmp_path / "out", formats=["svg", "png"])
    names = {path.name for path in written}
    assert names == {f"{n}.{s}" for n in ("histogram", "variants") for s in ("svg", "png")} | {
        "fits.csv",
        "matches.csv",
        "result.json",
    }
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert (result["schema"], result["command"], result["matrix"]) == (1, "histogram", "mlp_up")
    fits = pd.read_csv(tmp_path / "out/fits.csv")
    assert fits["location"].tolist() == pytest.approx([row["location"] for row in result["rows"]])
    matches = pd.read_csv(tmp_path / "out/matches.csv")
    assert len(matches) == sum(row["neurons"] for row in result["rows"])
    assert [grid["index"] for grid in result["grids"]] == ["docs", "docs_mean"]
    found.save(tmp_path / "out", formats="png")
    assert not list((tmp_path / "out").glob("*.svg"))


def test_figure_shows_the_fit_and_the_law_of_chance(found):
    figure = found.plot()
    left, right, quantiles = figure.axes
    assert left.get_title() == f"layer 2 in layer 5: {found.pairs[0][0].location:.4f}"
    curve = next(line for line in left.lines if line.get_label() == "Gumbel fit")
    peak = curve.get_xdata()[np.argmax(curve.get_ydata())]
    assert peak == pytest.approx(found.pairs[0][0].location, abs=0.01)
    chance = next(line for line in right.lines if line.get_label() == "independent columns")
    area = np.trapezoid(chance.get_ydata(), chance.get_xdata())
    assert area == pytest.approx(1, abs=0.02)
    assert len(quantiles.lines) == 3


def test_gaussian_matrices_follow_the_law_of_chance(write_model):
    random = torch.Generator().manual_seed(0)
    path = write_model(
        {f"model.layers.{layer}.mlp.up_proj.weight": torch.randn((400, 32), generator=random) for layer in range(2)}
    )
    (x, y) = docs_sim.histogram(path, layers="0,1").pairs[0]
    for side in (x, y):
        assert side.location == pytest.approx(side.row()["chance_location"], abs=0.02)


def test_progress_counts_every_pair():
    seen: list[tuple[int, int]] = []
    docs_sim.histogram("demo", layers="0,1,2", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
