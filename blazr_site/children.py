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
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 30.0
STABLE_AFTER_S = 5.0
"""A process that ran this long is started again after the first pause; a quicker end doubles the pause."""
EXIT_NOT_STARTED = 127
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Program:
    """One supervised process.

    Attributes:
        name: Prefix of the log lines, and name of the log file.
        grace_s: Seconds from SIGTERM to SIGKILL.
        descriptors: Open file descriptors that the process inherits, under the same numbers.
        is_quiet: Whether its output goes to the log only.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float
    descriptors: Sequence[int] = ()
    is_quiet: bool = False


class Child:
    """Keeps one program running.

    Args:
        report: Shows one line: of the process's output, or of its end and restart.
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
        self.exit_code: int | None = None
        self._log = _Log(log_dir / f"{program.name}.log", lambda line: report(program.name, line))
        self._report = report
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Start the program and keep it running."""
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """Send SIGTERM, wait the grace time, then send SIGKILL to the whole session."""
        self._stopping.set()
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
        self._stopping.set()
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
        num_quick = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self.exit_code = await self._run_once()
            except OSError as error:  # such as no memory for a process at the moment
                self._report(self.program.name, f"could not be started ({error})")
                self.exit_code = EXIT_NOT_STARTED
            if self._stopping.is_set():
                return
            self._on_exit(self.exit_code)
            num_quick = num_quick + 1 if time.monotonic() - started < STABLE_AFTER_S else 1
            pause_s = min(FIRST_PAUSE_S * 2 ** (num_quick - 1), MAX_PAUSE_S)
            self._report(self.program.name, f"ended with {_words(self.exit_code)}, starts again in {pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

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
            pass_fds=tuple(self.program.descriptors),
            limit=LINE_LIMIT,
        )
        if self._stopping.is_set():  # since the start began
            self._signal(signal.SIGTERM)
        await self._copy_output(process)
        return await process.wait()

    async def _copy_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.closing(self._log):
            self._log.write(b"")  # a process that says nothing has a log, too
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:  # longer than the limit: the stream has dropped it
                    continue
                if not line:
                    return
                self._log.write(line)
                if not self.program.is_quiet:
                    self._report(self.program.name, line.decode(errors="replace").rstrip("\n"))


class _Log:
    """The log file of a program. An error of the file is reported once and never ends the reading of the output.

    Args:
        report: Shows one line.
    """

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        self._file: BinaryIO | None = None
        self._is_failing = False

    def write(self, line: bytes) -> None:
        """Append a line, and rotate the file when it is long; without success, the next line tries again."""
        try:
            file = self._file = self._file or self._open()
            file.write(line)
            if file.tell() > MAX_LOG_BYTES:
                self.close()
                self._path.replace(self._path.with_suffix(".log.1"))
                self._file = self._open()
        except OSError as error:  # such as a full disk
            if not self._is_failing:
                self._report(f"its log can't be written ({error}); lines may be missing there")
            self._is_failing = True
            self.close()
        else:
            self._is_failing = False

    def _open(self) -> BinaryIO:
        return self._path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _die_with_parent() -> None:
    """Make the child end with its supervisor, even if that is killed; runs in the child before exec."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _words(exit_code: int) -> str:
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
