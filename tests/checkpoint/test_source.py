"""A MODEL argument -> where its weights lie."""

from pathlib import Path

import huggingface_hub.constants
import pytest

from docs_sim.checkpoint import open_checkpoint
from docs_sim.checkpoint.hub import is_cached
from docs_sim.checkpoint.source import BUILT_IN, aliases, find_source
from docs_sim.errors import InputError

OLD, NEW = "0" * 39 + "1", "f" * 39 + "2"
LLAMA = aliases()["llama-3.1-8b"]


@pytest.fixture
def folder(tmp_path):
    """Make a folder that holds empty files of these names."""

    def make(*names: str) -> Path:
        directory = tmp_path / "my-llama"
        directory.mkdir()
        for name in names:
            (directory / name).touch()
        return directory

    return make


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors.index.json", "model.safetensors", "x.gguf"], "model.safetensors.index.json"),
        (["model.safetensors", "consolidated.safetensors", "x.gguf"], "model.safetensors"),
        (["model.safetensors", "adapter_model.safetensors"], "model.safetensors"),
        (["a.safetensors.index.json", "a-1-of-2.safetensors", "a-2-of-2.safetensors"], "a.safetensors.index.json"),
        (["weights.safetensors", "x.gguf"], "weights.safetensors"),
        (["q4.gguf", "README.md"], "q4.gguf"),
        (["model.safetensors", "pytorch_model.bin"], "model.safetensors"),
    ],
)
def test_choice_inside_a_directory(names, chosen, folder):
    source = find_source(folder(*names))
    assert source.weights.name == chosen
    assert source.name == "my-llama"
    assert source.revision is None


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "holds no weights"),
        (["config.json", "README.md"], "holds no weights"),
        (["a.safetensors", "b.safetensors"], r"several checkpoints \('a.safetensors', 'b.safetensors'\)"),
        (["a.gguf", "b.gguf"], r"several checkpoints \('a.gguf', 'b.gguf'\)"),
        (["pytorch_model.bin"], r"save_pretrained\(NEW_DIR\)"),
        (["pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"], r"save_pretrained\(NEW_DIR\)"),
        (["consolidated.00.pth"], r"save_pretrained\(NEW_DIR\)"),
        (["adapter_model.safetensors", "adapter_config.json"], r"ADAPTER\+BASE"),
    ],
)
def test_directory_that_is_refused(names, words, folder):
    directory = folder(*names)
    with pytest.raises(InputError, match=words) as caught:
        find_source(directory)
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickled_file_is_refused_with_the_conversion(name, folder):
    path = folder(name) / name
    with pytest.raises(InputError, match="unpickling are not read; convert") as caught:
        find_source(path)
    assert str(path) in str(caught.value)


def test_other_file_is_refused(folder):
    with pytest.raises(InputError, match="is not a checkpoint"):
        find_source(folder("notes.txt") / "notes.txt")


@pytest.mark.parametrize(
    ("file", "name"), [("model.safetensors", "my-llama"), ("q4_k.gguf", "q4_k"), ("epoch-3.safetensors", "epoch-3")]
)
def test_file_is_named_for_titles(file, name, folder):
    source = find_source(folder(file) / file)
    assert (source.name, source.weights.name) == (name, file)


def test_home_directory_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder("model.safetensors").parent))
    assert find_source("~/my-llama").weights.is_file()


