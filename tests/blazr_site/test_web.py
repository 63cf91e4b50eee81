"""A web process that is started by hand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from blazr_site import web
from tests.conftest import ROOT


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        variables = {"BLAZR_DATA_DIR": str(tmp_path), "BLAZR_HOST": "127.0.0.1", "BLAZR_PORT": port}
        done = subprocess.run(
            [sys.executable, "-m", "blazr_site.web"], cwd=ROOT, env=os.environ | variables,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and port in line


def test_websockets_are_not_compressed(monkeypatch):
    """16 KiB would become a message of 16 MiB."""
    given: dict[str, Any] = {}

    def config(application: str, **options: Any) -> None:
        given.update(options)

    for name in ("share_one_arena", "raise_file_limit", "prepare_data_dir"):
        monkeypatch.setattr(web, name, lambda: None)
    monkeypatch.setattr(web.signal, "signal", lambda *_: None)
    monkeypatch.setattr(web.uvicorn, "Config", config)
    server = SimpleNamespace(run=lambda sockets: None, started=True)
    monkeypatch.setattr(web.uvicorn, "Server", lambda config: server)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert web.main([str(os.dup(listener.fileno()))]) == 0
    assert given["ws_per_message_deflate"] is False
