"""A model on the Hub at one commit: which files it has, and where they are.

Small files go to the ordinary Hugging Face cache, of large ones only what is needed to sparse files beside it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from docs_sim.checkpoint.file_names import stays_inside
from docs_sim.checkpoint.remote import Address, RemoteFile, http_error
from docs_sim.errors import InputError, shown


@dataclass
class Repository:
    """A model on the Hub at one commit.

    Attributes:
        hub_id: ``org/name``.
        commit: its hash.
        files: their names.
        arrived: is called with every number of bytes that arrives.
    """

    hub_id: str
    commit: str
    files: list[str]
    arrived: Callable[[int], None] = lambda count: None

    def _count(self, count: int) -> None:
        self.arrived(count)  # which may be set after the files were opened

    def small_file(self, name: str) -> Path:
        """A small file, whole, in the ordinary cache."""
        from huggingface_hub import hf_hub_download

        with _explained(self.hub_id, self.commit):
            return Path(hf_hub_download(self.hub_id, name, revision=self.commit))

    def file(self, name: str) -> RemoteFile:
        """A large file, of which nothing is fetched yet but its size and etag."""
        address, size, etag = self._located(name)
        key = hashlib.sha256(f"{self.hub_id}/{name}@{etag}".encode()).hexdigest()

        def renewed() -> Address:
            address, *now = self._located(name)
            if now != [size, etag]:
                raise InputError(f"{self.hub_id}: {shown(name)} has changed on the Hub; run again")
            return address

        path = cache_directory() / key[:2] / key
        return RemoteFile(address, f"{self.hub_id}/{name}", size, path, renewed, self._count)

    def _located(self, name: str) -> tuple[Address, int, str]:
        """Where a file is now, its size in bytes, and its etag."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_token  # type: ignore[attr-defined]

        url = hf_hub_url(self.hub_id, name, revision=self.commit)
        with _explained(self.hub_id, self.commit):
            found = get_hf_file_metadata(url, token=get_token())
        if found.size is None or found.etag is None:
            raise InputError(f"{self.hub_id}: the server does not say how large {shown(name)} is; try `hf download`")
        # A file that lies elsewhere has an address of its own, where our token has no business.
        same = urlsplit(found.location)[:2] == urlsplit(url)[:2]
        headers = build_hf_headers(token=get_token() if same else False)
        return Address(found.location, headers), found.size, found.etag


class UnreachableError(InputError):
    """The Hub does not answer, which matters less where a file is on this disk."""


def open_repository(hub_id: str, revision: str | None) -> Repository:
    """A model on the Hub, at a branch, tag or commit (``main`` if None).

    Raises:
        UnreachableError: if it does not answer.
        InputError: one line that says what else is wrong and what to do.
    """
    from huggingface_hub import HfApi

    with _explained(hub_id, revision):
        found = HfApi().model_info(hub_id, revision=revision)
    names = sorted(sibling.rfilename for sibling in found.siblings or ())
    if found.sha is None or not re.fullmatch(r"[0-9a-f]{40}", found.sha) or not all(map(stays_inside, names)):
        raise InputError(f"{hub_id}: the answer of the server is not valid; ask its owner")
    return Repository(hub_id, found.sha, names)


@contextmanager
def _explained(hub_id: str, revision: str | None) -> Iterator[None]:
    """Errors of huggingface_hub in one line that says what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"{hub_id}: is gated; ask for access on its page, then log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{hub_id}: is not on the Hub, or is private: log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{hub_id}: has no revision {shown(revision or 'main')}; its page on the Hub lists them"
        ) from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):  # which is how a lost connection is told
            raise _unreachable(hub_id, error) from error
        raise InputError(f"{hub_id}: the Hub lists a file that is not there; try again later") from error
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise InputError(
                f"{shown(str(error.filename))}: cannot be written: {error.strerror}; see HF_HOME"
            ) from error
        if not isinstance(error, (http_error(), OSError, errors.HFValidationError)):
            raise
        raise _unreachable(hub_id, error) from error


def _unreachable(hub_id: str, error: Exception) -> UnreachableError:
    return UnreachableError(f"{hub_id}: the Hub cannot be reached ({type(error).__name__}), try again")


def cache_directory() -> Path:
    """Where the sparse files are: beside the ordinary cache."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "docs-sim"


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return bool(HF_HUB_OFFLINE)