@pytest.mark.parametrize(
    "model",
    [
        *("./nothing", "/no/such/place", "no/such/place", "nothing.safetensors", "nothing.gguf", "../nothing", "a\0b"),
        pytest.param("n" * 300, id="name longer than the system allows"),
        pytest.param("d/" * 3000, id="path longer than the system allows"),
        "~no-such-user/model",
    ],
)
def test_path_that_is_not_there(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such"):
        find_source(model)


def test_empty_name_is_not_the_current_directory(folder, monkeypatch):
    monkeypatch.chdir(folder("model.safetensors"))
    with pytest.raises(InputError):
        find_source("")


@pytest.mark.parametrize(
    ("typed", "proposal"), [("llama-3.1-8", "llama-3.1-8b"), ("demo-tunned", "demo-tuned"), ("GTP2", "gpt2")]
)
def test_unknown_short_name_proposes_the_nearest(typed, proposal):
    with pytest.raises(InputError, match="did you mean") as caught:
        find_source(typed)
    assert proposal in str(caught.value)


def test_short_name_like_no_other_points_to_the_list():
    with pytest.raises(InputError, match="docs-sim models"):
        find_source("xyzzyxyzzy")


def test_aliases_are_lower_case_hub_ids_and_hide_no_built_in():
    assert all(alias == alias.lower() and hub_id.count("/") == 1 for alias, hub_id in aliases().items())
    assert not aliases().keys() & BUILT_IN.keys()


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_name_wins_over_a_folder_of_that_name(name, write_model, llama_tensors, tmp_path, monkeypatch):
    write_model(llama_tensors(), name)
    monkeypatch.chdir(tmp_path)
    assert tmp_path not in find_source(name).weights.parents
    for path in (f"./{name}", Path(name)):
        assert find_source(path).weights.resolve() == tmp_path / name / "model.safetensors"


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_model_opens(name):
    checkpoint = open_checkpoint(name)
    assert checkpoint.name == name
    assert checkpoint.layers == list(range(8))
    standard = {"attn_q", "attn_k", "attn_v", "attn_o", "mlp_gate", "mlp_up", "mlp_down"}
    assert all({one.name for one in checkpoint.matrices() if one.layer == layer} >= standard for layer in range(8))


def test_revision_of_a_local_path_is_refused(folder):
    with pytest.raises(InputError, match="--revision"):
        find_source(folder("model.safetensors"), "main")


def test_revision_of_a_built_in_is_refused():
    with pytest.raises(InputError, match="--revision"):
        find_source("demo", "main")


@pytest.fixture
def hub_cache(tmp_path, monkeypatch, llama_tensors, write_model) -> Path:
    """A Hugging Face cache: LLAMA at two commits, ``main`` and a pull request at the new, ``v1`` at the old one."""
    cache = tmp_path / "hub"
    folder = cache / f"models--{LLAMA.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True)
    for layers, commit in ((2, OLD), (3, NEW)):
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        blob = folder / "blobs" / f"blob-{layers}"
        (write_model(llama_tensors(layers)) / "model.safetensors").rename(blob)
        (snapshot / "model.safetensors").symlink_to(Path("../../blobs") / blob.name)
    references = {"main": NEW, "v1": OLD, "refs/pr/1": NEW}
    for name, commit in references.items():
        (folder / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / name).write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return folder


@pytest.mark.parametrize("model", [LLAMA, "llama-3.1-8b", "Llama-3.1-8B"])
@pytest.mark.parametrize(
    ("revision", "commit", "layers"),
    [(None, NEW, 3), ("main", NEW, 3), ("v1", OLD, 2), ("refs/pr/1", NEW, 3), (OLD, OLD, 2), (NEW, NEW, 3)],
)
def test_snapshot_of_the_hub_cache(model, revision, commit, layers, hub_cache):
    checkpoint = open_checkpoint(model, revision)
    assert len(checkpoint.layers) == layers
    assert checkpoint.source.revision == commit
    assert "/" not in checkpoint.name


def test_snapshot_without_a_reference(hub_cache):
    for reference in ("main", "v1", "refs/pr/1"):
        (hub_cache / "refs" / reference).unlink()
    assert open_checkpoint(LLAMA).source.revision in (OLD, NEW)


@pytest.mark.parametrize("revision", ["v2", "../../x", f"../snapshots/{OLD}", "/etc", ".", "..", "refs", "\0"])
def test_revision_that_is_not_there(revision, hub_cache):
    (hub_cache.parent / "x").mkdir()
    with pytest.raises(InputError, match="main") as caught:
        open_checkpoint(LLAMA, revision)
    assert LLAMA in str(caught.value)


def test_every_revision_that_the_message_names_is_accepted(hub_cache):
    with pytest.raises(InputError) as caught:
        open_checkpoint(LLAMA, "v2")
    named = str(caught.value).split("which has ")[1].split("; ")[0].split(", ")
    assert len(named) == 5
    for revision in named:
        assert open_checkpoint(LLAMA, revision).source.revision in (OLD, NEW)


@pytest.mark.parametrize("content", [b"../../../x", b"", b"\xff\xfe", b"gone", OLD.encode() + b"x" * 10**6])
def test_reference_to_no_snapshot_is_refused(content, hub_cache):
    (hub_cache / "refs" / "v1").write_bytes(content)
    with pytest.raises(InputError, match="v1"):
        open_checkpoint(LLAMA, "v1")


def test_blob_that_is_not_yet_downloaded(hub_cache):
    (hub_cache / "blobs" / "blob-3").unlink()
    with pytest.raises(InputError) as caught:
        open_checkpoint(LLAMA)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["someone/else", "gpt2"])
