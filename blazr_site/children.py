"""Start, watch, log and stop the supervisor's child processes, each in its own session."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 20 << 20
LINE_LIMIT = 1 << 20
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
STABLE_AFTER_S = 60.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Program:
    """One supervised process.

    Attributes:
        name: Prefix of the log lines, and name of the log file.
        grace_s: Seconds from SIGTERM to SIGKILL.
        restart: Whether the process is restarted when it ends by itself.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float
    restart: bool = True


class Child:
    """Keeps one program running.

    Args:
        report: Shows one line of the process's output.
        on_exit: Called with the exit code each time the process ends by itself, before a restart.
    """

    def __init__(
        self,
        program: Program,
        log_dir: Path,
        *,
        report: Callable[[str, str], None],
        on_exit: Callable[[int], None] = lambda code: None,
    ) -> None:
        self.program = program
        self.num_starts = 0
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self._log_path = log_dir / f"{program.name}.log"
        self._report = report
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Start the program and keep it running."""
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """Send SIGTERM, wait the grace time, then send SIGKILL to the whole session."""
        self._stopping = True
        self._signal(signal.SIGTERM)
        if self._task is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._task), self.program.grace_s)
        except TimeoutError:
            self._report(self.program.name, f"did not stop within {self.program.grace_s:g} s and is killed")
            self.kill()
            await self._task

    def kill(self) -> None:
        """Send SIGKILL at once."""
        self._stopping = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)  # it leads its own session
            else:
                os.kill(self.pid, number)

    async def _keep_running(self) -> None:
        failures = 0
        while not self._stopping:
            started = time.monotonic()
            self.exit_code = await self._run_once()
            if self._is_stopping():
                break
            self._on_exit(self.exit_code)
            if not self.program.restart:
                break
            failures = 0 if time.monotonic() - started > STABLE_AFTER_S else failures + 1
            # The first restart comes at once: a worker that died has requests waiting.
            pause_s = 0.0 if failures <= 1 else BACK_OFF_S[min(failures - 2, len(BACK_OFF_S) - 1)]
            self._report(self.program.name, f"ended with {_words(self.exit_code)}, starts again in {pause_s:g} s")
            deadline = time.monotonic() + pause_s
            while not self._stopping and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
        self.ended.set()

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _run_once(self) -> int:
        self.num_starts += 1
        self._process = process = await asyncio.create_subprocess_exec(
            *self.program.command,
            env=dict(self.program.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            limit=LINE_LIMIT,
        )
        if self._is_stopping():  # since the start began
            self._signal(signal.SIGTERM)
        await self._copy_output(process)
        return await process.wait()

    async def _copy_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self._open_log())
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:  # longer than the limit: the stream has dropped it
                    continue
                if not line:
                    return
                log.write(line)
                log.flush()
                if log.tell() > MAX_LOG_BYTES:
                    log.close()
                    self._log_path.replace(self._log_path.with_suffix(".log.1"))
                    log = stack.enter_context(self._open_log())
                self._report(self.program.name, line.decode(errors="replace").rstrip("\n"))

    def _open_log(self) -> BinaryIO:
        return self._log_path.open("ab")


def _die_with_parent() -> None:
    """Make the child end with its supervisor, even if that is killed; runs in the child before exec."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _words(exit_code: int) -> str:
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
