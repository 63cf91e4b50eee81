"""llama-index, Aider, Open WebUI, Continue, Codex, Claude Code and opencode, set up as docs/clients.md says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.peers.servers import free_port
from tests.live.conftest import ROOT, LiveServer, server, wait_until

__all__ = ["server"]

HERE = Path(__file__).parent
PLACE = Path(os.environ.get("BLAZR_TEST_CLIENTS", "/nowhere"))
CONTEXT = 1 << 18
QUESTION = "What is a list?"
pytestmark = [pytest.mark.live, pytest.mark.skipif(not PLACE.is_dir(), reason="make test-clients sets it up")]


def variables(home: Path, **more: str) -> dict[str, str]:
    """What a client finds in its environment: a home of its own, and no proxy before this machine."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **more}


def run(name: str, *arguments: str, cwd: Path, **environment: str) -> str:
    """The output of a program of the environment of a client."""
    command = [str(PLACE / name / "bin" / arguments[0]), *arguments[1:]]
    done = subprocess.run(
        command, cwd=cwd, env=variables(cwd, **environment), capture_output=True, text=True, timeout=240, check=False
    )
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


@pytest.fixture
def open_webui(server: LiveServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client of its API, signed in as the first account, which administers it; over one of its two connections."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = {
        "DATA_DIR": str(tmp_path / "data"), "WEBUI_SECRET_KEY": "lambda", "USE_SLIM_DOCKER": "true",
        "OFFLINE_MODE": "true", "OPENAI_API_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none",
        "OLLAMA_BASE_URL": server.url, "ENABLE_OPENAI_API": "false", "ENABLE_OLLAMA_API": "false",
        f"ENABLE_{request.param}_API": "true",
    }  # fmt: skip
    program = str(PLACE / "open-webui" / "bin" / "open-webui")
    command = [program, "serve", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    log = tmp_path / "open-webui.log"
    with log.open("wb") as output, httpx.Client(base_url=url, timeout=60) as client:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=variables(tmp_path, **settings), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            wait_until(lambda: process.poll() is not None or answers(client), 180, "the start of Open WebUI")
            assert process.poll() is None, log.read_text()[-3000:]
            account = {"name": "Alonzo", "email": "alonzo@example.org", "password": "Lambda-Calculus-9"}
            token = client.post("/api/v1/auths/signup", json=account).raise_for_status().json()["token"]
            client.headers["Authorization"] = f"Bearer {token}"
            yield client
        finally:
            process.terminate()
            process.wait(30)


def answers(client: httpx.Client) -> bool:
    """Whether a server serves."""
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


CHAT = {"messages": [{"role": "user", "content": "What is a list?"}], "temperature": 0, "max_tokens": 12}


@pytest.mark.parametrize("open_webui", ["OPENAI"], indirect=True)
def test_open_webui_over_openais_api(server: LiveServer, open_webui: httpx.Client) -> None:
    asked = {**CHAT, "model": "demo"}
    right = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60).json()["choices"][0]["message"]
    assert "demo" in [model["id"] for model in open_webui.get("/api/models").json()["data"]]
    whole = open_webui.post("/api/chat/completions", json={**asked, "stream": False}).raise_for_status().json()
    assert whole["choices"][0]["message"]["content"] == right["content"]
    assert streamed(open_webui, asked) == right["content"]
    vectors = open_webui.post("/api/embeddings", json={"model": "demo", "input": ["a", "b"]}).raise_for_status().json()
    assert [len(row["embedding"]) for row in vectors["data"]] == [160, 160]


@pytest.mark.parametrize("open_webui", ["OLLAMA"], indirect=True)
def test_open_webui_over_ollamas_api(server: LiveServer, open_webui: httpx.Client) -> None:
    tags = open_webui.get("/ollama/api/tags").raise_for_status().json()
    assert [model["name"] for model in tags["models"]] == ["demo"]
    body = {"model": "demo", "messages": CHAT["messages"], "options": {"temperature": 0, "num_predict": 12}}
    right = httpx.post(f"{server.url}/api/chat", json={**body, "stream": False}, timeout=60).json()["message"]
    with open_webui.stream("POST", "/ollama/api/chat", json={**body, "stream": True}) as response:
        lines = [json.loads(line) for line in response.iter_lines() if line]
    assert lines[-1]["done"]
    assert "".join(line["message"]["content"] for line in lines) == right["content"] != ""


