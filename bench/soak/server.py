"""SoakServer: ``blazr serve`` with a data folder of its own, and the models that the soak asks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import ROOT
from bench.soak.requests import SoakModel
from bench.weights import LLAMA_TINY, make_llama
from models_registry.detection.inspection import inspect_checkpoint

START_TIMEOUT_S = 180.0
CACHE_BYTES = 32 << 20
"""Memory for the states of a model: little, so that it is full long before the middle of a phase."""
MAX_MODEL_LEN = 1024
NAMES = {"blazr_site.web": "web", "celery\0-q\0-A\0blazr_site.celery\0worker": "worker"}
"""The processes that are watched, by a mark in their command line."""
HYBRID = ROOT / "inference" / "demo" / "checkpoint"


class SoakServer:
    """A running server."""

    def __init__(self, models: dict[str, Path], folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = folder / "serve.log"
        self._data = folder / "data"
        command = [sys.executable, "-m", "blazr_site.cli", "serve", "--cpu", "--dtype", "float32"]
        command += ["--port", str(self.port), "--data-dir", str(self._data)]
        command += ["--cache-bytes", str(CACHE_BYTES), "--max-model-len", str(MAX_MODEL_LEN), "--keep-alive", "-1"]
        for name, directory in models.items():
            command += ["--model", f"{name}={directory}"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("BLAZR_", "DJANGO_"))}
        variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Wait until the server is ready and has loaded its models.

        Raises:
            SystemExit: It isn't within ``START_TIMEOUT_S``.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                    if "Ctrl-C" in self.log():
                        return
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"the server didn't become ready:\n{self.log()[-3000:]}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def tracebacks(self) -> list[str]:
        """Last lines of the tracebacks in the logs of web and worker, and the processes that ended."""
        found = []
        for path in [self._log, *sorted(self._data.glob("**/*.log"))]:
            inside = False
            for line in path.read_text(errors="replace").splitlines():
                text = line.split("|", 1)[-1].strip()
                if text.startswith("Traceback "):
                    inside = True
                elif inside and text and not line.startswith((" ", "\t")):
                    found.append(f"{path.name}: {text[:200]}")
                    inside = False
        return found

    def processes(self) -> dict[str, int]:
        """Process ids of what is watched, by name."""
        found: dict[str, int] = {}
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            children = [int(pid) for pid in listed.read_text().split()]
        except OSError:
            return found
        for pid in children:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:  # it has ended
                continue
            for mark, name in NAMES.items():
                if mark in command:
                    found[name] = pid
        return found

    def stop(self) -> None:
        """End the server in order, or by force where it doesn't."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def checkpoints(folder: Path) -> dict[str, Path]:
    """Two tiny models of different kinds: attention alone (random weights), and the demo model, a hybrid."""
    return {"attention": make_llama(LLAMA_TINY, folder), "hybrid": HYBRID}


def served(models: dict[str, Path]) -> list[SoakModel]:
    return [SoakModel(name, inspect_checkpoint(directory).spec.vocab_size) for name, directory in models.items()]


@contextmanager
def running_server(models: dict[str, Path], folder: Path) -> Iterator[SoakServer]:
    """A server that is ready; it ends with the block."""
    server = SoakServer(models, folder)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
