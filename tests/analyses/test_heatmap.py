"""The grid over layers: its numbers against the textbook, its tables, and what it leaves on disk."""

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import gumbel_r

import docs_sim
from docs_sim.analyses.heatmap import heatmap
from docs_sim.checkpoint import open_checkpoint
from docs_sim.errors import InputError
from docs_sim.report.files import json_text

FILES = {"result.json", "grid.csv", "pairs.csv", "heatmap.png"}


def textbook(x: torch.Tensor, y: torch.Tensor) -> float:
    """DOCS of two neuron matrices in float64, step by step as the paper says."""
    unit_x, unit_y = (side.double().numpy() / np.linalg.norm(side.double().numpy(), axis=0) for side in (x, y))
    cosines = np.abs(unit_x.T @ unit_y)
    return sum(gumbel_r.fit(cosines.max(axis))[0] for axis in (0, 1)) / 2


@pytest.fixture
def related(write_model):
    """Write layers from unrelated to nearly equal, each with its own number of neurons, and open them."""

    def make(dtype: torch.dtype, n: int = 96) -> docs_sim.Checkpoint:
        random = torch.Generator().manual_seed(0)
        first = torch.randn((160, n), generator=random)
        noise = [torch.randn((160, n), generator=random) for _ in range(4)]
        layers = [
            first,
            first[torch.randperm(160, generator=random)] + 0.01 * noise[0],
            -first[:120] + 0.3 * noise[1][:120],
            noise[2],
            torch.cat([noise[2][:80], noise[3]]),
        ]
        tensors = {f"layers.{number}.mlp.up_proj.weight": layer.to(dtype) for number, layer in enumerate(layers)}
        return open_checkpoint(write_model(tensors))

    return make


@pytest.fixture
def small(write_model, llama_tensors) -> docs_sim.Heatmap:
    """The heatmap of a Llama of four layers."""
    return heatmap(write_model(llama_tensors(4), config={"model_type": "llama"}))


