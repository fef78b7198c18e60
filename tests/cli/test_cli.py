"""The program as its users meet it: exit status, what it prints where, and which files it leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
import torch
import typer
from docs_sim.cli import app
from docs_sim.cli.output import _Fetched, default_directory, progress_bar

import docs_sim.checkpoint
from docs_sim.checkpoint.source import BUILT_IN, aliases
from docs_sim.errors import InputError
from docs_sim.report.text import ranges

FILES = {"result.json", "grid.csv", "pairs.csv", "heatmap.png"}
PROGRAM = Path(sys.executable).with_name("docs-sim")
UP_1 = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def model(write_model, llama_tensors) -> Path:
    """A Llama of four layers with a config."""
    return write_model(llama_tensors(4), config={"architectures": ["LlamaForCausalLM"]})


def contents(directory: Path) -> dict[Path, bytes | None]:
    """All files below a directory with their bytes, hidden ones too, and all folders with None."""
    paths = {path.relative_to(directory): path for path in directory.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


# --- heatmap ---


def test_heatmap_writes_its_files_where_it_says(run, model, tmp_path):
    ended = run("heatmap", model)
    assert (ended.status, ended.err) == (0, "")
    directory = tmp_path / "docs-sim-out" / "heatmap-tiny-mlp_up"
    assert contents(directory).keys() == {Path(name) for name in FILES}
    assert "heatmap-tiny-mlp_up" in ended.out
    assert "chance level" in ended.out


def test_result_follows_the_schema(run, model, tmp_path):
    assert run("heatmap", model, "--matrix", "Q", "--out", "o", "--layers", "0-2", "--device", "cpu").status == 0
    result = json.loads((tmp_path / "o" / "result.json").read_text())
    assert {"schema": 1, "command": "heatmap", "index": "docs", "matrix": "attn_q"}.items() <= result.items()
    assert result["docs_sim"].count(".") == 2
    assert result["model"] == {
        "name": "tiny",
        "source": str(model / "model.safetensors"),
        "revision": None,
        "adapter": None,
        "architecture": "LlamaForCausalLM",
        "dtype": "BF16",
    }
    assert result["labels"] == ["0", "1", "2"]
    values = np.array(result["values"])
    assert values.shape == (3, 3)
    assert np.array_equal(values, values.T)
    assert np.array_equal(np.diag(values), np.ones(3))
    assert 0 < result["chance"] < 1
    assert 0 <= result["gini"] < 1
    assert result["warnings"] == []
    assert {"device": "cpu", "precision": "auto", "sample": None}.items() <= result["settings"].items()
    assert result["seconds"] >= 0


def test_tables_hold_the_same_numbers(run, model, tmp_path):
    run("heatmap", model, "--out", "o")
    values = np.array(json.loads((tmp_path / "o" / "result.json").read_text())["values"])
    grid = pd.read_csv(tmp_path / "o" / "grid.csv", index_col="layer")
    assert list(grid.columns) == ["0", "1", "2", "3"]
    np.testing.assert_array_equal(grid.to_numpy(), values)
    pairs = pd.read_csv(tmp_path / "o" / "pairs.csv")
    assert len(pairs) == 6
    assert {"layer_x", "layer_y", "docs", "excess", "chance", "location_x", "scale_y"} <= set(pairs.columns)
    np.testing.assert_array_equal(pairs["docs"], values[pairs["layer_x"], pairs["layer_y"]])


def test_figure_formats(run, model, tmp_path):
    assert run("heatmap", model, "--out", "o", "--format", "svg", "--format", "pdf", "--format", "svg").status == 0
    starts = {path.name: path.read_bytes()[:5] for path in (tmp_path / "o").glob("heatmap.*")}
    assert starts == {"heatmap.svg": b"<?xml", "heatmap.pdf": b"%PDF-"}


def test_json_is_all_there_is_on_standard_output(run, model, tmp_path):
    ended = run("heatmap", model, "--out", "o", "--json")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    assert json.loads(ended.out) == json.loads((tmp_path / "o" / "result.json").read_text())


def test_quiet_says_nothing(run, model, tmp_path):
    ended = run("heatmap", model, "--out", "o", "--quiet")
    assert (ended.status, ended.out, ended.err) == (0, "", "")
    assert (tmp_path / "o" / "result.json").is_file()


@pytest.mark.parametrize("options", [["--json"], ["--quiet"], []])
def test_zero_columns_are_a_warning_with_the_count(options, run, write_model, llama_tensors):
    tensors = llama_tensors()
    tensors[UP_1][:5] = 0
    ended = run("heatmap", write_model(tensors), *options)
    assert ended.status == 0
    assert ended.lines == ["docs-sim: warning: layers.1.mlp_up: 5 of 24 columns are zero and were left out"]
    if options == ["--json"]:
        assert json.loads(ended.out)["zero_columns"] == [0, 5, 0]


@pytest.mark.parametrize(
    "options",
    [
        *(["--index", "docs_mean"], ["--precision", "highest"], ["--memory-budget", "1MiB"], ["--scale", "excess"]),
        *(["--vmin", "0", "--vmax", "1"], ["--layers", "0,2-3"], ["--layers", "1, 3"], ["--matrix", "down_proj"]),
        ["--device", "cpu"],
    ],
    ids=" ".join,
)
def test_options_that_work(options, run, model):
    assert run("heatmap", model, *options).status == 0


def test_second_run_replaces_whole_files(run, model, tmp_path):
    def written() -> dict[Path, object]:
        files: dict[Path, object] = contents(tmp_path / "o")
        result = json.loads(files.pop(Path("result.json")))
        return files | {Path("result.json"): result | {"seconds": None}}

    run("heatmap", model, "--out", "o")
    first = written()
    for path in (tmp_path / "o").iterdir():
        path.write_bytes(bytes(1_000_000))
    run("heatmap", model, "--out", "o")
    assert written() == first


# --- wrong input ---


def poisoned(value: float):
    def act(directory: Path) -> None:
        path = directory / "model.safetensors"
        content = bytearray(path.read_bytes())
        length = int.from_bytes(content[:8], "little")
        begin = json.loads(content[8 : 8 + length])[UP_1]["data_offsets"][0]
        start = 8 + length + begin + 2 * 7
        content[start : start + 2] = torch.tensor([value]).bfloat16().view(torch.uint8).numpy().tobytes()
        path.write_bytes(content)

    return act


BAD_MODELS = {
    "cut short": (lambda d: os.truncate(d / "model.safetensors", 4000), "cut short"),
    "git lfs pointer": (
        lambda d: (d / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "empty file": (lambda d: os.truncate(d / "model.safetensors", 0), "is empty"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "holds no weights"),
    "missing": (shutil.rmtree, "no such file or directory"),
    "pickled": (lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"), "convert"),
    "config not JSON": (lambda d: (d / "config.json").write_text("{"), "config.json"),
    "NaN": (poisoned(float("nan")), UP_1),
    "infinity": (poisoned(float("inf")), UP_1),
    "minus infinity": (poisoned(float("-inf")), UP_1),
}


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
@pytest.mark.parametrize("fault", BAD_MODELS)
def test_bad_model_is_one_line_and_leaves_no_trace(fault, options, run, model, tmp_path):
    act, words = BAD_MODELS[fault]
    act(model)
    before = contents(tmp_path)
    ended = run("heatmap", model, "--out", "o", *options)
    assert (ended.status, ended.out, len(ended.lines)) == (2, "", 1)
    assert ended.err.startswith("docs-sim: ")
    assert words in ended.err
    assert contents(tmp_path) == before


BAD_OPTIONS = {
    "matrix that it lacks": (["--matrix", "attn_gate"], "it has attn_q, attn_k, attn_v"),
    "unknown matrix": (["--matrix", "mlp_upp"], "did you mean mlp_up"),
    "matrix outside the layers": (["--matrix", "embed"], "outside the layers"),
    "layers that are not there": (["--layers", "40-50"], "there are 0-3"),
    "layers reversed": (["--layers", "5-2"], "0-15"),
    "layers of letters": (["--layers", "abc"], "abc"),
    "layers empty": (["--layers", ""], "layers"),
    "layers negative": (["--layers", "-1"], "-1"),
    "one layer": (["--layers", "2"], "two layers"),
    "experts of a dense model": (["--experts", "0"], "no experts"),
    "experts of letters": (["--experts", "all"], "'all'"),
    "out below a file": (["--out", "file/below"], "file/below"),
    "out is a file": (["--out", "file"], "file"),
    "out of a name longer than the system allows": (["--out", "o" * 300], "another directory"),
    "out below a folder that can be made": (["--out", "a/b/" + "o" * 300], "another directory"),
    "colours reversed": (["--vmin", "1", "--vmax", "0"], "vmin must be a number below vmax"),
    "colours without extent": (["--vmin", "0.5", "--vmax", "0.5"], "vmin"),
    "colours not finite": (["--vmax", "nan"], "nan"),
    "colours too far apart": (["--vmin=-1e308", "--vmax", "1e308"], "vmin"),
    "out is empty": (["--out", ""], "--out is empty"),
    "matrix of a million letters": (["--matrix", "x" * 10**6], "unknown matrix"),
    "colour beyond every similarity": (["--vmax", "1e300"], "1,000,000"),
    "tower that is not there": (["--tower", "vision"], "it has language"),
    "layout that is not there": (["--layout", "none.toml"], "none.toml"),
    "colour no number": (["--vmin", "low"], "--vmin"),
    "memory nonsense": (["--memory-budget", "plenty"], "'plenty'"),
    "memory of nothing": (["--memory-budget", "0"], "'0'"),
    "memory without end": (["--memory-budget", "9" * 400], "999"),
    "device": (["--device", "nosuch"], "'nosuch'"),
    "index": (["--index", "nosuch"], "docs_mean"),
    "precision": (["--precision", "low"], "highest"),
    "format": (["--format", "bmp"], "png"),
    "scale": (["--scale", "log"], "excess"),
    "revision of a directory": (["--revision", "main"], "--revision"),
    "unknown option": (["--bogus"], "--bogus"),
    "option without its value": (["--matrix"], "--matrix"),
    "second model": (["another"], "another"),
}


@pytest.mark.parametrize("fault", BAD_OPTIONS)
def test_bad_option_is_one_line_and_leaves_no_trace(fault, run, model, tmp_path):
    options, words = BAD_OPTIONS[fault]
    (tmp_path / "file").write_text("in the way")
    before = contents(tmp_path)
    ended = run("heatmap", model, *options)
    assert (ended.status, ended.out, len(ended.lines)) == (2, "", 1)
    assert words in ended.err
    assert len(ended.err) < 1000
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["heatmap"], "Missing argument 'MODEL'"),
        (["histogram"], "Missing argument 'MODEL'"),
        (["indices"], "--properties"),
        (["inspect"], "Missing argument 'MODEL'"),
        (["inspect", "no-such-model"], "docs-sim models"),
        (["inspect", "./no-such"], "no such file or directory"),
        (["inspect", "--", "--debug"], "--debug: no such file"),
        (["inspect", "someone/model"], "hf download someone/model"),
        (["inspect", "llama-3.1-8"], "did you mean"),
        (["inspect", "line\nbreak"], "line break"),
        (["inspect", "lora+"], "one of the two is missing"),
        (["inspect", "+demo"], "one of the two is missing"),
        (["inspect", "+"], "one of the two is missing"),
        (["--bogus"], "--bogus"),
        (["models", "extra"], "extra"),
    ],
    ids=str,
)
def test_wrong_command_line_is_one_line(arguments, words, run, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    ended = run(*arguments)
    assert (ended.status, ended.out, len(ended.lines)) == (2, "", 1)
    assert words in ended.err


def test_unknown_command_points_to_help_that_exists(run):
    ended = run("heatmop", "demo")
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert "'heatmop'" in ended.err
    assert "docs-sim heatmop --help" not in ended.err


def test_out_that_holds_a_directory_of_that_name_is_left_as_it_is(run, model, tmp_path):
    (tmp_path / "o" / "pairs.csv").mkdir(parents=True)
    (tmp_path / "o" / "grid.csv").write_text("old")
    ended = run("heatmap", model, "--out", "o")
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert contents(tmp_path / "o") == {Path("grid.csv"): b"old", Path("pairs.csv"): None}


@pytest.mark.parametrize("shape", [(0, 16), (24, 0)], ids=str)
def test_matrix_without_entries_is_one_line(shape, run, write_model, llama_tensors):
    tensors = llama_tensors()
    for layer in range(3):
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = torch.zeros(shape)
        tensors[f"model.layers.{layer}.mlp.gate_proj.weight"] = torch.zeros(shape)
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = torch.zeros(shape[::-1])
    if shape[1] == 0:
        tensors = {name: tensor for name, tensor in tensors.items() if "attn" not in name}
    ended = run("heatmap", write_model(tensors))
    assert (ended.status, len(ended.lines)) == (2, 1)


def test_zero_matrix_is_one_line_that_names_the_tensor(run, write_model, llama_tensors):
    tensors = llama_tensors()
    tensors[UP_1].zero_()
    ended = run("heatmap", write_model(tensors))
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert UP_1 in ended.err


def test_matrices_of_different_n_are_refused(run, write_model, llama_tensors):
    wide = {name: tensor for name, tensor in llama_tensors(3, width=32).items() if ".2." in name}
    ended = run("heatmap", write_model(llama_tensors(2) | wide))
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert "n = 16" in ended.err
    assert "n = 32" in ended.err


def test_debug_shows_the_traceback(run):
    for arguments in (["--debug", "inspect", "./nothing"], ["inspect", "./nothing", "--debug"]):
        ended = run(*arguments)
        assert ended.status == 2
        assert "Traceback" in ended.err
        assert ended.lines[-1].startswith("docs-sim: ./nothing")
    assert "Traceback" not in run("inspect", "./nothing").err


def test_fault_of_the_program_is_told_apart(run, model, monkeypatch):
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr("docs_sim.checkpoint.checkpoint.name_tensors", broken)
    ended = run("inspect", model)
    assert (ended.status, len(ended.lines)) == (1, 1)
    assert "ZeroDivisionError" in ended.err


# --- help, inspect, models ---


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["heatmap", "--help"], ["inspect", "-h"], ["models", "-h"]])
def test_help(arguments, run):
    ended = run(*arguments)
    assert (ended.status, ended.err) == (0, "")
    assert "Usage" in ended.out


def test_help_lists_the_commands(run):
    assert all(command in run("--help").out for command in ("heatmap", "inspect", "models"))


def test_version(run):
    ended = run("--version")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.strip().count(".") == 2


def test_no_command_shows_the_help(run):
    ended = run()
    assert (ended.status, ended.err) == (2, "")
    assert "heatmap" in ended.out


def test_inspect_accounts_for_every_tensor(run, model, llama_tensors):
    ended = run("inspect", model, "--json")
    assert (ended.status, ended.err) == (0, "")
    listing = json.loads(ended.out)
    assert (listing["schema"], listing["command"], listing["layers"]) == (1, "inspect", [0, 1, 2, 3])
    assert listing["model"]["architecture"] == "LlamaForCausalLM"
    named = [name for matrix in listing["matrices"] for name in matrix["tensors"]]
    assert sorted(named + [one["name"] for one in listing["unnamed"]]) == sorted(llama_tensors(4))
    assert all(one["reason"] for one in listing["unnamed"])
    up = next(matrix for matrix in listing["matrices"] if matrix["key"] == "layers.1.mlp_up")
    assert (up["shape"], up["dtype"], up["expert"], up["tensors"]) == ([16, 24], "BF16", None, [UP_1])
    assert listing["bytes"] == sum(tensor.nbytes for tensor in llama_tensors(4).values())


def test_inspect_in_words(run, model, write_model, moe_tensors):
    out = run("inspect", model).out
    assert "LlamaForCausalLM" in out
    assert "attn_k    0-3" in out
    assert "(16, 24)" in out
    assert "model.layers.*.input_layernorm.weight" in out
    mixed = run("inspect", write_model(moe_tensors(dense=1), "mixed")).out
    assert "architecture not stated" in mixed
    assert "0-3" in mixed
    assert "shared" in mixed


@pytest.mark.parametrize("command", ["heatmap", "histogram", "indices", "inspect", "models"])
def test_help_gives_flags_no_value(command, run):
    for line in run(command, "--help").out.splitlines():
        assert "<bool>" not in line or "--help" in line, "typer's own flag says so"


def test_inspect_replaces_the_numbers_of_layers_and_experts_alone(run, write_model, moe_tensors):
    odd = {f"model.layers.{layer}.mixer.conv1d.weight": torch.zeros(4, 1, 3) for layer in range(3)}
    stray = {f"model.layers.{layer}.mlp.experts.{layer}.w5.weight": torch.zeros(4, 4) for layer in range(3)}
    second = {f"model.layers.{layer}.mlp.up_proj.weight": torch.zeros(7, 5) for layer in range(2)}
    out = run("inspect", write_model(moe_tensors() | odd | stray | second)).out
    assert "model.layers.*.mixer.conv1d.weight" in out
    assert "model.layers.*.mlp.experts.*.w5.weight" in out


def test_inspect_shows_shapes_in_reasons(run, write_model, llama_tensors):
    tensors = llama_tensors(9)
    for layer in (1, 2):
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = torch.zeros(5, 7)
    (line,) = (line for line in run("inspect", write_model(tensors)).out.splitlines() if "*.mlp.down_proj" in line)
    assert "mlp_down (5, 7)" in line


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon_mamba"])
def test_inspect_of_state_space_layers_gives_that_reason(name, run, shared):
    lines = run("inspect", shared / "zoo" / name).out.splitlines()
    assert all("state-space mixer" in line for line in lines if ".mixer." in line)
    assert not any("no layout" in line or "no known layout" in line for line in lines)
    ended = run("heatmap", shared / "zoo" / name)
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert "no layer has a matrix to compare" in ended.err
    assert "state-space mixer" in ended.err


def test_inspect_tells_the_blocks_of_a_layer_apart(run, shared):
    longcat = [line.split() for line in run("inspect", shared / "zoo" / "longcat_flash").out.splitlines()]
    for part in ("0-3", "sub0", "sub1"):
        assert [line[:3] for line in longcat if line[:1] == ["mlp_up"] and part in line] == [["mlp_up", "0-1", part]]
    assert "mlp_up    0-2     shared_experts 0-1" in run("inspect", shared / "zoo" / "inkling_text").out


def test_inspect_says_what_an_adapter_changes(run, shared):
    adapter, base = shared / "zoo-variants" / "lora_llama", shared / "zoo" / "llama"
    weights = adapter / "adapter_model.safetensors"
    assert f"  adapter {weights}, 15 LoRA modules of rank 4" in run("inspect", f"{adapter}+{base}").out.splitlines()
    assert json.loads(run("inspect", f"{adapter}+{base}", "--json").out)["adapter_ranks"] == [4] * 15
    assert "adapter" not in run("inspect", base).out


def test_adapter_file_alone_is_told_what_it_is(run, shared):
    weights = shared / "zoo-variants" / "lora_llama" / "adapter_model.safetensors"
    for command in ("inspect", "heatmap"):
        ended = run(command, weights)
        assert (ended.status, len(ended.lines)) == (2, 1)
        assert f"is a LoRA adapter; join it to its base: {weights}+BASE" in ended.err


def test_towers_are_those_that_can_be_chosen(run, write_model, llama_tensors):
    model = write_model(llama_tensors() | llama_tensors(2, prefix="vision.") | llama_tensors(1, prefix="mtp."))
    assert "  towers: language, vision" in run("inspect", model).out.splitlines()
    assert json.loads(run("inspect", model, "--tower", "vision", "--json").out)["tower"] == "vision"
    assert run("inspect", model, "--tower", "audio").err.endswith("it has language, vision\n")


def test_nearest_name_comes_with_its_layout(run, write_model):
    ended = run("heatmap", write_model({f"net.{layer}.self_atn.q_proj.weight": torch.zeros(4, 4) for layer in (0, 1)}))
    assert "'self_atn.q_proj' comes closest, to 'self_attn.q_proj' of the " in ended.err


def test_inspect_of_unknown_names_lists_them(run, write_model):
    ended = run("inspect", write_model({"strange.weight": torch.zeros(4, 4)}))
    assert ended.status == 0
    assert "no known layout" in ended.out
    assert "strange.weight" in ended.out


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
@pytest.mark.parametrize("name", ["\ud800", "\x1b[2J\x07", "a\nb"], ids=ascii)
def test_inspect_prints_hostile_names_harmlessly(name, options, run, write_raw):
    path = write_raw({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))
    ended = run("inspect", path, *options)
    assert (ended.status, ended.err) == (0, "")
    assert name not in ended.out, "a terminal would obey it"
    if options:
        assert json.loads(ended.out)["unnamed"][0]["name"] == name


def test_inspect_of_an_empty_checkpoint(run, write_raw):
    ended = run("inspect", write_raw({}))
    assert (ended.status, ended.err) == (0, "")
    assert "0 tensors" in ended.out


def test_models_when_the_cache_cannot_be_read(run, monkeypatch):
    def refuse(hub_id: str) -> bool:
        raise InputError("cache: cannot be read: Permission denied")

    monkeypatch.setattr("docs_sim.checkpoint.hub.is_cached", refuse)
    ended = run("models", "--json")
    assert ended.status == 0
    assert ended.lines == ["docs-sim: warning: cache: cannot be read: Permission denied"]
    assert {entry["cached"] for entry in json.loads(ended.out)["aliases"].values()} == {None}


def test_models(run, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--openai-community--gpt2" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    lines = run("models").out.splitlines()
    assert [line.split() for line in lines if "(cached)" in line] == [["gpt2", "openai-community/gpt2", "(cached)"]]
    assert all(any(line.split()[:1] == [name] for line in lines) for name in (*BUILT_IN, *aliases()))
    listing = json.loads(run("models", "--json").out)
    assert listing["built_in"] == BUILT_IN
    assert {alias: entry["id"] for alias, entry in listing["aliases"].items()} == aliases()
    assert [alias for alias, entry in listing["aliases"].items() if entry["cached"]] == ["gpt2"]


def test_built_in_model(run):
    ended = run("heatmap", "demo", "--json", "--out", "o")
    assert (ended.status, ended.err) == (0, "")
    assert json.loads(ended.out)["labels"] == [str(layer) for layer in range(8)]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([2, 0, 1], "0-2"), ([0, 1, 2, 5, 7, 8, 8], "0-2, 5, 7-8")]
)
def test_ranges_of_numbers(numbers, text):
    assert ranges(numbers) == text


def test_default_directories_of_long_names_differ_and_fit():
    names = [default_directory("heatmap", "模型" * 100, "mlp_up", last).name for last in ("a", "b")]
    assert len(set(names)) == 2
    assert all(len(name.encode()) < 255 for name in names)


def test_default_directory_is_harmless():
    assert default_directory("heatmap", "../a b/c:d", "mlp_up") == Path("docs-sim-out/heatmap-..-a-b-c-d-mlp_up")


# --- as a process ---


def start(*arguments: object, cwd: Path, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        cwd=cwd,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
    )


def test_inspect_reads_headers_only_and_never_imports_torch(write_raw, tmp_path):
    size, count = 2**33, 64
    each = size // count
    header = {
        f"model.layers.{layer}.mlp.up_proj.weight": {
            "dtype": "BF16",
            "shape": [2**14, each // 2**15],
            "data_offsets": [layer * each, (layer + 1) * each],
        }
        for layer in range(count)
    }
    path = write_raw(header)
    os.truncate(path, path.stat().st_size + size)
    program = (
        "import sys; from docs_sim.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & sys.modules.keys()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "inspect", str(path)], check=True, capture_output=True, text=True
    )
    assert "8,589.9 MB" in ended.stdout
    assert "0-63" in ended.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["heatmap", "--help"], ["models"], ["--version"]], ids=" ".join)
def test_what_must_be_quick_imports_nothing_heavy(arguments):
    program = (
        "import sys; from docs_sim.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'pandas', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True)


def test_exit_status_of_the_installed_program(tmp_path):
    (tmp_path / "empty").mkdir()
    statuses = {"--version": 0, "--bogus": 2}
    for argument, status in statuses.items():
        assert start(argument, cwd=tmp_path).wait() == status
    ended = start("inspect", "empty", cwd=tmp_path)
    out, err = ended.communicate()
    assert (ended.returncode, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), ("fatal", 1)])
def test_an_end_inside_a_command_keeps_its_status(code, status, run, model, monkeypatch):
    monkeypatch.setattr("docs_sim.checkpoint.checkpoint.name_tensors", lambda *arguments: sys.exit(code))
    assert run("inspect", model).status == status


def test_choices_that_change_the_result_have_directories_of_their_own(run, model, tmp_path):
    layers = [["--layers", layers] for layers in ("0-1,3", "0,1-3", "0 , 1 - 3", "0-3")]
    for options in ([], ["--precision", "highest"], ["--index", "docs_mean"], *layers):
        assert run("heatmap", model, *options).status == 0
    assert len(list((tmp_path / "docs-sim-out").iterdir())) == 5


def test_tower_and_layout_have_directories_of_their_own(run, write_model, llama_tensors, tmp_path):
    (tmp_path / "mine.toml").write_text('extends = "llama"')
    both = write_model(llama_tensors() | llama_tensors(2, prefix="vision_model."))
    for options in ([], ["--tower", "vision"], ["--layout", "mine.toml"], ["--experts", "CONCAT"]):
        assert run("heatmap", both, *options).status == 0
    names = {"heatmap-tiny-mlp_up", "heatmap-tiny-mlp_up-vision", "heatmap-tiny-mlp_up-layout-mine"}
    assert {path.name for path in (tmp_path / "docs-sim-out").iterdir()} == names
    settings = json.loads((tmp_path / "docs-sim-out" / "heatmap-tiny-mlp_up-layout-mine" / "result.json").read_text())
    assert settings["settings"]["layout"] == "mine.toml"


def test_experts_have_one_directory_however_they_are_written(run, write_model, moe_tensors, tmp_path):
    model = write_model(moe_tensors())
    for experts in ("shared", "SHARED", "1", "01"):
        assert run("heatmap", model, "--experts", experts).status == 0
    assert len(list((tmp_path / "docs-sim-out").iterdir())) == 2


def test_result_of_another_model_of_the_same_name_is_not_replaced_in_silence(run, write_model, llama_tensors, tmp_path):
    first, second = (write_model(llama_tensors(seed=seed), f"{seed}/same") for seed in (1, 2))
    assert run("heatmap", first).err == ""
    assert run("heatmap", Path("1/same")).err == "", "the same model by another path"
    ended = run("heatmap", second)
    assert ended.status == 0
    assert ended.lines == [
        "docs-sim: warning: docs-sim-out/heatmap-same-mlp_up holds the result of 1/same/model.safetensors, "
        "which is replaced; --out keeps both"
    ]


@pytest.mark.parametrize("source", ["a\\u0000b", "x" * 10_000], ids=["null byte", "long"])
def test_earlier_result_is_untrusted(source, run, model, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "result.json").write_text(f'{{"docs_sim": "0", "model": {{"source": "{source}"}}}}')
    ended = run("heatmap", model, "--out", "o")
    assert (ended.status, len(ended.lines)) == (0, 1)
    assert "o holds the result of" in ended.err
    assert len(ended.err) < 300


def test_wrong_index_is_refused_before_anything_is_opened(run, tmp_path):
    ended = run("heatmap", "no-such-model", "--index", "cka", "--out", "o")
    assert (ended.status, len(ended.lines)) == (2, 1)
    assert "docs_mean" in ended.err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("buffering", ["buffered", "unbuffered"])
def test_reader_that_has_seen_enough_is_no_fault(buffering, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if buffering == "unbuffered":
        environment["PYTHONUNBUFFERED"] = "1"
    ended = start("models", cwd=tmp_path, stdout=writing, env=environment)
    os.close(writing)
    assert ended.communicate()[1] == ""
    assert ended.returncode == 0


def test_two_runs_at_once_into_one_directory(model, tmp_path):
    both = [start("heatmap", model, "--out", "o", "--json", cwd=tmp_path) for _ in range(2)]
    outputs = [one.communicate() for one in both]
    assert [(one.returncode, err) for one, (_, err) in zip(both, outputs, strict=True)] == [(0, ""), (0, "")]
    assert contents(tmp_path / "o").keys() == {Path(name) for name in FILES}
    result = json.loads((tmp_path / "o" / "result.json").read_text())
    assert all(json.loads(out)["values"] == result["values"] for out, _ in outputs)


@pytest.fixture(autouse=True, scope="module")
def listening_to_interrupts():
    """Tests that run in the background may have been told to ignore Ctrl-C, and would hand that down."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def long_work(write_model) -> Path:
    """A model whose heatmap takes some seconds."""
    random = torch.Generator().manual_seed(0)
    shape = (4096, 512)
    tensors = {f"layers.{layer}.mlp.up_proj.weight": torch.randn(shape, generator=random) for layer in range(12)}
    return write_model(tensors)


