"""Reading over HTTP, from a local server through HF_ENDPOINT: what is transferred, what is resumed, what is said."""

import errno
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import torch
from hub_server import COMMIT, Hub
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from docs_sim.checkpoint.hub_errors import explained, http_error
from docs_sim.checkpoint.remote import Address, RemoteFile, merged, missing
from docs_sim.errors import InputError

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


def only_line(ended: subprocess.CompletedProcess) -> str:
    """What is said of a wrong input."""
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
    assert len(ended.stderr) < 1000
    return ended.stderr


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ((401, "GatedRepo"), "is gated"),
        ((401, "Fault"), "log in anew with `hf auth login`"),
        ((403, "Fault"), "licence"),
        ((404, "RepoNotFound"), "private: log in"),
        ((404, "Fault"), "no such repository or revision"),
        ((418, "Fault"), "check HF_ENDPOINT"),
        ((429, "Fault"), "wait"),
        ((500, "Fault"), "try again later"),
        ((503, "Fault"), "try again later"),
    ],
)
def test_refusal_is_one_line_that_says_what_to_do(status, words, hub, run):
    hub.status = status
    line = only_line(run("inspect", "org/name"))
    assert words in line
    assert f"status {status[0]}" in line
    assert line.count("org/name") == 1


@pytest.mark.parametrize(("status", "words"), [(403, "licence"), (404, "no such"), (418, "HF_ENDPOINT")])
@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors"])
def test_refusal_of_a_file_is_one_line_that_says_what_to_do(name, status, words, hub, run):
    hub.refused[name] = status
    line = only_line(run("inspect", "org/name"))
    assert words in line
    assert f"status {status}" in line


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ((200, "text/html", b"<html>Welcome to our network</html>"), "'text/html' with status 200"),
        ((204, "text/html", b""), "status 204"),
        ((304, "text/html", b""), "status 304"),
        ((300, "text/html", b"choose"), "status 300"),
        ((200, "application/json", b""), "status 200"),
        ((200, "application/json", b"\xff"), "status 200"),
        ((200, "application/json", b"[" * 100_000), "status 200"),
        ((200, "application/json", b"1" * 10_000), "status 200"),
        ((200, "application/json", b"[]"), "a JSON list"),
        ((200, "application/json", b"null"), "a JSON NoneType"),
        ((200, "application/json", b"{}"), "the commit None"),
        ((200, "application/json", b'{"sha": 1, "siblings": []}'), "the commit 1"),
        ((200, "application/json", b'{"sha": "%b"}' % (b"x" * 5000)), "the commit 'x"),
        *(
            ((200, "application/json", b'{"sha": "%b", "siblings": %b}' % (COMMIT.encode(), siblings)), "list of files")
            for siblings in (b"1", b'{"a": 1}', b"[1]", b"[[]]", b'[{"name": 1}]', b'["a"]')
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_answer_that_is_not_of_the_hub_is_one_line(login, words, hub, run):
    hub.login, hub.login_at = login, "/api/models"
    line = only_line(run("inspect", "org/name"))
    assert words in line
    assert "no answer of the Hub" in line
    assert "browser" in line


def test_answers_to_questions_of_the_library_itself(hub, run):
    hub.login = (200, "application/json", b"[]")
    assert "no answer of the Hub" in only_line(run("inspect", "org/name"))


@pytest.mark.parametrize("status", [200, 204, 304])
@pytest.mark.parametrize("model", ["index", "one file"])
def test_answer_to_the_request_for_a_file_that_is_not_of_the_hub(model, status, hub, run, tensors):
    if model == "one file":
        for path in hub.folder.iterdir():
            path.unlink()
        save_file(tensors, hub.folder / "model.safetensors")
    hub.login, hub.login_at = (status, "text/html", b"<html>Welcome</html>"), "/resolve/"
    assert "no answer of the Hub" in only_line(run("inspect", "org/name"))


@pytest.mark.parametrize("commit", [None, "main", "../../x", "C" * 40])
def test_commit_that_is_none_is_refused(commit, hub, run, tmp_path):
    hub.commit = commit
    assert f"the commit {commit!r}" in only_line(run("inspect", "org/name"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": f"bytes 0-7/{'9' * 10_000}"},
        {"Content-Range": f"bytes {'9' * 10_000}-7/*"},
        {"Content-Range": "bytes 0-7/" + "9" * 19},
        {"X-Linked-Size": "9" * 4000},
        {"X-Linked-Size": "-5"},
        {"X-Linked-Size": str(1 << 63)},
    ],
    ids=lambda headers: str(headers)[:40],
)
def test_numbers_of_headers_are_shown_in_short(headers, hub, run):
    hub.headers = headers
    assert "safetensors" in only_line(run("inspect", "org/name"))


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


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        (["--offline"], {}, "leave --offline out to fetch what is needed"),
        ([], {"HF_HUB_OFFLINE": "1"}, "unset HF_HUB_OFFLINE to fetch what is needed"),
    ],
    ids=["option", "variable"],
)
def test_offline_asks_nobody(options, environment, words, hub, run):
    line = only_line(run(*HEATMAP, *options, **environment))
    assert words in line
    assert "hf download org/name" in line
    assert hub.requests == []


