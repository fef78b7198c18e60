"""A MODEL argument -> which files hold its weights: built-in models, paths, Hub ids in the cache, short aliases."""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from docs_sim.checkpoint.file_names import is_file
from docs_sim.checkpoint.hub import NotCachedError, cached_snapshot
from docs_sim.checkpoint.hub_errors import UnreachableError
from docs_sim.checkpoint.json_files import read_weight_map
from docs_sim.checkpoint.repository import Repository, cache_directory, is_offline, open_repository
from docs_sim.errors import InputError, shown

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
_ADAPTER, _ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_NAMED = 5  # files in a message
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_Arrived = Callable[[int], None]
_Choice = Callable[[Iterable[str], object], str]  # the files of a directory, what to call it -> the file of weights
_CONVERSION = (
    "files that need unpickling are not read; convert them with transformers: "
    "AutoModel.from_pretrained(DIR).save_pretrained(NEW_DIR) writes safetensors"
)


class _AbsentError(InputError):
    """A directory does not hold what is needed, which may come from elsewhere; anything else it holds will not do."""


@dataclass(frozen=True)
class Source:
    """Where a checkpoint lies.

    Attributes:
        name: what to call it in titles and file names.
        weights: the index, the safetensors file or the GGUF file.
        revision: the commit, for a snapshot of the Hugging Face cache.
        adapter: the LoRA adapter that is put on it.
        remote: where to fetch what is not in the directory.
    """

    name: str
    weights: Path
    revision: str | None = None
    adapter: "Source | None" = None
    remote: Repository | None = field(default=None, compare=False)

    @property
    def directory(self) -> Path:
        """Where the config stands, if there is one."""
        return self.weights.parent


@cache
def aliases() -> dict[str, str]:
    """Short names of well-known open models -> Hub ids (``aliases.toml``)."""
    return tomllib.loads((files(__package__) / "aliases.toml").read_text(encoding="utf-8"))


def find_source(
    model: str | Path,
    revision: str | None = None,
    *,
    offline: bool = False,
    arrived: _Arrived = lambda count: None,
) -> Source:
    """Find the weights that ``model`` means.

    Args:
        model: a built-in name, a directory, a .safetensors, .index.json or .gguf file, a Hub id or a short alias.
        revision: a branch, tag or commit; only for Hub ids and aliases.
        offline: whether to do without the network; it is used only for what is not in the cache.
        arrived: is called with every number of bytes of weights that arrives over the network, by any thread.

    Raises:
        InputError: if there is nothing of that name, or no weights that can be read.
    """
    try:
        return _find(model, revision, offline=offline, arrived=arrived)
    except OSError as error:  # a folder without permission, a working directory that is gone
        raise InputError(f"{str(model)[:200]}: cannot be read: {error.strerror}") from error


def _find(model: str | Path, revision: str | None, *, offline: bool, arrived: _Arrived) -> Source:
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
        return _of_hub(
            hub_id or name, name.replace("/", "--"), revision, _chosen_weights, offline=offline, arrived=arrived
        )
    raise InputError(f"{name[:200]}: {_no_such_model(name)}")


def _of_hub(
    hub_id: str, name: str, revision: str | None, choose: _Choice, *, offline: bool, arrived: _Arrived
) -> Source:
    """A complete snapshot in the cache, else what is there of one and the rest over the network."""
    try:
        return _of_cache(hub_id, name, revision, choose)
    except NotCachedError as error:
        if offline or is_offline():
            leave = "leave --offline out" if offline else "unset HF_HUB_OFFLINE"
            raise InputError(f"{error}; {leave} to fetch what is needed, or run `hf download {hub_id}`") from error
        lack = error.lack
    try:
        repository = open_repository(hub_id, revision, arrived)
    except UnreachableError as error:
        raise InputError(f"{error}; {lack}") from error
    chosen = choose([file for file in repository.files if "/" not in file], hub_id)
    if chosen.endswith(".gguf"):
        raise InputError(f"{hub_id}: holds {shown(chosen)}, and GGUF is not read over the network; download it")
    small = [file for file in (chosen, "config.json", _ADAPTER_CONFIG) if file.endswith(".json")]
    places = [repository.small_file(file) for file in small if file in repository.files]
    directory = places[0].parent if places else cache_directory() / repository.commit
    return Source(name, directory / chosen, repository.commit, remote=repository)


