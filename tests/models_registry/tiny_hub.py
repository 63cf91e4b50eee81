"""A hub on loopback with one small repository, ``org/tiny``."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = (".safetensors", ".gguf")


class Hub(BaseHTTPRequestHandler):
    """The three calls that a pull makes of the hub.

    Attributes:
        files: What the repository has, by name.
        asked: Names of files that were fetched.
        resumed: First bytes of the rests that were fetched.
        ranges: First byte and end of the ranges that were fetched; none of them is in ``asked``.
        takes_ranges: Whether ranges are answered; else the whole file comes.
        gate: While it is closed, only the first half of the weights comes.
        is_broken: Whether the weights can't be fetched.
    """

    files: dict[str, bytes]
    asked: list[str]
    resumed: list[int]
    ranges: list[tuple[int, int]]
    takes_ranges: bool
    gate: Event
    is_broken: bool

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main"):
            siblings = [sibling(name, data) for name, data in self.files.items()]
            tags = ["safetensors", "license:apache-2.0"]
            return self.answer(
                json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "tags": tags}).encode()
            )
        if path == "/api/models":
            return self.answer(json.dumps(self.found()).encode())
        name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
        is_range = not self.headers.get("Range", "-").endswith("-")
        if name in self.files and not (self.is_broken and name.endswith(WEIGHTS) and not is_range):
            if self.command == "GET" and not is_range:
                self.asked.append(name)
            return self.answer(self.files[name])
        self.send_response(503 if name in self.files else 404)
        code = "RevisionNotFound" if "/revision/" in path and "org/tiny" in path else "RepoNotFound"
        if name not in self.files:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def found(self) -> list[dict[str, Any]]:
        """What a search finds."""
        from urllib.parse import parse_qs, urlsplit

        query = parse_qs(urlsplit(self.path).query)
        rows = [
            {"id": "org/tiny", "downloads": 1234, "likes": 5, "tags": ["safetensors", "gguf"], "gated": False,
             "lastModified": "2026-01-02T03:04:05.000Z"},
            {"id": "org/tiny-pickle", "downloads": 7, "likes": 0, "tags": ["pytorch"], "gated": "auto"},
        ]  # fmt: skip
        return [row for row in rows if query["search"][0] in str(row["id"])][: int(query["limit"][0])]

    def answer(self, data: bytes) -> None:
        wanted = self.headers.get("Range", "") if self.takes_ranges else ""
        begin, _, last = wanted.removeprefix("bytes=").partition("-")
        first, end = int(begin or 0), min(int(last) + 1 if last else len(data), len(data))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(data)}")
        if last:
            self.ranges.append((first, end))
        elif first:
            self.resumed.append(first)
        is_weights = self.path.endswith(WEIGHTS) and not last
        data = data[first:end]
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if is_weights:
                self.gate.wait(60)
            with contextlib.suppress(ConnectionError):  # who asked may have left
                self.wfile.write(data[len(data) // 2 :])


def sibling(name: str, data: bytes) -> dict[str, Any]:
    """A file as the hub lists it; large ones with their digest."""
    found: dict[str, Any] = {"rfilename": name, "size": len(data)}
    if name.endswith(WEIGHTS):
        found["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return found


@contextlib.contextmanager
def tiny_hub(checkpoint: Path) -> Iterator[tuple[str, type[Hub]]]:
    """The hub with a checkpoint's files, and some that a pull must leave alone; its address and its handler."""
    files = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    files |= {"pytorch_model.bin": b"no", "README.md": b"no", "onnx/model.safetensors": b"no", "run.py": b"no"}
    gate = Event()
    gate.set()
    values = {"files": files, "asked": [], "resumed": [], "ranges": [], "takes_ranges": True}
    handler = type("TinyHub", (Hub,), {**values, "gate": gate, "is_broken": False})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