def test_no_network(hub, run):
    line = only_line(run(*HEATMAP, HF_ENDPOINT="http://127.0.0.1:9"))
    assert "cannot be reached" in line
    assert "not in the Hugging Face cache" in line
    assert line.count("org/name") == 1


@pytest.mark.parametrize("endpoint", ["nowhere", "ftp://127.0.0.1"])
def test_endpoint_that_is_no_address(endpoint, hub, run):
    assert "org/name" in only_line(run("inspect", "org/name", HF_ENDPOINT=endpoint))


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
    assert "status 403" in ended.stderr
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


ODD_NAMES = ["../x.json", "/x.json", "a\\x.json", "C:x.json", "a\0.json", "a/../../x.json", "\ud800.safetensors"]


def test_names_that_lead_elsewhere_are_left_out(hub, run, tmp_path):
    hub.listed = tuple(ODD_NAMES)
    assert run("inspect", "org/name").returncode == 0
    assert not list(tmp_path.rglob("x.json"))


@pytest.mark.parametrize("name", ODD_NAMES[:-1])
def test_odd_name_alone_is_no_model(name, hub, run, tmp_path):
    for path in hub.folder.iterdir():
        path.unlink()
    hub.listed = (name.replace("json", "safetensors"),)
    assert "holds no weights" in only_line(run("inspect", "org/name"))


def test_index_that_leads_elsewhere_is_refused(hub, run):
    index = hub.folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    ended = run(*HEATMAP)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "outside its directory" in ended.stderr


@pytest.mark.parametrize("files", [("config.json",), ()], ids=["small files first", "weights at once"])
def test_home_that_is_a_file(files, hub, run, tmp_path, tensors):
    if not files:
        for path in hub.folder.iterdir():
            path.unlink()
        save_file(tensors, hub.folder / "model.safetensors")
    (tmp_path / "home").write_text("")
    line = only_line(run("inspect", "org/name"))
    assert f"{tmp_path / 'home'}': cannot be read or written: Not a directory; see HF_HOME" in line
    assert "token" not in line


def test_folder_of_ranges_that_is_a_file(hub, run, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "docs-sim").write_text("")
    line = only_line(run(*HEATMAP))
    assert "docs-sim" in line
    assert "cannot be written: Not a directory; see HF_HOME" in line


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.ENOSPC, "No space left on device", "/cache/blobs/x.incomplete"),
        OSError(errno.EROFS, "Read-only file system", "/cache/token"),
        PermissionError(errno.EACCES, "Permission denied", "/cache/token"),
    ],
    ids=str,
)
def test_cache_that_cannot_be_written(error):
    with pytest.raises(InputError, match="see HF_HOME") as caught, explained("org/name", None):
        raise error
    assert error.strerror in str(caught.value)
    assert "token" not in str(caught.value)


@pytest.mark.parametrize("full", [True, False], ids=["full", "read-only"])
def test_folder_of_ranges_that_takes_nothing(full, tmp_path, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC if full else errno.EROFS, "no room")

    monkeypatch.setattr(RemoteFile, "_stream", refuse)
    with pytest.raises(InputError, match="no room; see HF_HOME"):
        unfetched(tmp_path / "sparse").fetch(0, 8)