@pytest.mark.parametrize(("precision", "product"), [("auto", "int8"), ("highest", "float32")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_those_of_the_textbook(dtype, precision, product, related, monkeypatch):
    monkeypatch.setattr("docs_sim.engine.grid.product_dtype", lambda device: torch.int8)
    monkeypatch.setattr("docs_sim.engine.screening._LEAST_NEURONS", 1)
    checkpoint = related(dtype, n=128)
    matrices = [matrix.load() for matrix in checkpoint.matrices("mlp_up")]
    found = heatmap(checkpoint, precision=precision, device="cpu")
    assert found.settings["product"] == product
    assert np.array_equal(found.values, found.values.T)
    assert np.array_equal(np.diag(found.values), np.ones(5))
    for i, j in combinations(range(5), 2):
        assert abs(found.values[i, j] - textbook(matrices[i], matrices[j])) < 2e-5, (i, j)


def test_equal_layers_are_exactly_one(write_model, llama_tensors):
    tensors = llama_tensors(3)
    tensors["model.layers.2.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].clone()
    assert heatmap(write_model(tensors)).values[0, 2] == 1.0


def test_path_string_and_checkpoint_give_the_same(write_model, llama_tensors):
    path = write_model(llama_tensors())
    results = [docs_sim.heatmap(model, matrix="down") for model in (path, str(path), docs_sim.open_checkpoint(path))]
    assert all(np.array_equal(result.values, results[0].values) for result in results)
    assert {result.matrix for result in results} == {"mlp_down"}


def test_memory_budget_changes_nothing(related):
    checkpoint = related(torch.float32)
    assert np.array_equal(heatmap(checkpoint, memory_budget=1).values, heatmap(checkpoint).values)


def test_experts_side_by_side_are_what_is_compared(write_model, moe_tensors):
    checkpoint = open_checkpoint(write_model(moe_tensors(dense=1, width=32, inner=24)))
    joined = []
    for layer in range(4):
        of_layer = [one for one in checkpoint.matrices("mlp_up") if one.layer == layer and one.expert != "shared"]
        joined.append(torch.cat([one.load() for one in of_layer], dim=1))
    found = heatmap(checkpoint)
    expected = [[1.0 if x is y else textbook(x, y) for y in joined] for x in joined]
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=2e-5)
    assert found.settings["experts"] == "concat"
    np.testing.assert_array_equal(found.grid.chance.shape, (4, 4))
    assert found.grid.chance[0, 1] != found.grid.chance[1, 2], "chance depends on the number of neurons"


def test_layers_that_are_left_out_are_warnings(write_model, moe_tensors, llama_tensors):
    found = heatmap(write_model(moe_tensors(dense=1)), experts="shared")
    assert found.labels == ["1", "2", "3"]
    assert len(found.warnings) == 1
    assert "layers 0 left out" in found.warnings[0]
    tensors = {name: tensor for name, tensor in llama_tensors(4).items() if ".1.mlp" not in name}
    found = heatmap(write_model(tensors, "gap"))
    assert (found.labels, found.warnings) == (["0", "2", "3"], ["layers 1 have no mlp_up"])


def test_zero_columns_are_counted_and_left_out(write_model, llama_tensors):
    tensors = llama_tensors(3)
    name = "model.layers.1.mlp.up_proj.weight"
    whole = tensors[name].clone()
    tensors[name][20:] = 0
    found = heatmap(write_model(tensors))
    expected = textbook(tensors["model.layers.0.mlp.up_proj.weight"].T, whole[:20].T)
    assert abs(found.values[0, 1] - expected) < 2e-5
    assert found.warnings == ["layers.1.mlp_up: 4 of 24 columns are zero and were left out"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"index": "cosine"}, "docs_mean"),
        ({"precision": "low"}, "highest"),
        ({"device": "nosuch"}, "available"),
        ({"matrix": "attn_gate"}, "it has attn_q"),
        ({"layers": "2"}, "at least two layers with mlp_up; there is one, layer 2"),
        ({"layers": [1]}, "at least two layers"),
        ({"layers": "7"}, "there are 0-2"),
        ({"experts": 0}, "no experts"),
        ({"layers": 1}, "at least two layers"),
        ({"matrix": None}, "unknown matrix"),
        ({"memory_budget": 0}, "above zero"),
        ({"memory_budget": -1}, "above zero"),
        ({"memory_budget": "4GiB"}, "number of bytes"),
        ({"memory_budget": 1e9}, "number of bytes"),
        ({"memory_budget": True}, "number of bytes"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments, words, write_model, llama_tensors):
    with pytest.raises(InputError, match=words):
        heatmap(write_model(llama_tensors()), **arguments)


def test_different_n_is_refused(write_model, llama_tensors):
    wide = {name: tensor for name, tensor in llama_tensors(3, width=32).items() if ".2." in name}
    with pytest.raises(InputError, match=r"n = 16.*n = 32"):
        heatmap(write_model(llama_tensors(2) | wide))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("layer", [0, 2])
def test_not_finite_weight_names_the_tensor(value, layer, write_model, llama_tensors):
    tensors = llama_tensors()
    name = f"model.layers.{layer}.mlp.up_proj.weight"
    tensors[name][3, 5] = value
    with pytest.raises(InputError) as caught:
        heatmap(write_model(tensors))
    assert name in str(caught.value)


def test_progress_counts_every_pair_once(write_model, llama_tensors):
    seen = []
    heatmap(write_model(llama_tensors(4)), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_excess_is_the_share_above_chance(small):
    chance = small.grid.chance
    np.testing.assert_allclose(small.excess, (small.values - chance) / (1 - chance))
    assert small.chance == pytest.approx(docs_sim.chance_level(16, 24, 24))


def test_excess_where_chance_is_one_is_nothing(write_model):
    tensors = {f"layers.{layer}.mlp.up_proj.weight": torch.ones(4, 1) for layer in range(3)}
    found = heatmap(write_model(tensors))
    assert np.array_equal(found.values, np.ones((3, 3)))
    assert np.isnan(found.excess).all()
    assert json.loads(json_text(found.to_dict()))["excess"] == [[None] * 3] * 3


def test_frame_is_labelled_by_layer(small):
    frame = small.to_frame()
    assert list(frame.index) == list(frame.columns) == [0, 1, 2, 3]
    np.testing.assert_array_equal(frame.to_numpy(), small.values)


@pytest.mark.parametrize("index", ["docs", "docs_mean"])
def test_pairs_agree_with_the_grid(index, write_model, llama_tensors):
    found = heatmap(write_model(llama_tensors(4)), index=index)
    pairs = found.pairs()
    assert list(zip(pairs["layer_x"], pairs["layer_y"], strict=True)) == [
        *(("0", "1"), ("0", "2"), ("0", "3"), ("1", "2"), ("1", "3"), ("2", "3"))
    ]
    np.testing.assert_allclose(pairs[index], (pairs["location_x"] + pairs["location_y"]) / 2)
    np.testing.assert_allclose(pairs["excess"], (pairs[index] - pairs["chance"]) / (1 - pairs["chance"]))
    for side in ("x", "y"):
        levels = pairs[[f"q{level}_{side}" for level in (5, 25, 50, 75, 95)]].to_numpy()
        assert (np.diff(levels) >= 0).all()
        assert (pairs[f"scale_{side}"] > 0).all()
        assert (pairs[f"location_{side}"] < pairs[f"mean_{side}"]).all()
    # The first pair as the textbook has it: side x is s_X of layer 0 against layer 1.
    assert pairs["location_x"][0] == found.grid.neurons.location[0, 1]
    assert pairs["location_y"][0] == found.grid.neurons.location[1, 0]


def test_result_survives_json(small):
    result = json.loads(json_text(small.to_dict()))
    np.testing.assert_array_equal(result["values"], small.values)
    assert result["gini"] == small.gini
    assert result["model"]["name"] == "tiny"
    assert result["model"]["architecture"] == "llama"
    assert result["chance_values"] is None
    assert {
        "schema",
        "command",
        "docs_sim",
        "index",
        "matrix",
        "labels",
        "chance",
        "warnings",
        "settings",
    } <= result.keys()


@pytest.mark.parametrize(("layers", "index"), [(2, "docs"), (3, "docs_mean")])
def test_what_is_not_a_number_is_null(layers, index, write_model, llama_tensors):
    found = heatmap(write_model(llama_tensors(layers)), index=index)
    result = json.loads(json_text(found.to_dict()))
    assert (result["gini"] is None) == math.isnan(found.gini) == (layers == 2)
    for given, written in zip(found.values.ravel(), np.ravel(result["values"]), strict=True):
        assert (written is None) == math.isnan(given)


def test_save_writes_all_files(small, tmp_path):
    written = small.save(tmp_path / "new" / "folder", formats=("png", "svg"))
    assert {path.name for path in written} == FILES | {"heatmap.svg"}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == FILES | {"heatmap.svg"}
    assert json.loads((tmp_path / "new" / "folder" / "result.json").read_text())["labels"] == small.labels


@pytest.mark.parametrize("before", ["nothing", "old files"])
@pytest.mark.parametrize("step", [1, 3])
def test_failed_save_leaves_whole_files(step, before, small, tmp_path, failing_replace):
    directory = tmp_path / "o"
    directory.mkdir()
    if before == "old files":
        for name in FILES:
            (directory / name).write_text("old" if name != "result.json" else '{"docs_sim": "0"}')
    expected = {path.name: path.read_bytes() for path in directory.iterdir()}
    new = {path.name: path.read_bytes() for path in small.save(tmp_path / "whole")}
    failing_replace(step)
    with pytest.raises(InputError, match="No space left"):
        small.save(directory)
    after = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert after.keys() <= FILES
    assert all(content in (expected.get(name), new[name]) for name, content in after.items())
    assert "result.json" not in after, "neither the old one nor the new one fits files of two runs"
    assert sum(content != expected.get(name) for name, content in after.items()) == step - 1


def test_interrupted_save_leaves_no_temporary_file(small, tmp_path, monkeypatch):
    def interrupted(self: Path, content: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small.save(tmp_path / "o")
    assert list((tmp_path / "o").iterdir()) == []


def test_plot_says_what_it_shows(small):
    figure = small.plot()
    axes, bar = figure.axes
    assert "tiny" in axes.get_title()
    assert "mlp_up" in axes.get_title()
    assert f"{small.chance:.4f}" in axes.get_title()
    assert bar.get_ylabel() == "DOCS"
    assert small.plot(scale="excess").axes[1].get_ylabel() == "DOCS: excess over chance"
    with pytest.raises(InputError, match="vmin"):
        small.plot(vmin=1, vmax=0)


def test_demo_has_eight_layers():
    found = docs_sim.heatmap("demo", matrix="mlp_up")
    assert found.values.shape == (8, 8)
    assert np.median(found.values[np.triu_indices(8, 1)]) > found.chance


def test_a_result_may_be_compared_and_shown(small):
    assert small != replace(small)  # by identity: arrays have no one answer
    assert len(repr(small)) < 1000


def test_one_format_may_be_given_as_text(small, tmp_path):
    assert {path.name for path in small.save(tmp_path, formats="svg")} == FILES - {"heatmap.png"} | {"heatmap.svg"}


@pytest.mark.parametrize("choice", [{"formats": ["bmp"]}, {"formats": "bmp"}, {"scale": "log"}], ids=str)
def test_unknown_choice_writes_nothing(choice, small, tmp_path):
    with pytest.raises(InputError, match=r"known: (png|raw)"):
        small.save(tmp_path / "o", **choice)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "choice", [{"revision": "main"}, {"tower": "vision"}, {"layout": "mine.toml"}, {"offline": True}], ids=str
)
def test_open_checkpoint_is_not_opened_again(choice, write_model, llama_tensors):
    checkpoint = open_checkpoint(write_model(llama_tensors()))
    with pytest.raises(InputError, match=f"{next(iter(choice))} .* give it to open_checkpoint"):
        heatmap(checkpoint, **choice)


def test_how_a_model_is_opened_may_be_said(write_model, llama_tensors, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text('extends = "llama"')
    found = heatmap(write_model(llama_tensors(prefix="vision_model.")), tower="vision", layout=tmp_path / "mine.toml")
    assert found.subject == "vision mlp_up by mine.toml"
    assert found.summary()[0].endswith("vision mlp_up by mine.toml, 3 layers")
    assert "vision mlp_up by mine.toml" in found.plot().axes[0].get_title()
    settings = json.loads(json_text(found.to_dict()))["settings"]
    assert (settings["tower"], settings["layout"]) == ("vision", str(tmp_path / "mine.toml"))
    with pytest.raises(InputError, match="not in the Hugging Face cache"):
        heatmap("someone/model", offline=True)


def test_experts_below_chance_are_explained_only_where_they_are(write_model, moe_tensors):
    apart = moe_tensors(width=64, inner=40)
    alike = {
        name: apart[name.replace(f".{number}.up_proj", ".0.up_proj")].clone()
        for number in range(4)
        for name in apart
        if f"experts.{number}.up_proj" in name
    }
    assert not any("near copies" in warning for warning in heatmap(write_model(apart)).warnings)
    copies = heatmap(write_model(apart | alike, "copies"))
    assert (copies.values < copies.grid.chance)[~np.eye(3, dtype=bool)].all()
    assert any("near copies" in warning for warning in copies.warnings)
