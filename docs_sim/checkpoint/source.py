"""A MODEL argument -> which files hold its weights: built-in models, paths, Hub ids in the cache, short aliases."""

import difflib
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath

from docs_sim.checkpoint.hub import cached_snapshot
from docs_sim.checkpoint.remote import Repository, cache_directory, is_offline, open_repository
from docs_sim.errors import InputError

BUILT_IN = {
    "demo": "a small llama trained on the Python documentation",
    "demo-tuned": "demo, fine-tuned on the King James Bible",
    "demo-moe": "a mixture of 4 experts a layer, upcycled from demo",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHARD = re.compile(r"-\d{1,6}-of-(\d{1,6})\.safetensors$")
_PLAIN_FOLDERS = re.compile(
    r"models?|model_weights|weights|(checkpoint|step|epoch)([-_]?\d+)?|final|output|merged|best|last", re.I
)
_MAX_INDEX_BYTES = 100_000_000
_ADAPTER = "adapter_model.safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_CONVERSION = (
    "files that need unpickling are not read; convert them with transformers: "
    "AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors"
)


@dataclass(frozen=True)
class Source:
    """Where a checkpoint lies.

    Attributes:
        name: what to call it in titles and file names.
        weights: the index, the safetensors file or the GGUF file.
        revision: the commit, for a snapshot of the Hugging Face cache.
        adapter: the weights of a LoRA adapter that is put on it.
        remote: where to fetch what is not in the directory.
    """

    name: str
    weights: Path
    revision: str | None = None
    adapter: Path | None = None
    remote: Repository | None = field(default=None, compare=False)

    @property
    def directory(self) -> Path:
        """Where config.json stands, if there is one."""
        return self.weights.parent


@cache
def aliases() -> dict[str, str]:
    """Short names of well-known open models -> Hub ids (``aliases.toml``)."""
    return tomllib.loads((files(__package__) / "aliases.toml").read_text(encoding="utf-8"))


def find_source(model: str | Path, revision: str | None = None, *, offline: bool = False) -> Source:
    """Find the weights that ``model`` means.

    Args:
        model: a built-in name, a directory, a .safetensors, .index.json or .gguf file, a Hub id or a short alias.
        revision: a branch, tag or commit; only for Hub ids and aliases.
        offline: whether to do without the network; it is used only for what is not in the cache.

    Raises:
        InputError: if there is nothing of that name, or no weights that can be read.
    """
    try:
        return _find(model, revision, offline=offline)
    except OSError as error:  # a folder without permission, a working directory that is gone
        raise InputError(f"{str(model)[:200]}: cannot be read: {error.strerror}") from error


def _find(model: str | Path, revision: str | None, *, offline: bool) -> Source:
    name = str(model)
    hub_id = aliases().get(name.lower())
    if name in BUILT_IN and not isinstance(model, Path):
        _refuse_revision(revision, name)
        return Source(name, Path(str(files("docs_sim.demo"))) / name / "model.safetensors")
    path = _existing_path(model)
    if path is not None:
        _refuse_revision(revision, name)
        return _local_source(path)
    if hub_id or (_HUB_ID.fullmatch(name) and not name.endswith((".safetensors", ".gguf", *_PICKLED))):
        return _of_hub(hub_id or name, name.replace("/", "--"), revision, offline=offline)
    raise InputError(f"{name[:200]}: {_no_such_model(name)}")


def _of_hub(hub_id: str, name: str, revision: str | None, *, offline: bool) -> Source:
    """A complete snapshot in the cache, else what is there of one and the rest over the network."""
    try:
        snapshot, commit = cached_snapshot(hub_id, revision)
        weights = _weights_in(snapshot)
        if _is_complete(weights):
            return Source(name, weights, commit)
    except InputError:
        if offline or is_offline():
            raise
    if offline or is_offline():
        raise InputError(f"{hub_id}: only a part of it is in the Hugging Face cache, and the network is not to be used")
    repository = open_repository(hub_id, revision)
    chosen = _chosen_weights(repository.files, hub_id)
    small = [file for file in (chosen, "config.json") if file.endswith(".json") and file in repository.files]
    places = [repository.small_file(file) for file in small]
    directory = places[0].parent if places else cache_directory() / repository.commit
    return Source(name, directory / PurePosixPath(chosen).name, repository.commit, remote=repository)


def _is_complete(weights: Path) -> bool:
    """Whether all shards that an index names are there."""
    if not weights.name.endswith(".index.json"):
        return True
    try:
        if weights.stat().st_size > _MAX_INDEX_BYTES:
            return True
        names = set(json.loads(weights.read_text(encoding="utf-8-sig"))["weight_map"].values())
        return all((weights.parent / name).is_file() for name in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True  # the reader says what is wrong with it


def _chosen_weights(names: Sequence[str], hub_id: str) -> str:
    """The one set of weights of a repository, by the order of ``_weights_in``."""
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if name in names:
            return name
    top = [name for name in names if "/" not in name]
    if _ADAPTER in top:
        raise InputError(f"{hub_id}: is a LoRA adapter; join it to its base: ADAPTER+BASE")
    for suffix in (".safetensors.index.json", ".safetensors"):
        found = [name for name in top if name.endswith(suffix)]
        if any(_part_of_many(name) for name in found):
            raise InputError(f"{hub_id}: holds parts of a checkpoint ({found[0]}) without their index")
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"{hub_id}: holds several checkpoints ({', '.join(found[:5])}); download one of them")
    if any(name.endswith(".gguf") for name in top):
        raise InputError(f"{hub_id}: holds GGUF files, which are not read over the network; download one of them")
    if any(name.endswith(_PICKLED) for name in top):
        raise InputError(f"{hub_id}: {_CONVERSION}")
    raise InputError(f"{hub_id}: holds no safetensors")


