"""Real servers that many tests share: supervisor, Redis, worker, beat and web, with the demo model."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from blazr_site.settings.redis import runtime_dir
from inference.transport import keys as redis_keys
from inference.values.states import ModelState, WorkerState, merge_models
from tests.migrated import copy_template

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"ready after ([\d.]+) s")
DEVICE = ("--device", os.environ.get("BLAZR_TEST_DEVICE", "cpu"))
"""Where the servers compute; ``make test-gpu`` puts them on a CUDA device."""
same_bits = pytest.mark.skipif(
    DEVICE[1] != "cpu", reason="on a device the last bits of a row depend on its batch, and on how a prompt is cut"
)
"""Of tests that compare whole texts, which one bit may change."""


def wait_until(check: Callable[[], Any], timeout_s: float = 60, what: str = "it") -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.02)


class LiveServer:
    """``blazr serve`` in a process of its own.

    Args:
        begins_empty: Whether it makes its database itself, instead of beginning with the session's migrated one.
    """

    def __init__(self, data_dir: Path, *options: str, begins_empty: bool = False, **environment: str) -> None:
        self.data_dir = data_dir
        if not begins_empty and "DATABASE_URL" not in environment:
            copy_template(data_dir)
        self.log_path = data_dir.with_suffix(".log")
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("BLAZR_", "DJANGO_"))}
        variables |= {"OMP_NUM_THREADS": "1", **environment}
        self.started_at = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "blazr_site.cli", "serve", "--port", "0", "--data-dir", str(data_dir), *options],
                cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.redis_url = f"unix://{runtime_dir(data_dir)}/redis.sock?db=0"
        self.url = ""

    def wait_ready(self, timeout_s: float = 120) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log()
            return "Ctrl-C" in self.log()

        wait_until(ready, timeout_s, f"the start:\n{self.log()}\nwhich")
        self.url = re.search(r"curl -N (http://[^/]+)/", self.log())[1]
        self.client = redis.Redis.from_url(self.redis_url, protocol=2)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def pid_of(self, word: str) -> int:
        """The supervised process whose command line has this word."""
        found = self.pids_of(word)
        assert len(found) == 1, (word, [_command(pid) for pid in self._children()])
        return found[0]

    def pids_of(self, word: str) -> list[int]:
        """The supervised processes whose command lines have this word."""
        return [pid for pid in self._children() if word in _command(pid)]

    def _children(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def workers(self) -> list[WorkerState]:
        names = self.client.zrange(redis_keys.WORKERS, 0, -1)
        payloads = [self.client.get(redis_keys.worker(name.decode())) for name in names]
        return [WorkerState.from_json(payload) for payload in payloads if payload]

    def model(self, name: str = "demo") -> ModelState:
        checkpoint_id = self.checkpoint_id(name)
        return merge_models(self.workers()).get(checkpoint_id, ModelState(checkpoint_id))

    def is_idle_since(self, moment: float, name: str = "demo") -> bool:
        """Whether a worker has said since that moment (``time.time()``) that no request of the model runs."""
        return self.model(name).num_running == 0 and any(worker.heartbeat_at > moment for worker in self.workers())

    def checkpoint_id(self, name: str) -> str:
        with sqlite3.connect(self.data_dir / "db.sqlite3") as database:
            (found,) = database.execute(
                "select id from models_registry_checkpoint where served_model_name = ?", (name,)
            ).fetchone()
        return f"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:]}"

    def manage(self, code: str) -> str:
        """Run code in a process with this server's settings; returns what it prints."""
        pieces, results = self._shell.stdin, self._shell.stdout
        pieces.write(json.dumps(code) + "\n")
        pieces.flush()
        assert select.select([results], [], [], 120)[0], "the code takes too long"
        status, output, errors = json.loads(results.readline())
        assert status == 0, errors
        return output

    def register(self, path: Path, name: str) -> None:
        """Register a checkpoint under a name."""
        self.manage(
            "from models_registry.services import checkpoint_register;"
            f"checkpoint_register(path={str(path)!r}, served_model_name={name!r})"
        )

    @cached_property
    def _shell(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.live.shell"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "BLAZR_DATA_DIR": str(self.data_dir)},
        )

    @cached_property
    def admin_headers(self) -> dict[str, str]:
        """The headers of a caller with the scope admin."""
        make = "from inference.access.api_keys import api_key_create"
        key = self.manage(f"{make}; print(api_key_create(name='boss', scopes=['admin'])[1])").strip()
        return {"Authorization": f"Bearer {key}"}

    def complete(self, **body: Any) -> httpx.Response:
        body = {"model": "demo", "prompt": "The statement", "max_tokens": 16, "temperature": 0, **body}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)

    def stream(self, on_token: Callable[[int], None] = lambda number: None, **body: Any) -> tuple[str, list[Any]]:
        """Text and chunks of a streamed completion; ``on_token`` sees each token's number, with its chunk."""
        body = {"model": "demo", "prompt": "The statement", "temperature": 0, "stream": True, **body}
        body["return_token_ids"] = True
        chunks: list[Any] = []
        num_tokens = 0
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=60) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    break
                chunks.append(json.loads(line[6:]))
                for _ in token_ids(chunks[-1:]):
                    num_tokens += 1
                    on_token(num_tokens)
        text = "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))
        return text, chunks

    @contextmanager
    def held_worker(self) -> Iterator[int]:
        """Stop the worker with SIGSTOP until the end of the block, where it holds no lock of the database.

        What it does stays as it is meanwhile, however long the rest takes; a block of ten seconds or more ends the
        worker, because its lease is over. Yields its process id.
        """
        worker = self.pid_of("celery -q -A blazr_site.celery worker")
        os.kill(worker, signal.SIGSTOP)
        try:
            while not self._is_writable():
                os.kill(worker, signal.SIGCONT)
                time.sleep(0.05)
                os.kill(worker, signal.SIGSTOP)
            yield worker
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)

    def _is_writable(self) -> bool:
        with closing(sqlite3.connect(self.data_dir / "db.sqlite3", timeout=0.1, isolation_level=None)) as database:
            try:
                database.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            database.execute("rollback")
            return True

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 120) -> int:
        if shell := self.__dict__.pop("_shell", None):
            shell.communicate(timeout=timeout_s)  # which ends its input
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise


def token_ids(chunks: list[Any]) -> list[int]:
    """The tokens of chunks that ``LiveServer.stream`` gave."""
    return [token for chunk in chunks for choice in chunk.get("choices", ()) for token in choice.get("token_ids") or ()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture(scope="package")
def server(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The server of most tests; they find it again with the demo model, but not in any other state."""
    yield from _running(LiveServer(tmp_path_factory.mktemp("live") / "data", *DEVICE))


@pytest.fixture(scope="package")
def plain_server(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One that computes in float32, without a prefix cache, and whose engine holds three requests; it logs texts."""
    options = (*DEVICE, "--dtype", "float32", "--no-prefix-cache")
    variables = {"BLAZR_MAX_NUM_SEQS": "1", "BLAZR_LOG_REQUESTS": "contents"}
    yield from _running(LiveServer(tmp_path_factory.mktemp("plain") / "data", *options, **variables))


def _running(found: LiveServer) -> Iterator[LiveServer]:
    try:
        found.wait_ready()
        yield found
    finally:
        if found.process.poll() is None:
            found.stop()
