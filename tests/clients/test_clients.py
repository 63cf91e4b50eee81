"""llama-index and Aider, set up as docs/clients.md says."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.live.conftest import LiveServer, server

__all__ = ["server"]

HERE = Path(__file__).parent
PLACE = Path(os.environ.get("BLAZR_TEST_CLIENTS", "/nowhere"))
pytestmark = [pytest.mark.live, pytest.mark.skipif(not PLACE.is_dir(), reason="make test-clients sets it up")]


def run(name: str, *arguments: str, cwd: Path, **environment: str) -> str:
    """The output of a program of the environment of a client."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(cwd), "NO_PROXY": "127.0.0.1", **environment}
    command = [str(PLACE / name / "bin" / arguments[0]), *arguments[1:]]
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_llama_index(server: LiveServer, tmp_path: Path) -> None:
    program = str(HERE / "llama_index_program.py")
    found = json.loads(run("llama-index", "python", program, server.url, cwd=tmp_path).splitlines()[-1])
    plain = server.complete(max_tokens=8).json()["choices"][0]["text"]
    assert found["complete"] == found["stream_complete"] == plain
    assert found["chat"] == found["stream_chat"] and found["chat"]
    assert found["tool_calls"][:1] == ["look"]
    assert found["vectors"] == [160, 160]


def test_aider(server: LiveServer, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    settings = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
    metadata = {
        "openai/demo": {
            "max_input_tokens": 1024, "max_output_tokens": 64, "input_cost_per_token": 0, "output_cost_per_token": 0,
            "litellm_provider": "openai", "mode": "chat",
        }
    }  # fmt: skip
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    # The demo would talk until the context is full.
    (tmp_path / "settings.yml").write_text('- name: openai/demo\n  extra_params:\n    stop: ["."]\n')
    out = run(
        "aider", "aider", "--model", "openai/demo", "--model-settings-file", "settings.yml",
        "--model-metadata-file", "metadata.json", "--message",
        "/ask What is a list?", "--yes-always", "--no-auto-commits", "--no-check-update", "--no-analytics",
        "--no-show-model-warnings", "--map-tokens", "0", "--no-pretty", "--no-gitignore", cwd=tmp_path, **settings,
    )  # fmt: skip
    assert "Tokens: " in out and " received." in out, out