def started_work(model: Path, cwd: Path, command: str) -> subprocess.Popen:
    """A command that has just begun its work: it makes its directory first."""
    running = start(command, model, "--out", "o", cwd=cwd)
    while not (cwd / "o").exists() and running.poll() is None:
        time.sleep(0.01)
    return running


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
@pytest.mark.parametrize("command", ["heatmap", "indices"])
def test_signal_leaves_no_files(command, number, status, long_work, tmp_path):
    running = started_work(long_work, tmp_path, command)
    running.send_signal(number)
    out, err = running.communicate()
    assert (running.returncode, out) == (status, "")
    assert err == ("docs-sim: interrupted\n" if number == signal.SIGINT else "")
    assert not (tmp_path / "o").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.15, 0.2, 0.3, 0.6])
def test_early_interrupt_shows_no_traceback_of_ours(seconds, long_work, tmp_path):
    running = start("heatmap", long_work, "--out", "o", cwd=tmp_path)
    time.sleep(seconds)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()
    assert running.returncode in (130, -signal.SIGINT)
    assert ", in main" not in err, "before our first line Python has a traceback of its own"
    assert not (tmp_path / "o").exists()


CLOSED = {"output": ">&-", "errors": "2>&-", "both": ">&- 2>&-", "all": "<&- >&- 2>&-"}


