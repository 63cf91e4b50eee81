"""Servers, each held by a child: started by ``load``, ended by ``close``; the clients are in the parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.child import peak_bytes
from bench.disturbance import family

START_TIMEOUT_S = 180.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Base of the servers: subclasses say the command and where to ask for readiness."""

    ready_path = "/health"

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="blazr-bench-")
        self.data = Path(self._folder.name)

    def command(self) -> list[str]:
        raise NotImplementedError

    def load(self) -> dict[str, Any]:
        """Start, and wait until it answers that it is ready."""
        log = self.data / "server.log"
        with log.open("w") as output:
            self._process = subprocess.Popen(self.command(), stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready_path}", timeout=2):
                    return {"port": self.port}
            except OSError:
                time.sleep(0.05)
        text = log.read_text(errors="replace")[-1500:]
        self.close()
        raise RuntimeError(f"{self.command()[0]} did not become ready: {text}")

    def memory(self) -> dict[str, int]:
        """Peak of each process of the server; ``peak_bytes`` is that of the greatest."""
        peaks = [peak_bytes(pid) for pid in family(self._process.pid)]
        return {"peak_bytes": max(peaks), "all_bytes": sum(peaks)}

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


class BlazrServer(ServerProcess):
    """``blazr serve`` with a Redis and a data directory of its own."""

    ready_path = "/readyz"

    def __init__(
        self, directory: str, dtype: str = "bfloat16", quant: str | None = None, cache_bytes: int = 2 << 30
    ) -> None:
        super().__init__()
        self._options = ["--model", f"bench={directory}", "--dtype", dtype, "--cache-bytes", str(cache_bytes)]
        self._options += ["--quant", quant] if quant else []

    def command(self) -> list[str]:
        """With the interpreter's own ``blazr``."""
        blazr = str(Path(sys.executable).with_name("blazr"))
        return [blazr, "serve", "--port", str(self.port), "--data-dir", str(self.data / "site"), *self._options]


class LlamaServer(ServerProcess):
    """llama.cpp's own server: 32 slots, continuous batching, which is its default.

    A cache that the slots share (``--kv-unified``) was slower here, as were one thread and no polling.

    Args:
        binary: ``llama-server``.
        slots: Sequences computed together.
        context: Tokens of all slots together.
    """

    def __init__(self, binary: str, file: str, slots: int = 32, context: int = 16384) -> None:
        super().__init__()
        threads = str(len(os.sched_getaffinity(0)))
        self._command = [binary, "-m", file, "--host", "127.0.0.1", "--port", str(self.port)]
        self._command += ["-np", str(slots), "-c", str(context), "-t", threads, "-tb", threads]
        self._command += ["--cache-ram", "0", "--no-webui"]

    def command(self) -> list[str]:
        return self._command
