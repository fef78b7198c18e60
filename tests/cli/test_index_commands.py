"""The commands on indices, best matches and columns: files, words, and what they refuse."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from docs_sim.indices.choices import IndexName
from docs_sim.indices.table import similarity


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_indices_writes_its_files_and_says_what_is_degenerate(run, tmp_path):
    ended = run("indices", "demo")
    directory = tmp_path / "docs-sim-out/indices-demo-mlp_up"
    grids = {f"{name}.csv" for name in IndexName}
    assert files(directory) == {"indices.png", "indices.csv", "mantel.csv", "orthogonality.csv", "result.json", *grids}
    assert ended.status == 0
    assert "warning: cca is degenerate for all 28 pairs: the columns reach all n - 1 directions" in ended.err
    assert "degenerate" in ended.out
    assert "largest |cos|" in ended.out


def test_indices_as_json(run):
    ended = run("indices", "demo", "--only", "linear-cka,docs", "--json")
    result = json.loads(ended.out)
    assert [grid["index"] for grid in result["grids"]] == ["docs", "linear_cka"]
    assert ended.err == ""


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        (["--only", "docs"], "indices-demo-mlp_up-docs"),
        (["-m", "attn_q"], "indices-demo-attn_q"),
        (["--layers", "0-2"], "indices-demo-mlp_up-layers-0-2"),
        (["--only", "svcca", "--svcca-threshold", "0.9"], "indices-demo-mlp_up-svcca-svcca-0.9"),
        (["--only", "docs", "--null", "reinit"], "indices-demo-mlp_up-docs-reinit-1"),
        (["--only", "cca", "--null", "rotation", "--null-repeats", "2"], "indices-demo-mlp_up-cca-rotation-2"),
        (["--only", "docs", "--precision", "highest"], "indices-demo-mlp_up-docs-highest"),
    ],
    ids=str,
)
def test_choices_that_change_the_result_have_folders_of_their_own(options, folder, run, tmp_path):
    assert run("indices", "demo", *options).status == 0
    assert (tmp_path / "docs-sim-out" / folder / "result.json").exists()


@pytest.mark.parametrize("null", ["rotation", "reinit"])
@pytest.mark.parametrize("index", IndexName)
def test_heatmap_of_every_index_with_a_null(index, null, run, tmp_path):
    ended = run(
        "heatmap", "demo", "-m", "attn_k", "--index", index, "--null", null, "--null-repeats", "2", "--out", "o"
    )
    assert ended.status == 0
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert (result["index"], result["settings"]["null"], result["settings"]["null_repeats"]) == (index, null, 2)
    assert result["null"]["name"] == null
    pairs = pd.read_csv(tmp_path / "o/pairs.csv")
    assert pairs["z"].notna().all()


def test_properties_need_no_model(run, tmp_path):
    ended = run("indices", "--properties", "--only", "docs,linear_cka")
    assert ended.status == 0
    assert "permutation" in ended.out
    assert files(tmp_path / "docs-sim-out/indices-properties") >= {"properties.csv", "result.json"}


def test_histogram(run, tmp_path):
    ended = run("histogram", "demo", "--layers", "2,3", "--variants", "--format", "svg", "--format", "pdf")
    directory = tmp_path / "docs-sim-out/histogram-demo-mlp_up-layers-2_3-variants"
    figures = {f"{name}.{suffix}" for name in ("histogram", "variants") for suffix in ("svg", "pdf")}
    assert files(directory) == {*figures, "fits.csv", "matches.csv", "result.json"}
    assert "2-3" in ended.out
    assert "rank correlation" in ended.out


def test_inspect_orthogonality(run, tmp_path):
    ended = run("inspect", "demo", "--orthogonality", "--matrix", "mlp_up")
    assert ended.status == 0
    directory = tmp_path / "docs-sim-out/orthogonality-demo-mlp_up"
    assert files(directory) == {"orthogonality.csv", "orthogonality.png", "result.json"}
    assert "mlp_up" in ended.out


def test_inspect_without_it_writes_nothing(run, tmp_path):
    assert run("inspect", "demo").status == 0
    assert not (tmp_path / "docs-sim-out").exists()


REFUSED = [
    (["indices", "demo", "--only", "cka"], "unknown index 'cka'; known: docs"),
    (["indices", "demo", "--only", ""], "unknown index"),
    (["indices", "--properties", "-m", "mlp_up"], "--matrix does not go with --properties"),
    (["indices", "demo", "--properties"], "MODEL does not go with --properties"),
    (["indices", "--properties", "--null", "reinit"], "--null does not go with --properties"),
    (["indices"], "which MODEL?"),
    (["indices", "demo", "--null", "shuffle"], "rotation"),
    (["indices", "demo", "--null", "reinit", "--null-repeats", "0"], "null"),
    (["indices", "demo", "--null-repeats", "3"], "--null"),
    (["indices", "demo", "--svcca-threshold", "0"], "(0, 1]"),
    (["indices", "demo", "--svcca-threshold", "nan"], "(0, 1]"),
    (["heatmap", "demo", "--svcca-threshold", "0.9"], "svcca and svcca_r2"),
    (["indices", "demo", "--only", "cca", "--svcca-threshold", "0.9"], "svcca and svcca_r2"),
    (["heatmap", "demo", "--index", "svcca", "--svcca-threshold", "2"], "(0, 1]"),
    (["heatmap", "demo", "--null-repeats", "-1", "--null", "rotation"], "null"),
    (["histogram", "demo", "--layers", "2"], "2 to 4 layers"),
    (["histogram", "demo", "--layers", "0-7"], "2 to 4 layers"),
    (["histogram", "demo", "--layers", "40,41"], "there are 0-7"),
    (["histogram", "demo", "-m", "embed"], "outside the layers"),
    (["histogram", "demo", "--format", "bmp"], "png"),
    (["inspect", "demo", "-m", "mlp_up"], "--matrix goes with --orthogonality"),
    (["inspect", "demo", "--out", "o"], "--out goes with --orthogonality"),
    (["inspect", "demo", "--orthogonality", "-m", "mlp_upp"], "did you mean mlp_up"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=str)
def test_refused_in_one_line_without_a_trace(arguments, words, run, tmp_path):
    ended = run(*arguments)
    assert (ended.status, ended.out, len(ended.lines)) == (2, "", 1)
    assert words in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["indices"], ["histogram", "--layers", "0,1"]], ids=str)
def test_not_finite_weight_names_the_tensor(arguments, run, write_model, llama_tensors):
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    ended = run(arguments[0], write_model(tensors), *arguments[1:])
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert "model.layers.1.mlp.up_proj.weight" in ended.err


@pytest.mark.parametrize("command", ["indices", "histogram"])
def test_results_of_others_are_not_replaced(command, run, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o/result.json").write_text('{"loss": 0.1}')
    ended = run(command, "demo", "--out", "o")
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert files(tmp_path / "o") == {"result.json"}


@pytest.mark.parametrize("command", ["indices", "histogram", "inspect"])
def test_quiet_says_nothing_but_warnings(command, run):
    options = ["--orthogonality"] if command == "inspect" else []
    ended = run(command, "demo", "--quiet", *options)
    assert (ended.status, ended.out) == (0, "")
    assert all("warning" in line for line in ended.lines)


@pytest.mark.parametrize("null", ["rotation", "reinit"])
@pytest.mark.parametrize("scale", [1.0, 1e-100], ids=["usual", "below float32"])
def test_layers_in_float32_and_float64_are_compared(scale, null, run, write_model, tmp_path):
    random = torch.Generator().manual_seed(0)
    first, second, third = (torch.randn((6, 8), generator=random, dtype=torch.float64) for _ in range(3))
    layers = [first * scale, second.float(), third * scale]
    names = "model.layers.{}.mlp.up_proj.weight"
    path = write_model({names.format(number): layer for number, layer in enumerate(layers)})
    ended = run("indices", path, "--null", null, "--null-repeats", "2", "--json", "--out", "o")
    assert ended.status == 0
    values = {grid["index"]: grid["values"] for grid in json.loads(ended.out)["grids"]}
    expected = similarity(first.T, second.T, index="linear_cka")
    assert values["linear_cka"][0][1] == pytest.approx(expected, rel=1e-6)


def test_reader_that_refuses_names_the_tensor_once(run, write_model):
    path = write_model(
        {f"model.layers.{n}.mlp.up_proj.weight": torch.ones((6, 8), dtype=torch.int32) for n in range(2)}
    )
    ended = run("inspect", path, "--orthogonality")
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert ended.err.count("model.layers.0.mlp.up_proj.weight") == 1


def test_heatmap_of_a_degenerate_index_says_so(run, tmp_path):
    ended = run("heatmap", "demo", "--index", "cca", "--out", "o")
    assert "cca: degenerate, 1.0000 whatever the layers are" in ended.out
    assert "Gini" not in ended.out
    assert json.loads((tmp_path / "o/result.json").read_text())["gini"] is None


def test_heatmap_tells_z_where_there_is_one(run):
    assert "z over the null: median" in run("heatmap", "demo", "--null", "rotation", "--null-repeats", "3").out
    assert "z over" not in run("heatmap", "demo", "--null", "rotation").out