@pytest.mark.skipif(sys.platform == "win32", reason="streams of a POSIX shell")
@pytest.mark.parametrize("streams", CLOSED)
@pytest.mark.parametrize(("arguments", "status"), [("models", 0), ("heatmap demo --out o", 0), ("inspect none", 2)])
def test_closed_streams_are_no_fault(arguments, status, streams, tmp_path):
    command = f"{PROGRAM} {arguments} {CLOSED[streams]}"
    ended = subprocess.run(["sh", "-c", command], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr
    if "heatmap" in arguments:
        assert contents(tmp_path / "o").keys() == {Path(name) for name in FILES}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_is_told(tmp_path):
    for stream, argument, told in (
        ("stdout", "models", "No space left"),
        ("stdout", "--help", "No space left"),
        ("stderr", "bogus", ""),
    ):
        with Path("/dev/full").open("w") as full:
            ended = start(argument, cwd=tmp_path, **{stream: full})
        _, err = ended.communicate()
        assert ended.returncode == 2
        assert told in (err or "")
        assert (err or "").count("\n") == (stream == "stdout")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_letters_that_the_terminal_lacks(stream, write_model, llama_tensors, tmp_path):
    directory = write_model(llama_tensors(), "modèle-模型")
    path = directory if stream == "stdout" else directory / "nicht-da"
    ended = start("inspect", path, cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    out, err = ended.communicate()
    assert ended.returncode == (0 if stream == "stdout" else 2)
    assert "mod\\xe8le-\\u6a21\\u578b" in (out if stream == "stdout" else err)


def test_the_package_is_a_program(tmp_path):
    command = [sys.executable, "-m", "docs_sim", "models"]
    assert "demo-moe" in subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout


def test_progress_shows_names_harmlessly(monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("docs_sim.cli.output._PATIENCE", 0.0)
    with progress_bar("[bold]\x1b[2J[/x] mlp_up", quiet=False) as bars:
        time.sleep(0.05)
        bars.pairs(1, 2)
        bars.arrived(1_500_000)
        time.sleep(0.2)
    shown = capfd.readouterr().err
    assert "[bold]\\x1b[2J[/x] mlp_up" in shown
    assert "\x1b[2J" not in shown
    assert "fetched 1.5 MB" in shown


class SlowProgress:
    """Lines of a progress bar, which take their time to be made."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add_task(self, description: str, total: None) -> int:
        time.sleep(0.05)
        self.lines.append(description)
        return len(self.lines) - 1

    def update(self, task: int, description: str) -> None:
        self.lines[task] = description


def test_bytes_that_arrive_at_once_are_one_line():
    progress = SlowProgress()
    fetched = _Fetched(progress)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fetched.advance, [1000] * 4))
    assert progress.lines == ["fetched 4.0 kB"]


@pytest.mark.parametrize("command", ["inspect", "heatmap"])
def test_headers_are_opened_under_a_progress_bar(command, run, model, monkeypatch):
    """Headers over the network may take minutes."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("docs_sim.cli.output._PATIENCE", 0.0)
    opened = docs_sim.checkpoint.open_checkpoint

    def slow(*arguments, arrived, **options):
        arrived(1_500_000)
        time.sleep(0.3)
        return opened(*arguments, arrived=arrived, **options)

    monkeypatch.setattr(docs_sim.checkpoint, "open_checkpoint", slow)
    shown = run(command, model).err
    assert "headers of tiny" in shown
    assert "fetched 1.5 MB" in shown


def test_wrong_usage_is_known_by_name():
    """BadParameter is one of several kinds of it; what typer ends with otherwise is none."""
    assert app._UsageError.__name__ == "UsageError"
    assert issubclass(typer.BadParameter, app._UsageError)
    assert not issubclass(typer.Exit, app._UsageError)
