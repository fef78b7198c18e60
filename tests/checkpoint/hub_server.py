"""A server that speaks as much of the Hub's protocol as reading a model needs, and counts what it sends."""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c" * 40


@dataclass(slots=True)
class Hub:
    """What the server has, how it behaves, and what it did.

    Attributes:
        folder: the files of ``org/name``.
        adapter: those of ``org/adapter``, if there is one.
        listed: names that the list of files has besides.
        ranges: whether it honours them.
        breaks_after: bytes of a body after which it breaks the connection, once for each number in the list.
        delay: seconds before each answer.
        shifted: by how much it errs about what it sends.
        total: how large it says the whole is, in a range.
        surplus: bytes that a body has too many, or too few.
        lengths: whether it says how long a body is.
        elsewhere: where a safetensors file really is, which it says in answer to these methods.
        lifetime: how often a file may be asked for at one address of another server.
        status: what it answers instead, with the header that says why.
        refused: with which status it refuses a file, by its name.
        commit: which one it says the model is at.
        login: what comes from somebody else instead: status, type and body.
        login_at: the part of an address where that is so.
        headers: of a safetensors file besides, or instead.
        sent: bytes of bodies, by file name.
        requests: (method, file name, range).
        tokens: what each of them said of who asks.
    """

    folder: Path
    adapter: Path | None = None
    listed: tuple[str, ...] = ()
    ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)
    delay: float = 0.0
    shifted: int = 0
    total: str = "*"
    surplus: int = 0
    lengths: bool = True
    elsewhere: tuple[str, tuple[str, ...]] = ("", ())
    lifetime: float = float("inf")
    status: tuple[int, str] | None = None
    refused: dict[str, int] = field(default_factory=dict)
    commit: str | None = COMMIT
    login: tuple[int, str, bytes] | None = None
    login_at: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    addresses: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""

    def served(self) -> Iterator["Hub"]:
        server = Server(self)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


class Server(ThreadingHTTPServer):
    """Its requests know the Hub that they are asked of."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        with self.counted():
            if self.server.hub.status:
                self.fail(*self.server.hub.status)
            elif self.server.hub.login and self.server.hub.login_at in self.path:
                self.send_login(*self.server.hub.login, body=body)
            elif found := re.fullmatch(r"/api/models/org/(\w+)(?:/revision/([^/]+))?", self.path.split("?")[0]):
                self.model_info(self.folder(found[1]), found[2] or "main", found[1])
            elif found := re.fullmatch(r"(?:/address-\d+)?/org/(\w+)/resolve/[^/]+/(.+)", self.path):
                self.file(self.folder(found[1]), found[2], body=body)
            else:
                self.fail(404, "RepoNotFound")

    def folder(self, name: str) -> Path | None:
        return {"name": self.server.hub.folder, "adapter": self.server.hub.adapter}.get(name)

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.server.lock:
            self.server.hub.at_once += 1
            self.server.hub.most_at_once = max(self.server.hub.most_at_once, self.server.hub.at_once)
            if "/org/" in self.path:  # huggingface_hub may ask for things of its own
                name = self.path.split("?")[0].rsplit("/", 1)[-1]
                self.server.hub.requests.append((self.command, name, self.headers.get("Range")))
                self.server.hub.tokens.append(self.headers.get("Authorization"))
        time.sleep(self.server.hub.delay)
        try:
            yield
        finally:
            with self.server.lock:
                self.server.hub.at_once -= 1

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_login(self, status: int, kind: str, text: bytes, *, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body and status not in (204, 304):
            self.wfile.write(text)

    def model_info(self, folder: Path | None, revision: str, name: str) -> None:
        if folder is None:
            self.fail(404, "RepoNotFound")
            return
        if revision not in ("main", COMMIT):
            self.fail(404, "RevisionNotFound")
            return
        names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        siblings = [{"rfilename": file} for file in (*names, *self.server.hub.listed)]
        text = json.dumps({"id": f"org/{name}", "sha": self.server.hub.commit, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def file(self, folder: Path | None, name: str, *, body: bool) -> None:
        hub = self.server.hub
        path = None if folder is None else folder / name
        if path is None or not path.is_file() or name in hub.refused:
            self.fail(hub.refused.get(name, 404), "Fault" if name in hub.refused else "EntryNotFound")
            return
        content = path.read_bytes()
        etag, status = hashlib.sha256(content).hexdigest(), 200
        if self.command in hub.elsewhere[1] and name.endswith(".safetensors"):
            self.redirect(len(content), etag)
            return
        hub.asked[self.path] = hub.asked.get(self.path, 0) + 1
        if hub.asked[self.path] > hub.lifetime:
            self.fail(403, "Expired")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted and hub.ranges:
            status, content = 206, content[int(wanted[1]) : int(wanted[2]) + 1]
        if body and name.endswith(".safetensors"):
            content = content + b"?" * hub.surplus if hub.surplus >= 0 else content[: hub.surplus] or content
        self.send_response(status)
        headers = hub.headers if name.endswith(".safetensors") else {}
        if wanted and status == 206:
            headers = {"Content-Range": f"bytes {int(wanted[1]) + hub.shifted}-{wanted[2]}/{hub.total}"} | headers
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        if hub.lengths or not name.endswith(".safetensors") or not body:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if body:
            self.send_body(name, content)

    def redirect(self, size: int, etag: str) -> None:
        """To an address that is new each time."""
        self.server.hub.addresses += 1
        self.send_response(302)
        self.send_header("Location", f"{self.server.hub.elsewhere[0]}/address-{self.server.hub.addresses}{self.path}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(size))
        self.send_header("X-Linked-ETag", f'"{etag}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_body(self, name: str, content: bytes) -> None:
        with self.server.lock:
            breaks = self.server.hub.breaks_after
            cut = breaks.pop(0) if breaks and len(content) > breaks[0] else None
            content = content[:cut]
            self.server.hub.sent[name] = self.server.hub.sent.get(name, 0) + len(content)
        self.wfile.write(content)
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
