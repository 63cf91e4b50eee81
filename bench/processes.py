"""Handle of a ``bench.child`` process: run a command, wait for its result, end."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.disturbance import family

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 900.0


class PeerFailed(Exception):
    """A measured process could not do what it was asked; the text is its own."""


class Child:
    """One measured process.

    Args:
        kind: Of ``bench.child.KINDS``.
        directory: The checkpoint, if the kind takes one.
        python: Interpreter of the environment that it runs in.
        prefix: A command put before it, such as ``taskset -c 0-3``.
        environment: Variables on top of ours.
        tree: The version whose modules it runs.
        options: Further arguments of the kind.
    """

    def __init__(
        self,
        kind: str,
        directory: Path | None = None,
        *,
        python: Path | str = sys.executable,
        prefix: str = "",
        environment: Mapping[str, str] | None = None,
        tree: Path = ROOT,
        **options: Any,
    ) -> None:
        if directory is not None:
            options["directory"] = str(directory)
        command = [*shlex.split(prefix), str(python), "-m", "bench.child", kind, json.dumps(options)]
        variables = {**os.environ, **(environment or {}), "PYTHONPATH": str(tree)}
        self._log = tempfile.NamedTemporaryFile("w+", prefix="blazr-bench-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=tree,
            env=variables,
            start_new_session=True,
        )
        self._unread = b""
        self.facts = self._read_line()

    def run(self, name: str, **values: Any) -> dict[str, Any]:
        """Run one command and wait for its result.

        Raises:
            PeerFailed: It returned an error, died, or took too long.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps({"do": name, **values}) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(self._last_lines()) from None
        return self._read_line()

    def _read_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                text = self._last_lines() if ready else f"no result within {READY_TIMEOUT_S:g} s"
                self.close()
                raise PeerFailed(text)
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        values: dict[str, Any] = json.loads(line)
        if "error" in values:
            raise PeerFailed(str(values["error"]))
        return values

    def _last_lines(self) -> str:
        lines = [line for line in Path(self._log.name).read_text(errors="replace").splitlines() if line.strip()]
        return "ended: " + (" | ".join(lines[-4:])[-800:] if lines else "without a word")

    def close(self) -> None:
        """Let it end in order; what is left of it after that is killed."""
        if self.process.poll() is None and self.process.stdin is not None:
            try:
                self.process.stdin.write(b'{"do": "quit"}\n')
                self.process.stdin.close()
            except BrokenPipeError:
                pass
            try:
                self.process.wait(45)
            except subprocess.TimeoutExpired:
                self._kill(family(self.process.pid))
                self.process.wait()
        self._log.close()

    @staticmethod
    def _kill(pids: Sequence[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