def test_fault_of_the_program_stays_one():
    with pytest.raises(RuntimeError), explained("org/name", None):
        raise RuntimeError("a fault")


@pytest.mark.parametrize("status", [429, 500])
def test_status_is_told_where_it_does_not_pass(status, tmp_path, monkeypatch):
    class Refusal(http_error()):
        response = SimpleNamespace(status_code=status)

    def refuse(*arguments: object) -> None:
        raise Refusal("refused")

    monkeypatch.setattr(RemoteFile, "_stream", refuse)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(InputError, match=f"file: the server answers with status {status}"):
        unfetched(tmp_path / "sparse").fetch(0, 8)


def unfetched(path: Path) -> RemoteFile:
    address = Address("http://127.0.0.1:9", {})
    return RemoteFile(address, "file", 8, path, lambda: address, lambda count: None)


class SlowPath(type(Path())):
    """A path that takes its time to be looked up, so that threads take turns meanwhile."""

    def __hash__(self) -> int:
        time.sleep(0.01)
        return super().__hash__()


def test_threads_take_turns_at_one_file(tmp_path, monkeypatch):
    at_once, most = [], []

    def fetched(remote: RemoteFile, begin: int, end: int) -> None:
        at_once.append(begin)
        most.append(len(at_once))
        time.sleep(0.05)
        at_once.pop()

    monkeypatch.setattr(RemoteFile, "_persist", fetched)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: unfetched(SlowPath(tmp_path / "sparse")).fetch(0, 8), range(4)))
    assert most == [1] * 4


def test_sparse_file_that_goes_away_while_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(RemoteFile, "fetch", lambda *arguments: None)
    with pytest.raises(InputError, match="cannot be read"):
        unfetched(tmp_path / "sparse").fetch_header()


def test_errors_of_the_http_library_are_known_by_name(monkeypatch):
    """A broken connection, a time that is over, and a status are of this class; errors of files are not."""
    kind = http_error()
    assert kind.__name__ == "HTTPError"
    assert issubclass(HfHubHTTPError, kind)
    assert not issubclass(OSError, kind)
    assert not issubclass(kind, HfHubHTTPError)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(kind), get_session().stream("GET", "http://127.0.0.1:9"):
        pass


ARRIVED = """
import sys
from docs_sim.checkpoint import open_checkpoint
counts = []
checkpoint = open_checkpoint(sys.argv[1], arrived=counts.append)
print(sum(counts))
checkpoint.matrices("mlp_up")[1].load()
print(sum(counts))
"""


def test_headers_and_weights_are_told_as_they_arrive_also_those_of_an_adapter(adapter, hub, run):
    pieces = hub.adapter / "adapter_model.safetensors"
    for model, files in [("org/name", []), (f"org/adapter+{hub.folder}", [pieces])]:
        hub.sent.clear()
        process = run.begun("-c", ARRIVED, model)
        headers, everything = map(int, process.communicate()[0].split())
        assert headers > 0
        assert everything == sum(count for name, count in hub.sent.items() if name.endswith(".safetensors"))
        assert everything > headers
        assert all(everything == path.stat().st_size for path in files)


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


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["pytorch_model.bin"], "unpickling"),
        (["a.safetensors", "b.safetensors"], "several checkpoints"),
        (["adapter_model.safetensors"], "ADAPTER+BASE"),
    ],
)
def test_what_is_cached_but_cannot_be_used_asks_nobody(names, words, hub, run, tmp_path):
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in names:
        (snapshot / name).touch()
    assert words in only_line(run("inspect", "org/name"))
    assert hub.requests == []


@pytest.mark.parametrize("content", ["{", '{"weight_map": 1}', '{"weight_map": {"a": "../x"}}'])
def test_index_in_the_cache_that_is_not_valid_asks_nobody(content, hub, run, tmp_path):
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in only_line(run("inspect", "org/name"))
    assert hub.requests == []


@pytest.mark.parametrize("names", [["config.json"], ["model-00001-of-00003.safetensors"]])
def test_what_is_cached_in_part_is_completed(names, hub, run, tmp_path):
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in names:
        (snapshot / name).write_bytes((hub.folder / name).read_bytes())
    assert run("inspect", "org/name").returncode == 0


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
