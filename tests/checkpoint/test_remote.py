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

from docs_sim.checkpoint.remote import Address, RemoteFile, merged, missing

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

    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}

    def begun(*arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=kept | variables | environment,
        )

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        process = begun("-m", "docs_sim", *arguments, **environment)
        output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    run.begun = begun
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


@pytest.fixture
def store(hub):
    """Another server, of the same machine by another name, that has the files and is sent to by the Hub."""
    for store in Hub(hub.folder).served():
        store.url = store.url.replace("127.0.0.1", "localhost")
        yield store


def test_address_that_expires_is_renewed(hub, store, run):
    store.lifetime = 2  # the length of a header and the header
    hub.elsewhere = (store.url, ("HEAD",))
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert hub.addresses > 3
    assert sum(store.sent.values()) <= (of_matrices() + overhead(hub)) * 1.02


def test_address_that_expires_at_once_is_refused(hub, store, run):
    store.lifetime = 0
    hub.elsewhere = (store.url, ("HEAD",))
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "refuses (403)" in ended.stderr
    assert hub.addresses <= 6  # twice for each of three files, of which some may not have had their turn


@pytest.mark.parametrize("methods", [("HEAD",), ("GET",)], ids=str)
def test_token_is_told_to_the_hub_alone(methods, hub, store, run):
    hub.elsewhere = (store.url, methods)
    assert run(*HEATMAP, HF_TOKEN="hf_secret").returncode == 0
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert store.sent
    assert set(store.tokens) == {None}


@pytest.mark.parametrize(
    "behaviour",
    [
        {"shifted": 1},
        {"total": "7"},
        {"surplus": 1},
        {"surplus": -1},
        {"surplus": 1, "lengths": False},
        {"ranges": False, "surplus": 1},
        {"ranges": False, "surplus": -1},
        {"ranges": False, "surplus": 1, "lengths": False},
    ],
    ids=str,
)
def test_other_bytes_than_were_asked_for_are_refused(behaviour, hub, run):
    for name, value in behaviour.items():
        setattr(hub, name, value)
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ["other bytes" in line for line in ended.stderr.splitlines() if "warning" not in line] == [True]


def test_short_answers_of_unknown_length_are_gone_on_from(hub, run):
    hub.surplus, hub.lengths = -100_000, False
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr) == (0, "")
    local = run("heatmap", str(hub.folder), "--matrix", "mlp_up", "--json", "--out", "l")
    assert json.loads(ended.stdout)["values"] == json.loads(local.stdout)["values"]


@pytest.mark.parametrize("name", ["../x.json", "/x.json", "a\\x.json", "C:x.json", "a\0.json", "a/../../x.json"])
def test_names_that_lead_elsewhere_are_refused(name, hub, run, tmp_path):
    hub.listed = (name,)
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "not valid" in ended.stderr
    assert not list(tmp_path.rglob("x.json"))


def test_index_that_leads_elsewhere_is_refused(hub, run):
    index = hub.folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "outside its directory" in ended.stderr


def test_home_that_is_a_file(hub, run, tmp_path):
    (tmp_path / "home").write_text("")
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "cannot be written" in ended.stderr
    assert "home" in ended.stderr


def test_folder_of_ranges_that_is_a_file(hub, run, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "docs-sim").write_text("")
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "docs-sim" in ended.stderr
    assert "cannot be written" in ended.stderr


FETCH = """
import sys
from docs_sim.checkpoint.repository import open_repository
file = open_repository("org/name", None).file(sys.argv[1])
for begin in map(int, sys.argv[2:]):
    file.fetch(begin, begin + 70_000)
"""


def test_processes_that_fetch_at_once_lose_nothing(hub, run, tmp_path):
    """Four processes, overlapping ranges in other orders; afterwards the list vouches for all, and rightly."""
    name = "model-00001-of-00003.safetensors"
    content = (hub.folder / name).read_bytes()
    begins = list(range(0, len(content), 50_000))
    orders = [begins, begins[::-1], begins[1::2] + begins[::2], begins[::2] + begins[1::2]]
    processes = [run.begun("-c", FETCH, name, *map(str, order)) for order in orders]
    assert [process.wait() for process in processes] == [0] * 4
    (sparse,) = (path for path in (tmp_path / "home" / "docs-sim").rglob("*") if path.is_file() and not path.suffix)
    assert sparse.read_bytes() == content
    assert json.loads(sparse.with_suffix(".ranges").read_text()) == [[0, len(content)]]


NOTE = """
import sys
from pathlib import Path
from docs_sim.checkpoint.remote import Address, RemoteFile
address = Address("http://127.0.0.1:9", {})
remote = RemoteFile(address, "file", 2000, Path(sys.argv[1]), lambda: address, lambda count: None)
with remote._sparse() as file:
    for begin in range(int(sys.argv[2]), 2000, 8):
        remote._note(file, begin, begin + 1)
"""


