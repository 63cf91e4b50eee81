"""Large files of the hub: resumed, checked, and found by the hub's library."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download
from huggingface_hub.utils.tqdm import tqdm

from inference.errors import ChecksumMismatch, Unavailable
from models_registry.hub_files import RemoteFile, fetch_into_cache, read_range
from tests.models_registry.tiny_hub import COMMIT, tiny_hub

NAME = "model.safetensors"


@pytest.fixture
def hub(hybrid):
    with tiny_hub(hybrid) as found:
        yield found


def fetch(hub, cache, sha256: str) -> None:
    endpoint, handler = hub
    fetch_into_cache(
        "org/tiny", NAME, commit=COMMIT, sha256=sha256, size_bytes=len(handler.files[NAME]), endpoint=endpoint,
        cache_dir=cache, bar=tqdm,
    )  # fmt: skip


def test_a_part_is_gone_on_with_and_the_library_finds_the_file(hub, tmp_path):
    endpoint, handler = hub
    content = handler.files[NAME]
    digest = hashlib.sha256(content).hexdigest()
    blobs = tmp_path / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest}.blazr-part").write_bytes(content[:100])
    fetch(hub, tmp_path, digest)
    assert handler.resumed == [100]
    assert (blobs / digest).read_bytes() == content
    asked = list(handler.asked)
    path = hf_hub_download("org/tiny", NAME, revision=COMMIT, endpoint=endpoint, cache_dir=tmp_path)
    fetch(hub, tmp_path, digest)
    assert handler.asked == asked
    assert Path(path).read_bytes() == content


def test_a_part_that_is_too_long_begins_anew(hub, tmp_path):
    content = hub[1].files[NAME]
    digest = hashlib.sha256(content).hexdigest()
    blobs = tmp_path / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest}.blazr-part").write_bytes(content + b"more")
    fetch(hub, tmp_path, digest)
    assert hub[1].resumed == []
    assert (blobs / digest).read_bytes() == content


def test_a_file_that_is_longer_than_stated_leaves_nothing(hub, tmp_path):
    endpoint, _ = hub
    with pytest.raises(OSError, match="Consistency check failed"):
        fetch_into_cache(
            "org/tiny", NAME, commit=COMMIT, sha256="0" * 64, size_bytes=100, endpoint=endpoint, cache_dir=tmp_path,
            bar=tqdm,
        )  # fmt: skip
    assert not list(tmp_path.rglob("*.blazr-part"))


def test_nothing_is_kept_of_a_file_with_another_digest(hub, tmp_path):
    with pytest.raises(ChecksumMismatch, match="pull it again"):
        fetch(hub, tmp_path, "0" * 64)
    left = [
        path
        for path in (tmp_path / "models--org--tiny").rglob("*")
        if path.is_file() and not path.name.endswith("-lock")
    ]
    assert left == []


def test_the_token_goes_to_no_other_host(tmp_path, monkeypatch):
    """CVE-2025-51471: neither where a reply redirects to, nor where its challenge says that tokens are taken."""
    seen: list[tuple[int, str]] = []

    class Host(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            port = self.server.server_port
            seen.append((port, self.headers.get("Authorization", "")))
            if port == foreign.server_port:
                self.send_response(200)
            elif "elsewhere" in self.path:
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{foreign.server_port}/file")
            else:
                self.send_response(401)
                realm = f"http://127.0.0.1:{foreign.server_port}/token"
                self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="x",scope="y"')
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"abc")

    hub, foreign = (ThreadingHTTPServer(("127.0.0.1", 0), Host) for _ in range(2))
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in (hub, foreign)]
    for thread in threads:
        thread.start()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    places = {"commit": COMMIT, "endpoint": endpoint, "cache_dir": tmp_path}
    try:
        assert read_range("org/tiny", RemoteFile("elsewhere", 3, ""), 0, 3, **places) == b"abc"
        with pytest.raises(Unavailable):
            read_range("org/tiny", RemoteFile("refused", 3, ""), 0, 3, **places)
        with pytest.raises(ChecksumMismatch):
            fetch_into_cache("org/tiny", "elsewhere", sha256="0" * 64, size_bytes=3, bar=tqdm, **places)
    finally:
        for server, thread in zip((hub, foreign), threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
    assert {token for port, token in seen if port == hub.server_port} == {"Bearer hf_secret"}
    assert [token for port, token in seen if port == foreign.server_port] == ["", ""]