def split_adapter(model: str | Path) -> tuple[str | None, str | Path]:
    """``ADAPTER+BASE`` -> its two sides; (None, model) for anything else, also for a path with a + in it."""
    text = str(model)
    cuts = [position for position, letter in enumerate(text) if letter == "+"]
    if not cuts or _existing_path(model) is not None:
        return None, model
    cut = next((cut for cut in cuts if _existing_path(text[:cut]) is not None), cuts[0])
    return text[:cut], text[cut + 1 :]


def find_adapter(adapter: str) -> tuple[Path, Path]:
    """The weights and the config of a LoRA adapter: a directory, its weights file, or a Hub id in the cache.

    Raises:
        InputError: if there is none.
    """
    try:
        path = _existing_path(adapter)
        if path is None and _HUB_ID.fullmatch(adapter):
            path, _ = cached_snapshot(adapter)
        if path is None:
            raise InputError(f"{adapter[:200]}: no such adapter; give a directory, a file or a Hub id")
        weights = path / _ADAPTER if path.is_dir() else path
        config = weights.with_name("adapter_config.json")
        if not weights.is_file() or weights.suffix != ".safetensors" or not config.is_file():
            raise InputError(f"{path}: is no LoRA adapter: {_ADAPTER} and {config.name} belong together")
    except OSError as error:
        raise InputError(f"{adapter[:200]}: cannot be read: {error.strerror}") from error
    return weights, config


def _existing_path(model: str | Path) -> Path | None:
    """The path that ``model`` names, if there is one. ``Path("")`` would be the working directory."""
    try:
        path = Path(model).expanduser()
        return path if str(model) and path.exists() else None
    except PermissionError:
        raise
    except (OSError, RuntimeError, ValueError):  # names too long, unknown users, null bytes
        return None


def _refuse_revision(revision: str | None, name: str) -> None:
    if revision is not None:
        raise InputError(f"--revision goes with a Hub id; {name} is on this disk")


def _no_such_model(name: str) -> str:
    if "/" in name or "\\" in name or name.startswith((".", "~")) or Path(name).suffix in (".safetensors", ".gguf"):
        return "no such file or directory"
    nearest = difflib.get_close_matches(name.lower(), [*BUILT_IN, *aliases()])
    proposal = f"did you mean {' or '.join(nearest)}?" if nearest else "`docs-sim models` lists the short names"
    return f"no such file, directory or model; {proposal}"


def _local_source(path: Path) -> Source:
    if path.is_dir():
        return Source(_folder_name(path.resolve()), _weights_in(path))
    if path.suffix in _PICKLED:
        raise InputError(f"{path}: {_CONVERSION}")
    if path.suffix not in (".safetensors", ".gguf") and not path.name.endswith(".safetensors.index.json"):
        raise InputError(f"{path}: is not a checkpoint; give a directory, a .safetensors or a .gguf file")
    if not path.is_file():
        raise InputError(f"{path}: is not an ordinary file")
    if _part_of_many(path.name):
        raise InputError(f"{path}: is one part of a checkpoint; give its directory or its index")
    plain_names = ("model.safetensors", "model.safetensors.index.json")
    return Source(_folder_name(path.resolve().parent) if path.name in plain_names else path.stem, path)


def _folder_name(directory: Path) -> str:
    """What to call a model by its folder; one that is just called ``model`` goes by its parent as well."""
    name = directory.name or "root"
    return f"{directory.parent.name}-{name}" if _PLAIN_FOLDERS.fullmatch(name) and directory.parent.name else name


def _part_of_many(name: str) -> bool:
    found = _SHARD.search(name)
    return found is not None and int(found[1]) > 1


def _weights_in(directory: Path) -> Path:
    """The one set of weights of a directory: an index, then model.safetensors, then a lone file."""
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if (directory / name).is_file():
            return directory / name
    names = sorted(entry.name for entry in directory.iterdir())
    if _ADAPTER in names:
        raise InputError(f"{directory}: is a LoRA adapter; join it to its base: ADAPTER+BASE")
    for suffix in (".safetensors.index.json", ".safetensors", ".gguf"):
        found = [name for name in names if name.endswith(suffix)]
        if any(_part_of_many(name) for name in found):
            raise InputError(
                f"{directory}: holds parts of a checkpoint ({found[0]}) without their index; download it too"
            )
        if len(found) == 1 and (directory / found[0]).is_file():
            return directory / found[0]
        if len(found) == 1:
            raise InputError(f"{directory / found[0]}: is no file, or a link to nothing; download it again")
        if found:
            raise InputError(f"{directory}: holds several checkpoints ({', '.join(found)}); name one of these files")
    if any(name.endswith(_PICKLED) for name in names):
        raise InputError(f"{directory}: {_CONVERSION}")
    raise InputError(f"{directory}: holds no weights (no model.safetensors, no index of shards, no .gguf file)")
