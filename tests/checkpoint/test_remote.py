"""Reading over HTTP, from a local server through HF_ENDPOINT: what is transferred, what is resumed, what is said."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hub_server import COMMIT, Hub
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from docs_sim.checkpoint.remote import merged, missing

WIDTH, INNER, LAYERS = 256, 512, 6


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (WIDTH, WIDTH),
        "self_attn.v_proj": (WIDTH, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    return {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=random).bfloat16()
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }


@pytest.fixture
def hub(tmp_path, tensors):
    """A Hub with a model in three shards."""
    folder = tmp_path / "served"
    folder.mkdir()
    write_shards(folder, tensors, 3)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    yield from Hub(folder).served()


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], count: int) -> None:
    files = [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
    weight_map = {name: files[position % count] for position, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name, held in weight_map.items() if held == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def run(hub, tmp_path):
    """The program, with this Hub and a cache of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        command = [sys.executable, "-m", "docs_sim", *arguments]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=tmp_path, env=kept | variables | environment
        )

    return run


HEATMAP = ("heatmap", "org/name", "--matrix", "mlp_up", "--json", "--out", "o")


def of_matrices(layers: int = LAYERS) -> int:
    return layers * WIDTH * INNER * 2


def overhead(hub: Hub) -> int:
    """Headers and JSON files."""
    headers = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in hub.folder.glob("*.safetensors"))
    return headers + sum(path.stat().st_size for path in hub.folder.glob("*.json"))


def test_transfers_what_the_command_needs_and_the_second_run_nothing(hub, run):
    first = run(*HEATMAP)
    assert (first.returncode, first.stderr) == (0, "")
    assert sum(hub.sent.values()) <= (of_matrices() + overhead(hub)) * 1.02
    local = run("heatmap", str(hub.folder), "--matrix", "mlp_up", "--json", "--out", "l")
    assert json.loads(first.stdout)["values"] == json.loads(local.stdout)["values"]
    assert json.loads(first.stdout)["model"]["revision"] == COMMIT
    hub.sent.clear()
    second = run(*HEATMAP)
    assert json.loads(second.stdout)["values"] == json.loads(first.stdout)["values"]
    assert sum(hub.sent.values()) == 0


def test_inspect_transfers_headers_only(hub, run):
    ended = run("inspect", "org/name", "--json")
    assert len(json.loads(ended.stdout)["matrices"]) == 7 * LAYERS
    assert sum(hub.sent.values()) <= overhead(hub)


def test_new_version_of_a_file_is_fetched_anew(hub, run, tensors):
    before = json.loads(run(*HEATMAP).stdout)["values"]
    changed = {name: (tensor if ".0." in name else tensor.flip(1)) for name, tensor in tensors.items()}
    write_shards(hub.folder, changed, 3)
    assert json.loads(run(*HEATMAP).stdout)["values"] != before


def test_broken_connection_is_resumed_where_it_broke(hub, run):
    hub.breaks_after += [100_000, 150_000]
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert hub.breaks_after == []
    assert sum(hub.sent.values()) <= (of_matrices() + overhead(hub)) * 1.02


def test_server_without_ranges_still_works_with_a_warning(hub, run):
    hub.ranges = False
    ended = run(*HEATMAP)
    assert ended.returncode == 0
    assert "warning" in ended.stderr
    assert "whole files" in ended.stderr
    hub.sent.clear()
    assert run(*HEATMAP).returncode == 0
    assert sum(hub.sent.values()) == 0


def test_many_shards_are_opened_side_by_side(hub, run, tensors):
    for path in hub.folder.glob("*.safetensors*"):
        path.unlink()
    many = {f"model.layers.{layer}.mlp.up_proj.weight": torch.randn(8, 8) for layer in range(70)}
    write_shards(hub.folder, many, 70)
    hub.delay = 0.02
    ended = run("inspect", "org/name", "--json")
    assert len(json.loads(ended.stdout)["matrices"]) == 70
    assert hub.most_at_once > 2


def test_what_is_in_the_cache_is_not_fetched(hub, run, tmp_path):
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    shard = "model-00001-of-00003.safetensors"
    (snapshot / shard).write_bytes((hub.folder / shard).read_bytes())
    (snapshot / "model.safetensors.index.json").write_bytes((hub.folder / "model.safetensors.index.json").read_bytes())
    assert run(*HEATMAP).returncode == 0
    assert shard not in hub.sent
    for path in hub.folder.iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    hub.requests.clear()
    assert run(*HEATMAP).returncode == 0
    assert hub.requests == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ((401, "GatedRepo"), "is gated"),
        ((404, "RepoNotFound"), "private: log in"),
        ((500, "Fault"), "cannot be reached"),
    ],
)
def test_refusal_is_one_line_that_says_what_to_do(status, words, hub, run):
    hub.status = status
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert words in ended.stderr


def test_other_bytes_than_were_asked_for_are_refused(hub, run):
    hub.shifted = 1
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "other bytes" in ended.stderr


def test_sparse_file_that_is_gone_is_fetched_anew(hub, run, tmp_path):
    first = json.loads(run(*HEATMAP).stdout)["values"]
    for path in (tmp_path / "home" / "docs-sim").rglob("*"):
        if path.is_file() and path.suffix != ".ranges":
            path.unlink()
    assert json.loads(run(*HEATMAP).stdout)["values"] == first


def test_revision_that_is_not_there(hub, run):
    ended = run(*HEATMAP, "--revision", "v9")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "no revision 'v9'" in ended.stderr


@pytest.mark.parametrize("offline", ["option", "variable"])
def test_offline_asks_nobody(offline, hub, run):
    ended = run(*HEATMAP, "--offline") if offline == "option" else run(*HEATMAP, HF_HUB_OFFLINE="1")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "hf download org/name" in ended.stderr
    assert hub.requests == []


def test_no_network(hub, run):
    ended = run(*HEATMAP, HF_ENDPOINT="http://127.0.0.1:9")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "cannot be reached" in ended.stderr


ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


@given(there=ranges, begin=st.integers(0, 30), end=st.integers(0, 30))
def test_ranges_as_sets(there, begin, end):
    held = {place for first, last in there for place in range(first, last)}
    joined = merged(there)
    assert {place for first, last in joined for place in range(first, last)} == held
    assert all(last < first for (_, last), (first, _) in pairwise(joined))
    gaps = missing(joined, begin, end)
    assert {place for first, last in gaps for place in range(first, last)} == set(range(begin, end)) - held
