"""Snapshots in the Hugging Face cache: a Hub id and a revision -> the directory that holds them."""

import re
from pathlib import Path

from docs_sim.errors import InputError, shown

_LONGEST_COMMIT = 100
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")


class NotCachedError(InputError):
    """What is asked for is not in the Hugging Face cache, or not all of it: the network has it.

    Attributes:
        lack: what is not there, for a line that names the model already.
    """

    def __init__(self, hub_id: str, lack: str) -> None:
        super().__init__(f"{hub_id}: {lack}")
        self.lack = lack


def cached_snapshot(hub_id: str, revision: str | None = None) -> tuple[Path, str]:
    """The directory of a snapshot that is already in the cache, and its commit.

    Args:
        hub_id: ``org/name``.
        revision: a branch, tag or commit; ``main`` if None, and if that is not recorded the newest snapshot.

    Raises:
        NotCachedError: if the model or the revision is not in the cache.
        InputError: if the cache cannot be read.
    """
    folder = _cache_folder(hub_id)
    try:
        return _snapshot(folder, hub_id, revision)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error


def _snapshot(folder: Path, hub_id: str, revision: str | None) -> tuple[Path, str]:
    snapshots = _newest_first(folder / "snapshots")
    if not snapshots:
        raise NotCachedError(hub_id, "not in the Hugging Face cache")
    commit = _commit(folder, revision or "main")
    if commit is None and revision is None:
        return snapshots[0], snapshots[0].name
    wanted = commit or revision or "main"
    matching = [snapshot for snapshot in snapshots if snapshot.name == wanted]
    if not matching and _SHORT_COMMIT.fullmatch(wanted):
        matching = [snapshot for snapshot in snapshots if snapshot.name.startswith(wanted)]
    if len(matching) != 1:
        known = ", ".join([*_names(folder / "refs"), *(snapshot.name for snapshot in snapshots)])
        wanted = shown(revision or "main")
        raise NotCachedError(hub_id, f"revision {wanted} is not in the Hugging Face cache, which has {known}")
    return matching[0], matching[0].name


def is_cached(hub_id: str) -> bool:
    """Whether any snapshot of the model is in the cache.

    Raises:
        InputError: if the cache cannot be read.
    """
    folder = _cache_folder(hub_id)
    try:
        return bool(_newest_first(folder / "snapshots"))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error


def _cache_folder(hub_id: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE  # honours HF_HOME and HF_HUB_CACHE; slow to import

    return Path(HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"


def _commit(folder: Path, revision: str) -> str | None:
    """What a branch or tag points to. Names are compared with what is there: a revision is never a path."""
    references = folder / "refs"
    if revision not in _names(references):
        return None
    with (references / revision).open(encoding="utf-8", errors="replace") as file:
        return file.read(_LONGEST_COMMIT).strip() or None


def _names(references: Path) -> list[str]:
    return sorted(str(path.relative_to(references)) for path in references.rglob("*") if path.is_file())


def _newest_first(snapshots: Path) -> list[Path]:
    if not snapshots.is_dir():
        return []
    directories = [path for path in snapshots.iterdir() if path.is_dir()]
    return sorted(directories, key=lambda path: path.stat().st_mtime, reverse=True)
