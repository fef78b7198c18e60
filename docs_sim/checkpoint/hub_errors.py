"""What goes wrong between this disk and the Hub -> one line that says what came and what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from docs_sim.errors import InputError, shown

_PASSING = (408, 429)
_ADVICE = {
    401: "log in anew with `hf auth login`, or set HF_TOKEN to a token that is valid",
    403: "accept the licence on its page, or use a token that may read it",
    404: "there is no such repository or revision",
    408: "try again",
    429: "these were too many requests: wait some minutes, or log in with `hf auth login`",
}
_OTHER_ADVICE = "check HF_ENDPOINT and the proxy"
_OF_DISKS = {errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}
# huggingface_hub takes for granted what answers look like, also those to questions of its own.
_OF_ANSWERS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class UnreachableError(InputError):
    """The Hub does not answer, or is in trouble, which matters less where a file is on this disk."""


@cache
def http_error() -> type[Exception]:
    """What a broken connection raises: the errors of the HTTP library that huggingface_hub uses, whichever it is."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")


def status_of(error: Exception) -> int | None:
    """The status that a server answered with; None if it did not answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_passing(status: int) -> bool:
    """Whether the same request may well succeed later."""
    return status in _PASSING or status >= 500


def status_told(status: int) -> str:
    """What a server answered that refuses, and what to do.

    >>> status_told(503)
    'the server answers with status 503, a trouble of its own; try again later'
    """
    if status >= 500:
        return f"the server answers with status {status}, a trouble of its own; try again later"
    return f"the server answers with status {status}; {_ADVICE.get(status, _OTHER_ADVICE)}"


def unexpected(hub_id: str, came: str) -> InputError:
    """Somebody else than the Hub answers, such as the login page of a network."""
    return InputError(
        f"{hub_id}: {came} came, which is no answer of the Hub; open a page in a browser, where this network may want "
        f"a login, or {_OTHER_ADVICE}"
    )


@contextmanager
def explained(hub_id: str, revision: str | None) -> Iterator[None]:
    """Errors of huggingface_hub in one line that says what to do.

    Raises:
        UnreachableError: if the Hub does not answer, or is in trouble.
        InputError: for what else is wrong: with the model, the token, the answer, this disk.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        told = _told(hub_id, revision, error)
        if told is None:
            raise
        raise told from error


def _told(hub_id: str, revision: str | None, error: BaseException) -> InputError | None:
    """None for what neither the Hub, nor the network, nor this disk can have done."""
    from huggingface_hub.errors import FileMetadataError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return _told(hub_id, revision, error.__cause__)  # hf_hub_download hides what was wrong behind this
    if not isinstance(error, Exception):
        return None
    status, meaning = status_of(error), _meaning(revision, error)
    if meaning is not None:
        return InputError(f"{hub_id}: {meaning}" + (f" (status {status})" if status else ""))
    if status is not None:
        kind = UnreachableError if is_passing(status) else InputError
        return kind(f"{hub_id}: {status_told(status)}")
    if isinstance(error, FileMetadataError) or _is_unreadable(error):
        return unexpected(hub_id, f"something else ({type(error).__name__}: {shown(str(error))})")
    return _of_disk(error) or _of_connection(hub_id, error)


def _meaning(revision: str | None, error: Exception) -> str | None:
    """What the Hub says by the kind of the error; the more particular kinds come first."""
    from huggingface_hub import errors

    meanings = {
        errors.GatedRepoError: "is gated; ask for access on its page, then log in with `hf auth login` or set HF_TOKEN",
        errors.RepositoryNotFoundError: "is not on the Hub, or is private: log in with `hf auth login` or set HF_TOKEN",
        errors.RevisionNotFoundError: f"has no revision {shown(revision or 'main')}; its page on the Hub lists them",
        errors.EntryNotFoundError: "the Hub lists a file that is not there; try again later",
        errors.HFValidationError: "cannot be the name of a model on the Hub; check its spelling",
    }
    return next((meaning for kind, meaning in meanings.items() if isinstance(error, kind)), None)


def _is_unreadable(error: Exception) -> bool:
    """Whether huggingface_hub or the HTTP library could not make sense of an answer, or of an address in it."""
    return isinstance(error, _OF_ANSWERS) or type(error).__name__ == "InvalidURL"


def _of_disk(error: Exception) -> InputError | None:
    """A cache that cannot be used. Which of its files was touched first says nothing to a user; the folder does."""
    from huggingface_hub.constants import HF_HOME

    if not isinstance(error, OSError) or (error.filename is None and error.errno not in _OF_DISKS):
        return None
    folder = HF_HOME if error.filename is None else str(Path(str(error.filename)).parent)
    return InputError(f"{shown(folder)}: cannot be read or written: {error.strerror}; see HF_HOME")


def _of_connection(hub_id: str, error: Exception) -> InputError | None:
    if not isinstance(error, (http_error(), OSError)):
        return None
    return UnreachableError(f"{hub_id}: the Hub cannot be reached ({type(error).__name__}), try again")
