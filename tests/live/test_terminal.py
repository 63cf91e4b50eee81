"""Commands of the terminal against a real server, which they find by its data directory."""

from __future__ import annotations

import os
import subprocess
import sys

import httpx
import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from tests.live.conftest import ROOT, LiveServer

pytestmark = pytest.mark.live


def blazr(server: LiveServer, *arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blazr_site.cli", *arguments, "--data-dir", str(server.data_dir)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("BLAZR_")} | environment
    return subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=120)


def test_a_pushed_model_is_talked_to_and_deleted(server, tmp_path):
    key = server.admin_headers["Authorization"].removeprefix("Bearer ")
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    refused = blazr(server, "push", str(PREBUILT_DIRECTORY), **cache)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: a push needs an API key with the scope admin")
    done = blazr(server, "push", str(PREBUILT_DIRECTORY), "--name", "pushed", BLAZR_API_KEY=key, **cache)
    assert done.returncode == 0, done.stderr
    assert f"{server.url} has it as pushed" in done.stderr
    chat = blazr(server, "chat", "pushed", "--set", "max_tokens=8", "--set", "temperature=0", text="What is a list?")
    assert (chat.returncode, bool(chat.stdout.strip())) == (0, True), chat.stderr
    assert "8 tokens, " in chat.stderr
    again = blazr(server, "chat", "demo", "--set", "max_tokens=8", "--set", "temperature=0", text="What is a list?")
    assert again.stdout == chat.stdout
    response = httpx.request(
        "DELETE", f"{server.url}/api/delete", json={"model": "pushed"}, headers=server.admin_headers, timeout=30
    )
    assert response.status_code == 200
