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


@dataclass
class Hub:
    """What the server has, how it behaves, and what it did.

    Attributes:
        folder: the files of the one repository, ``org/name``.
        ranges: whether it honours them.
        breaks_after: bytes of a body after which it breaks the connection, once for each number in the list.
        delay: seconds before each answer.
        shifted: by how much it errs about what it sends.
        status: what it answers instead, with the header that says why.
        sent: bytes of bodies, by file name.
        requests: (method, file name, range).
    """

    folder: Path
    ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)
    delay: float = 0.0
    shifted: int = 0
    status: tuple[int, str] | None = None
    sent: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
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
            elif re.fullmatch(r"/api/models/org/name(/revision/[^/]+)?", self.path.split("?")[0]):
                self.model_info()
            elif found := re.fullmatch(r"/org/name/resolve/([^/]+)/(.+)", self.path):
                self.file(found[2], body=body)
            else:
                self.fail(404, "RepoNotFound")

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.server.lock:
            self.server.hub.at_once += 1
            self.server.hub.most_at_once = max(self.server.hub.most_at_once, self.server.hub.at_once)
            self.server.hub.requests.append((self.command, self.path.rsplit("/", 1)[-1], self.headers.get("Range")))
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

    def model_info(self) -> None:
        revision = self.path.rpartition("/revision/")[2] if "/revision/" in self.path else "main"
        if revision not in ("main", COMMIT):
            self.fail(404, "RevisionNotFound")
            return
        names = [
            {"rfilename": str(path.relative_to(self.server.hub.folder))}
            for path in sorted(self.server.hub.folder.rglob("*"))
            if path.is_file()
        ]
        text = json.dumps({"id": "org/name", "sha": COMMIT, "siblings": names}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def file(self, name: str, *, body: bool) -> None:
        path = self.server.hub.folder / name
        if not path.is_file():
            self.fail(404, "EntryNotFound")
            return
        content = path.read_bytes()
        etag, status = hashlib.sha256(content).hexdigest(), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted and self.server.hub.ranges:
            status, content = 206, content[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_response(status)
        if wanted and status == 206:
            first = int(wanted[1]) + self.server.hub.shifted
            self.send_header("Content-Range", f"bytes {first}-{wanted[2]}/*")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.send_body(name, content)

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
