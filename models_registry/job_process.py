"""Run a job on a checkpoint in a child process, which loads the network that the web process can't.

The child (a module of ``blazr_site`` that calls ``blazr_site.job_child``) gets a request on its standard input and
writes lines of JSON: progress, then a result or an error. It ends, and removes its files, when its input is closed:
also where this process was killed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from inference.errors import EngineError

STOP_S = 20.0
"""Seconds from SIGTERM to SIGKILL; the child removes unfinished files meanwhile."""
_ROOT = Path(__file__).resolve().parents[1]
_READ_BYTES = 1 << 16
MAX_LINE_BYTES = 16 << 20
"""Most of a message, which may hold what a stranger's repository lists."""


class JobProcess:
    """One child process; a context manager that ends it.

    Args:
        module: What the child runs: one of our own names.
        request: Arguments of the child's work.
        can_fetch: Whether it may ask the hub.
    """

    def __init__(self, module: str, request: Mapping[str, Any], *, can_fetch: bool = False) -> None:
        hub = {"HF_HUB_DISABLE_TELEMETRY": "1"} if can_fetch else {"HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(  # noqa: S603 - no shell, and a name of our own
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(_ROOT), **hub},
            cwd=_ROOT,
            start_new_session=True,
        )
        try:
            self._send(request)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def messages(self, every_s: float) -> Iterator[dict[str, Any]]:
        """Yield the child's messages until its end, and an empty one after ``every_s`` seconds without any.

        Raises:
            EngineError: The child ended with another status than 0, or wrote more than ``MAX_LINE_BYTES`` in a line.
        """
        assert self._process.stdout is not None
        descriptor, rest = self._process.stdout.fileno(), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                if not selector.select(every_s):
                    yield {}
                    continue
                piece = os.read(descriptor, _READ_BYTES)
                if not piece:
                    break
                rest += piece
                if b"\n" in piece:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        yield json.loads(line)
                if len(rest) > MAX_LINE_BYTES:
                    raise EngineError(f"the job's process wrote a line of more than {MAX_LINE_BYTES >> 20} MiB.")
        self._check_status(self._process.wait())

    def stop(self) -> None:
        """End the child if it still runs, and collect it; may be called repeatedly."""
        process = self._process
        with suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        if process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its status says how
            self._process.stdin.write(json.dumps(dict(request)).encode() + b"\n")
            self._process.stdin.flush()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)  # it leads its own session

    def _check_status(self, status: int) -> None:
        if status == -signal.SIGKILL:
            raise EngineError("the system killed the job's process, most likely for want of memory.")
        if status:
            raise EngineError(f"the job's process broke (exit status {status}); the server's log says why.")
