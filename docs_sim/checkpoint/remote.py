"""A file on a server, read in ranges over HTTP: headers, and then only the bytes of the tensors that are asked for.

What was fetched once is kept in a sparse file of the size of the whole, with a list of the ranges that are there; it is
never fetched again.
"""

import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from docs_sim.checkpoint.header import LENGTH_BYTES, MAX_HEADER_BYTES
from docs_sim.checkpoint.hub_errors import http_error, is_passing, status_of, status_told
from docs_sim.errors import InputError, shown

_CHUNK = 16 << 20  # bytes between two notes of what is there: no more is lost with the process
_ATTEMPTS = 4  # without any progress, after the first
_PATIENCE = 0.5  # seconds before the second attempt, doubled for each further one
_EXPIRED = (401, 403, 404, 410)  # what a server says of an address that was good for some time only
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


@dataclass(frozen=True)
class Address:
    """Where the bytes of a file are for now, and the headers of every request for them."""

    url: str
    headers: dict[str, str] = field(repr=False)


@dataclass
class RemoteFile:
    """A file on a server, and the part of it that is on this disk.

    Attributes:
        address: where its bytes are.
        name: for messages.
        size: bytes.
        path: the sparse file.
        renewed: asks where its bytes are now.
        arrived: is called with every number of bytes that arrives.
    """

    address: Address
    name: str
    size: int
    path: Path
    renewed: Callable[[], Address] = field(repr=False)
    arrived: Callable[[int], None] = field(repr=False)

    def fetch(self, begin: int, end: int) -> None:
        """Make sure that bytes [begin, end) are in the sparse file.

        Raises:
            InputError: if they cannot be fetched.
        """
        with _lock_of(self.path):
            for first, last in missing(self._ranges(), begin, min(end, self.size)):
                try:
                    self._persist(first, last)
                except OSError as error:
                    raise InputError(f"{self.path.parent}: cannot be written: {error.strerror}; see HF_HOME") from error

    def fetch_header(self) -> None:
        """Make sure that the header of a safetensors file is there.

        Raises:
            InputError: if it cannot be fetched.
        """
        self.fetch(0, LENGTH_BYTES)
        try:
            with self.path.open("rb") as file:
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        except OSError as error:  # somebody cleared the folder meanwhile
            raise InputError(f"{self.path.parent}: cannot be read: {error.strerror}; see HF_HOME") from error
        if length <= MAX_HEADER_BYTES:  # else the reader of headers refuses it
            self.fetch(LENGTH_BYTES, LENGTH_BYTES + length)

    @property
    def _list(self) -> Path:
        return self.path.with_name(f"{self.path.name}.ranges")

    def _ranges(self) -> list[tuple[int, int]]:
        """What is there, by the list beside the sparse file."""
        try:
            if self.path.stat().st_size != self.size:
                return []
            return merged([(int(begin), int(end)) for begin, end in json.loads(self._list.read_text(encoding="utf-8"))])
        except (OSError, ValueError, TypeError):
            return []

    def _alone(self) -> AbstractContextManager[object]:
        """Keeps other processes from the list for a moment."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        return WeakFileLock(self.path.with_name(f"{self.path.name}.lock"))

    def _note(self, file: BinaryIO, begin: int, end: int) -> None:
        """Vouch for [begin, end), which must survive what the list survives."""
        file.flush()
        os.fsync(file.fileno())
        temporary = self._list.with_name(f"{self._list.name}.{os.getpid()}")
        with self._alone():
            temporary.write_text(json.dumps(merged([*self._ranges(), (begin, end)])), encoding="utf-8")
            temporary.replace(self._list)

    def _persist(self, begin: int, end: int) -> None:
        """Fetch [begin, end), going on after a broken connection from where it broke."""
        attempts, before, reason, renewed = 0, None, "the connection broke (nothing arrived)", False
        while gaps := missing(self._ranges(), begin, end):
            attempts = attempts + 1 if gaps == before else 0
            if attempts > _ATTEMPTS:
                raise InputError(f"{self.name}: {reason}; run again to go on from there")
            if attempts:
                time.sleep(_PATIENCE * 2 ** (attempts - 1))
            renewed = renewed and gaps == before
            before = gaps
            try:
                self._stream(*gaps[0])
            except http_error() as error:
                status = status_of(error)
                reason = status_told(status) if status else f"the connection broke ({type(error).__name__})"
                if status in _EXPIRED and not renewed:
                    self.address, renewed = self.renewed(), True
                elif status and not is_passing(status):
                    raise InputError(f"{self.name}: {reason}") from error

    def _stream(self, begin: int, end: int) -> None:
        """Fetch [begin, end) as far as the connection holds."""
        from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

        headers = self.address.headers | {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        # The HTTP library takes the authorization off where a redirection leads to another origin.
        with get_session().stream("GET", self.address.url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            if response.status_code == HTTPStatus.PARTIAL_CONTENT:
                end = self._checked(response.headers, begin, end)
            elif response.status_code != HTTPStatus.OK:
                raise self._other(f"status {response.status_code}")
            else:
                warnings.warn(f"{self.name}: the server sends whole files, not ranges", stacklevel=2)
                begin, end = 0, self.size
            told = response.headers.get("Content-Length", str(end - begin))
            if told != str(end - begin) or response.headers.get("Content-Encoding", "identity") != "identity":
                raise self._other(f"{shown(told)} bytes, not {end - begin}, or packed")
            with self._sparse() as file:
                self._write(file, begin, end, response.iter_raw())

    def _checked(self, headers: Mapping[str, str], begin: int, end: int) -> int:
        """Where the range ends that the server sends; it may be shorter than what was asked for."""
        told = headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(told)
        if found is None or int(found[1]) != begin or not begin <= int(found[2]) < end:
            raise self._other(shown(told))
        if found[3] not in ("*", str(self.size)):
            raise self._other(f"of a file of {shown(found[3])} bytes, not {self.size}")
        return int(found[2]) + 1

    def _other(self, told: str) -> InputError:
        return InputError(f"{self.name}: the server sends other bytes than were asked for ({told}); run again")

    def _write(self, file: BinaryIO, begin: int, end: int, chunks: Iterator[bytes]) -> None:
        """Write what arrives, and note it now and then and at the end, which may come early."""
        file.seek(begin)
        position = noted = begin
        try:
            for chunk in chunks:
                if position + len(chunk) > end:
                    raise self._other("more than that")
                file.write(chunk)
                position += len(chunk)
                self.arrived(len(chunk))
                if position - noted >= _CHUNK:
                    self._note(file, begin, position)
                    noted = position
        finally:
            self._note(file, begin, position)

    def _sparse(self) -> BinaryIO:
        """The sparse file, opened to write into it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if not self.path.exists() or self.path.stat().st_size != self.size:
                self._list.unlink(missing_ok=True)  # it vouches for a file that is gone
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
            try:
                file.truncate(self.size)
            except OSError:
                file.close()
                raise
        return file


_LOCKS: dict[Path, threading.Lock] = {}  # one for each sparse file, whoever opened it
_LOCK_OF_LOCKS = threading.Lock()


def _lock_of(path: Path) -> threading.Lock:
    with _LOCK_OF_LOCKS:  # looking a path up runs Python code, between whose lines threads take turns
        return _LOCKS.setdefault(path, threading.Lock())


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch joined.

    >>> merged([(4, 6), (0, 2), (2, 3)])
    [(0, 3), (4, 6)]
    """
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif begin < end:
            joined.append((begin, end))
    return joined


def missing(there: list[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of [begin, end) that are in none of the merged ranges.

    >>> missing([(0, 3), (5, 6)], 2, 8)
    [(3, 5), (6, 8)]
    """
    gaps = []
    for first, last in there:
        if first >= end:
            break
        if begin < first:
            gaps.append((begin, first))
        begin = max(begin, last)
    if begin < end:
        gaps.append((begin, end))
    return gaps