def test_processes_that_note_at_once_lose_nothing(run, tmp_path):
    processes = [run.begun("-c", NOTE, str(tmp_path / "sparse"), str(2 * number)) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    noted = json.loads((tmp_path / "sparse.ranges").read_text())
    assert noted == [[begin, begin + 1] for begin in range(0, 2000, 2)]


def test_bytes_are_on_the_disk_before_the_list_vouches_for_them(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append("synced"))
    monkeypatch.setattr(Path, "replace", lambda path, target: done.append("listed"))
    address = Address("http://127.0.0.1:9", {})
    remote = RemoteFile(address, "file", 8, tmp_path / "sparse", lambda: address, lambda count: None)
    with remote._sparse() as file:
        remote._write(file, 0, 8, iter([b"1234", b"5678"]))
    assert done == ["synced", "listed"]
    assert (tmp_path / "sparse").read_bytes() == b"12345678"


@pytest.fixture
def adapter(hub, tmp_path):
    """A LoRA adapter on the Hub, of layer 1."""
    hub.adapter = tmp_path / "served-adapter"
    hub.adapter.mkdir()
    random = torch.Generator().manual_seed(1)
    up = "base_model.model.model.layers.1.mlp.up_proj"
    pieces = {
        f"{up}.lora_A.weight": torch.randn((4, WIDTH), generator=random),
        f"{up}.lora_B.weight": torch.randn((INNER, 4), generator=random),
    }
    save_file(pieces, hub.adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (hub.adapter / "adapter_config.json").write_text(json.dumps(settings))
    return hub.adapter


def on_base(model: str) -> tuple[str, ...]:
    return ("heatmap", model, "--matrix", "mlp_up", "--json", "--out", "o")


def test_adapter_of_the_hub(adapter, hub, run):
    first = run(*on_base("org/adapter+org/name"))
    assert (first.returncode, first.stderr) == (0, "")
    result = json.loads(first.stdout)
    assert result["model"]["name"] == "org--adapter+org--name"
    local = run(*on_base(f"{adapter}+{hub.folder}"))
    assert result["values"] == json.loads(local.stdout)["values"]
    assert result["values"] != json.loads(run(*on_base(str(hub.folder))).stdout)["values"]
    hub.sent.clear()
    second = run(*on_base("org/adapter+org/name"))
    assert json.loads(second.stdout)["values"] == result["values"]
    assert sum(hub.sent.values()) == 0


def test_revision_is_of_the_base(adapter, hub, run):
    assert run(*on_base("org/adapter+org/name"), "--revision", COMMIT).returncode == 0
    asked = [file for _, file, _ in hub.requests if "." not in file]
    assert asked == [COMMIT, "adapter"]


def test_adapter_of_the_hub_that_cannot_be_had(adapter, hub, run):
    for model, options, words in [
        (f"org/adapter+{hub.folder}", ["--offline"], "hf download org/adapter"),
        (f"org/none+{hub.folder}", [], "org/none: is not on the Hub"),
        (f"org/name+{hub.folder}", [], "org/name: is no LoRA adapter"),
        ("org/adapter", [], "ADAPTER+BASE"),
    ]:
        ended = run(*on_base(model), *options)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert words in ended.stderr
    hub.status = (401, "GatedRepo")
    assert "org/adapter: is gated" in run(*on_base(f"org/adapter+{hub.folder}")).stderr


def test_fault_in_the_cache_is_told_where_the_hub_is_out_of_reach(hub, run, tmp_path):
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in ("model.safetensors.index.json", "config.json", "model-00001-of-00003.safetensors"):
        (snapshot / name).write_bytes((hub.folder / name).read_bytes())
    for ended in (run(*HEATMAP, "--offline"), run(*HEATMAP, HF_ENDPOINT="http://127.0.0.1:9")):
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "model-00002-of-00003.safetensors" in ended.stderr
        assert "which is not there" in ended.stderr
    assert run(*HEATMAP).returncode == 0


def test_several_gguf_files_and_parts(hub, run):
    for path in hub.folder.glob("*.safetensors*"):
        path.unlink()
    (hub.folder / "q4.gguf").write_bytes(b"GGUF")
    assert "not read over the network" in run(*HEATMAP).stderr
    (hub.folder / "q8.gguf").write_bytes(b"GGUF")
    assert "several checkpoints ('q4.gguf', 'q8.gguf')" in run(*HEATMAP).stderr


ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


@given(there=ranges, begin=st.integers(0, 30), end=st.integers(0, 30))
def test_ranges_as_sets(there, begin, end):
    held = {place for first, last in there for place in range(first, last)}
    joined = merged(there)
    assert {place for first, last in joined for place in range(first, last)} == held
    assert all(last < first for (_, last), (first, _) in pairwise(joined))
    gaps = missing(joined, begin, end)
    assert {place for first, last in gaps for place in range(first, last)} == set(range(begin, end)) - held