def streamed(client: httpx.Client, body: dict[str, object]) -> str:
    """The text of a streamed chat."""
    with client.stream("POST", "/api/chat/completions", json={**body, "stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


NEEDS_NPM = pytest.mark.skipif(not (PLACE / "continue").is_dir(), reason="npm is missing: none of its programs is here")


@pytest.fixture(scope="module")
def wide(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo with a context for the prompts of agents; what it says of them makes no sense."""
    directory = shutil.copytree(ROOT / "inference" / "demo" / "checkpoint", tmp_path_factory.mktemp("wide") / "wide")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_seq_len": CONTEXT}))
    server.register(directory, "wide")
    return "wide"


def run_npm(name: str, program: str, *arguments: str, cwd: Path, **environment: str) -> str:
    """The output of a program that npm has installed."""
    command = [str(PLACE / name / "node_modules" / ".bin" / program), *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=variables(cwd, **environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@NEEDS_NPM
def test_codex(server: LiveServer, wide: str, tmp_path: Path) -> None:
    """Over Responses; its instructions and tools take some 18,000 tokens of the demo."""
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(
        f'model = "{wide}"\nmodel_provider = "blazr"\nmodel_context_window = {CONTEXT}\nweb_search = "disabled"\n'
        f'[model_providers.blazr]\nname = "blazr"\nbase_url = "{server.url}/v1"\nwire_api = "responses"\n'
        "stream_idle_timeout_ms = 3600000\n"
    )
    out = run_npm("codex", "codex", "exec", "--skip-git-repo-check", "--json", QUESTION, cwd=tmp_path)
    events = [json.loads(line) for line in out.splitlines()]
    (ended,) = [event for event in events if event["type"] == "turn.completed"]
    assert ended["usage"]["input_tokens"] > 10_000 and ended["usage"]["output_tokens"] > 0
    assert [event for event in events if event["type"] == "item.completed" and event["item"].get("text")]
    assert not [event for event in events if event["type"] in ("error", "turn.failed")]


@NEEDS_NPM
def test_claude_code(server: LiveServer, wide: str, tmp_path: Path) -> None:
    """Over Messages; what it marks for the cache is found there by its second session."""
    settings = {
        "ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": wide,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": wide, "ANTHROPIC_DEFAULT_SONNET_MODEL": wide,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": wide, "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(CONTEXT),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "16000", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }  # fmt: skip
    arguments = ("claude", "-p", QUESTION, "--output-format", "json")
    first, second = (json.loads(run_npm("claude-code", *arguments, cwd=tmp_path, **settings)) for _ in range(2))
    for found in (first, second):
        assert not found["is_error"] and found["result"], found
        assert found["usage"]["output_tokens"] > 0
    assert second["usage"]["cache_read_input_tokens"] > 10_000


@NEEDS_NPM
def test_opencode(server: LiveServer, wide: str, tmp_path: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{server.url}/v1"},
        "models": {wide: {"limit": {"context": CONTEXT, "output": 200}}},
    }
    (tmp_path / "opencode.json").write_text(json.dumps({"provider": {"blazr": provider}}))
    out = run_npm("opencode", "opencode", "run", "-m", f"blazr/{wide}", "--format", "json", QUESTION, cwd=tmp_path)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event for event in events if event["type"] == "text" and event["part"]["text"]], out


@NEEDS_NPM
def test_continue(server: LiveServer, wide: str, tmp_path: Path) -> None:
    """Its program for the terminal, which sends a system prompt and tools of about 2,800 tokens of the demo."""
    found = run_continue(server, wide, tmp_path)
    assert found.stdout.strip() and '"status":"error"' not in found.stdout, found.stdout + found.stderr
    refused = run_continue(server, "demo", tmp_path)
    assert "maximum context length is 1024 tokens" in refused.stdout + refused.stderr


def run_continue(server: LiveServer, model: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Send it a prompt, with the configuration of docs/clients.md."""
    config = place / f"{model}.yaml"
    config.write_text(
        f"name: blazr\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: blazr\n    provider: openai\n    model: {model}\n"
        f"    apiBase: {server.url}/v1\n    apiKey: none\n    roles: [chat]\n"
        "    defaultCompletionOptions: {maxTokens: 20}\n"
    )
    command = [str(PLACE / "continue" / "node_modules" / ".bin" / "cn"), "-p", "lambda", "--config", str(config)]
    return subprocess.run(
        command, cwd=place, env=variables(place, CONTINUE_TELEMETRY_ENABLED="0"), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