def _of_cache(hub_id: str, name: str, revision: str | None, choose: _Choice) -> Source:
    snapshot, commit = cached_snapshot(hub_id, revision)
    try:
        weights = _chosen_in(snapshot, choose)
    except _AbsentError as error:
        raise NotCachedError(hub_id, str(error)) from error
    absent = _absent_shard(weights)
    if absent is not None:
        raise NotCachedError(hub_id, f"{weights} names the shard {shown(absent)}, which is not there")
    return Source(name, weights, commit)


def _absent_shard(weights: Path) -> str | None:
    """A shard that an index names and that is not there."""
    if not weights.name.endswith(".index.json"):
        return None
    shards = dict.fromkeys(read_weight_map(weights).values())
    return next((shard for shard in shards if not is_file(weights.parent / shard)), None)


def split_adapter(model: str | Path) -> tuple[str | None, str | Path]:
    """``ADAPTER+BASE`` -> its two sides; (None, model) for anything else, also for a path with a + in it."""
    text = str(model)
    cuts = [position for position, letter in enumerate(text) if letter == "+"]
    if not cuts or _existing_path(model) is not None:
        return None, model
    cut = next((cut for cut in cuts if _existing_path(text[:cut]) is not None), cuts[0])
    return text[:cut], text[cut + 1 :]


def find_adapter(adapter: str, *, offline: bool = False, arrived: _Arrived = lambda count: None) -> Source:
    """A LoRA adapter, with its config beside the weights: a directory, its weights file, or a Hub id.

    A Hub id means the default branch; a revision is of the base. ``offline`` and ``arrived`` as for ``find_source``.

    Raises:
        InputError: if there is none.
    """
    try:
        path = _existing_path(adapter)
        if path is None and _HUB_ID.fullmatch(adapter):
            return _of_hub(adapter, adapter.replace("/", "--"), None, _chosen_adapter, offline=offline, arrived=arrived)
        if path is None:
            raise InputError(f"{adapter[:200]}: no such adapter; give a directory, a file or a Hub id")
        if path.is_dir():
            return Source(_folder_name(path.resolve()), _chosen_in(path, _chosen_adapter))
        if path.suffix != ".safetensors" or not path.with_name(_ADAPTER_CONFIG).is_file():
            raise _no_adapter(path)
    except OSError as error:
        raise InputError(f"{adapter[:200]}: cannot be read: {error.strerror}") from error
    return Source(_folder_name(path.resolve().parent), path)


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
        return Source(_folder_name(path.resolve()), _chosen_in(path, _chosen_weights))
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


def _chosen_in(directory: Path, choose: _Choice) -> Path:
    chosen = directory / choose(sorted(entry.name for entry in directory.iterdir()), directory)
    if not chosen.is_file():
        raise _AbsentError(f"{chosen}: is no file, or a link to nothing; download it again")
    return chosen


def _chosen_weights(names: Iterable[str], place: object) -> str:
    """The one set of weights: an index, then model.safetensors, then a lone file."""
    names = list(names)
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if name in names:
            return name
    if _ADAPTER in names:
        raise InputError(f"{place}: is a LoRA adapter; join it to its base: ADAPTER+BASE")
    for suffix in (".safetensors.index.json", ".safetensors", ".gguf"):
        found = [name for name in names if name.endswith(suffix)]
        part = next(filter(_part_of_many, found), None)
        if part is not None:
            raise _AbsentError(
                f"{place}: holds parts of a checkpoint ({shown(part)}) without their index; it is needed"
            )
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(map(shown, found[:_NAMED]))
            raise InputError(f"{place}: holds several checkpoints ({several}); give the file of one of them")
    if any(name.endswith(_PICKLED) for name in names):
        raise InputError(f"{place}: {_CONVERSION}")
    raise _AbsentError(f"{place}: holds no weights (no model.safetensors, no index of shards, no .gguf file)")


def _chosen_adapter(names: Iterable[str], place: object) -> str:
    if not {_ADAPTER, _ADAPTER_CONFIG} <= set(names):
        raise _no_adapter(place)
    return _ADAPTER


def _no_adapter(place: object) -> InputError:
    return _AbsentError(f"{place}: is no LoRA adapter: {_ADAPTER} and {_ADAPTER_CONFIG} belong together")
