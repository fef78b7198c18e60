"""A model on the Hub at one commit: which files it has, and where they are.

Small files go to the ordinary Hugging Face cache, of large ones only what is needed to sparse files beside it.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from docs_sim.checkpoint.file_names import stays_inside
from docs_sim.checkpoint.hub_errors import explained, unexpected
from docs_sim.checkpoint.remote import Address, RemoteFile
from docs_sim.errors import InputError, shown

_PATIENCE = 10.0  # seconds for the description of a model
_TOO_LARGE = 1 << 63  # bytes, for any file system


@dataclass(frozen=True)
class Repository:
    """A model on the Hub at one commit.

    Attributes:
        hub_id: ``org/name``.
        commit: its hash.
        files: their names.
        arrived: is called with every number of bytes that arrives of its large files.
    """

    hub_id: str
    commit: str
    files: tuple[str, ...]
    arrived: Callable[[int], None] = lambda count: None

    def small_file(self, name: str) -> Path:
        """A small file, whole, in the ordinary cache.

        Raises:
            UnreachableError: if the Hub does not answer, or is in trouble.
            InputError: one line that says what else is wrong and what to do: a cache that cannot be written.
        """
        from huggingface_hub import hf_hub_download

        with explained(self.hub_id, self.commit):
            return Path(hf_hub_download(self.hub_id, name, revision=self.commit))

    def file(self, name: str) -> RemoteFile:
        """A large file, of which nothing is fetched yet but its size and etag.

        Raises:
            UnreachableError: if the Hub does not answer, or is in trouble.
            InputError: one line that says what else is wrong and what to do: a server that does not say its size.
        """
        address, size, etag = self._located(name)
        key = hashlib.sha256(f"{self.hub_id}/{name}@{etag}".encode()).hexdigest()

        def renewed() -> Address:
            address, *now = self._located(name)
            if now != [size, etag]:
                raise InputError(f"{self.hub_id}: {shown(name)} has changed on the Hub; run again")
            return address

        path = cache_directory() / key[:2] / key
        return RemoteFile(address, f"{self.hub_id}/{name}", size, path, renewed, self.arrived)

    def _located(self, name: str) -> tuple[Address, int, str]:
        """Where a file is now, its size in bytes, and its etag."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_token  # type: ignore[attr-defined]

        url = hf_hub_url(self.hub_id, name, revision=self.commit)
        with explained(self.hub_id, self.commit):
            found = get_hf_file_metadata(url, token=get_token())
            # A file that lies elsewhere has an address of its own, where our token has no business.
            same = urlsplit(found.location)[:2] == urlsplit(url)[:2]
            headers = build_hf_headers(token=get_token() if same else False)
        if found.commit_hash is None:
            raise unexpected(self.hub_id, f"an answer to the request for {shown(name)} that names no commit")
        if found.size is None or found.etag is None or not 0 <= found.size < _TOO_LARGE:
            raise InputError(f"{self.hub_id}: the server does not say how large {shown(name)} is; try `hf download`")
        return Address(found.location, headers), found.size, found.etag


def open_repository(
    hub_id: str, revision: str | None, arrived: Callable[[int], None] = lambda count: None
) -> Repository:
    """A model on the Hub, at a branch, tag or commit (``main`` if None).

    Args:
        hub_id: ``org/name``.
        revision: a branch, tag or commit.
        arrived: is called with every number of bytes that arrives of its large files.

    Raises:
        UnreachableError: if it does not answer, or is in trouble.
        InputError: one line that says what else is wrong and what to do.
    """
    description = _description(hub_id, revision)
    commit, siblings = description.get("sha"), description.get("siblings") or []
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise unexpected(hub_id, f"a description of the model with the commit {shown(commit)}")
    try:
        names = sorted(str(sibling["rfilename"]) for sibling in siblings)
    except (TypeError, KeyError) as error:
        raise unexpected(hub_id, "a description of the model with another kind of list of files") from error
    # One odd name says nothing against the other files; nobody can ask for it, here or in an index of shards.
    return Repository(hub_id, commit, tuple(name for name in names if stays_inside(name) and _is_text(name)), arrived)


def _description(hub_id: str, revision: str | None) -> dict[str, Any]:
    """What the Hub says of a model. HfApi.model_info fails with errors of any kind on what is not of the Hub."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
        validate_repo_id,
    )

    at = "" if revision is None else f"/revision/{quote(revision, safe='', errors='replace')}"
    with explained(hub_id, revision):
        validate_repo_id(hub_id)
        url = f"{ENDPOINT}/api/models/{hub_id}{at}"
        response = get_session().get(url, headers=build_hf_headers(), timeout=_PATIENCE)
        hf_raise_for_status(response)
    came = f"{shown(response.headers.get('Content-Type', 'nothing'))} with status {response.status_code}"
    try:
        description = response.json()
    except (ValueError, RecursionError) as error:
        raise unexpected(hub_id, came) from error
    if not isinstance(description, dict):
        raise unexpected(hub_id, f"{came} and a JSON {type(description).__name__}")
    return description


def _is_text(name: str) -> bool:
    """Whether a name has letters only that an address can have; JSON may also have halves of letters."""
    return name.encode(errors="ignore").decode() == name


def cache_directory() -> Path:
    """Where the sparse files are: beside the ordinary cache."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "docs-sim"


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)