def test_model_that_is_not_in_the_cache(model, hub_cache):
    with pytest.raises(InputError, match="hf download"):
        open_checkpoint(model)


def test_cache_that_may_not_be_read(hub_cache, monkeypatch):
    def refuse(path: Path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for question in (lambda: open_checkpoint(LLAMA), lambda: is_cached(LLAMA)):
        with pytest.raises(InputError, match="Permission denied"):
            question()


def test_folder_that_may_not_be_read(folder, monkeypatch):
    def refuse(path: Path):
        raise PermissionError(13, "Permission denied", str(path))

    path = folder("model.safetensors")
    for method in ("is_file", "exists"):
        monkeypatch.setattr(Path, method, refuse)
        with pytest.raises(InputError, match="Permission denied"):
            open_checkpoint(path)


def test_working_directory_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError):
        open_checkpoint(".")


def test_cached_models_are_known(hub_cache):
    assert is_cached(LLAMA)
    assert not is_cached(aliases()["gpt2"])


def test_local_folder_wins_over_the_hub(hub_cache, write_model, llama_tensors, tmp_path, monkeypatch):
    write_model(llama_tensors(5), LLAMA)
    monkeypatch.chdir(tmp_path)
    assert len(open_checkpoint(LLAMA).layers) == 5


def test_cache_of_the_reference_checkpoints(shared, tmp_path, monkeypatch):
    original = shared / "zoo-variants" / "hf_cache"
    if not original.is_dir():
        pytest.skip(f"{original} is not there")
    for path in original.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(original)
            copy.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            # Where links did not survive the way here, a small file holds what the link said.
            if content.startswith(b"../../blobs/"):
                copy.symlink_to(content.decode())
            else:
                copy.write_bytes(content)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    checkpoint = open_checkpoint("tiny/llama")
    assert checkpoint.layers == [0, 1, 2]
    assert checkpoint.source.revision == "0123456789abcdef0123456789abcdef01234567"


def test_a_folder_that_is_just_called_model_goes_by_its_parent(tmp_path):
    for parent in ("one", "two"):
        (tmp_path / parent / "model").mkdir(parents=True)
        (tmp_path / parent / "model" / "model.safetensors").touch()
    assert find_source(tmp_path / "one" / "model").name == "one-model"
    assert find_source(tmp_path / "two" / "model" / "model.safetensors").name == "two-model"


@pytest.mark.parametrize(
    "names", [("model-00001-of-00004.safetensors",), ("a-00001-of-00002.safetensors", "b.safetensors")]
)
def test_a_part_is_not_taken_for_the_whole(names, folder):
    directory = folder(*names)
    with pytest.raises(InputError, match="parts of a checkpoint"):
        find_source(directory)
    with pytest.raises(InputError, match="one part of a checkpoint"):
        find_source(directory / names[0])
