"""Sandbox: a warm child process for programs that came with a checkpoint.

Chat templates and ``tokenizer.json`` files are untrusted programs: a template can compute 9**9999999, a
regular expression can backtrack for ever. Threads can't be killed, so these run in a child with a
limit on processor time, memory, wall time and size of the answer. A child that breaks a limit is
killed and started anew for the next call; nothing else in this process notices.

The child gets no environment variables, no open files and no secrets of the parent. Where the kernel can
(``inference.host.confinement``), it has no network, and of the file system only what it is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from inference.errors import Unavailable

FailureKind = Literal["refused", "time", "memory", "output", "crash"]

_ROOT = Path(__file__).resolve().parents[3]
_START = (
    "import sys; sys.path.append(sys.argv[1]); from importlib import import_module; "
    "from pathlib import Path; "
    "import_module(sys.argv[2]).main(int(sys.argv[3]), [Path(name) for name in sys.argv[4:]])"
)
_QUEUE_WAIT_S = 20.0
START_WALL_S = 10.0
"""A child's first answer may come so much later: it starts an interpreter first."""


class SandboxFailure(Exception):
    """A call that the child refused or did not survive.

    Attributes:
        kind: ``refused``: the program itself raised, ``message`` says what; ``time``, ``memory``, ``output``: a
            limit was reached; ``crash``: the process ended.
    """

    def __init__(self, kind: FailureKind, message: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind: FailureKind = kind
        self.message = message

    def reason(self) -> str:
        """A phrase for an error message."""
        match self.kind:
            case "refused":
                return self.message
            case "time":
                return "it takes too long"
            case "memory":
                return "it needs too much memory"
            case "output":
                return "its output is too large"
            case "crash":
                return "it ended its process (too much time or memory)"


class Sandbox:
    """One child process, started on first use, one call at a time. Thread-safe.

    Args:
        module: Module with a ``main(memory_bytes, readable)``; a name without dots is under
            ``inference.text.tokenisation.children``.
        memory_bytes: What the child may map beyond its start.
        first_call: Sent to every fresh child before anything else; None: nothing.
        first_cpu_s: Processor seconds for that.
        readable: Files that the child can read.
        purpose: What the child is, for the message that it is busy.
    """

    def __init__(
        self,
        module: str,
        *,
        memory_bytes: int,
        first_call: Mapping[str, Any] | None = None,
        first_cpu_s: float = 1.0,
        readable: Sequence[Path] = (),
        purpose: str = "the checkpoint's text processor",
    ) -> None:
        self._purpose = purpose
        self._module = module if "." in module else f"inference.text.tokenisation.children.{module}"
        self._memory_bytes = memory_bytes
        self._first_call = first_call
        self._first_cpu_s = first_cpu_s
        self._readable = tuple(readable)
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._kill: Callable[[], object] = lambda: None
        self._closed = False
        self._refusal: SandboxFailure | None = None  # of the first call; it would be the same every time

    def call(self, payload: Mapping[str, Any], *, cpu_s: float, max_reply_bytes: int = 1 << 26) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Args:
            payload: A JSON value.
            cpu_s: Processor seconds for it; the wall deadline is four times that plus two seconds (and the time of
                the child's start), so that a busy machine doesn't fail honest requests.
            max_reply_bytes: A longer answer is a failure.

        Raises:
            SandboxFailure: The child refused, or broke a limit.
            Unavailable: Other calls keep the child busy, or others the machine: the wall deadline passed.
        """
        if not self._lock.acquire(timeout=_QUEUE_WAIT_S):
            raise Unavailable(
                f"{self._purpose} has been busy for {_QUEUE_WAIT_S:.0f} s; retry later.",
                retry_after_s=5,
            )
        try:
            child = self._running()
            return self._exchange(child, payload, cpu_s, max_reply_bytes)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child; a later call fails."""
        with self._lock:
            self._closed = True
            self._discard()

    def _running(self) -> _Child:
        if self._closed:
            raise SandboxFailure("crash", "closed")
        if self._refusal is not None:
            raise self._refusal
        if self._child is not None and self._child.process.poll() is not None:
            self._discard()
        if self._child is None:
            self._child = _Child(self._module, self._memory_bytes, self._readable)
            self._kill = weakref.finalize(self, self._child.kill)
            if self._first_call is not None:
                try:
                    self._exchange(self._child, self._first_call, self._first_cpu_s, 1 << 28)
                except SandboxFailure as failure:
                    self._discard()
                    if failure.kind == "refused":
                        self._refusal = failure
                    raise
        return self._child

    def _exchange(self, child: _Child, payload: Mapping[str, Any], cpu_s: float, max_bytes: int) -> dict[str, Any]:
        timeout_s = 4.0 * cpu_s + 2.0
        try:
            reply = child.exchange({**payload, "cpu_s": cpu_s}, timeout_s, max_bytes)
        except SandboxFailure:
            self._discard()
            raise
        except TimeoutError:
            # It has had less processor time than it may: nothing is known about the program.
            self._discard()
            raise Unavailable(
                f"{self._purpose} did not get enough processor time within {timeout_s:.0f} s; retry later.",
                retry_after_s=5,
            ) from None
        if "failure" in reply:
            raise SandboxFailure(reply["failure"], str(reply["message"]))
        result: dict[str, Any] = reply["ok"]
        return result

    def _discard(self) -> None:
        if self._child is not None:
            self._kill()
            self._child = None


class _Child:
    """The process and our end of its socket."""

    def __init__(self, module: str, memory_bytes: int, readable: Sequence[Path]) -> None:
        self._is_fresh = True
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - our own module, by this interpreter
                [sys.executable, "-I", "-c", _START, str(_ROOT), module, str(memory_bytes), *map(str, readable)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={
                    "PATH": os.environ.get("PATH", ""),
                    "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
                    "TZ": os.environ.get("TZ", ""),
                    "LC_ALL": "C.UTF-8",
                    "TOKENIZERS_PARALLELISM": "false",
                },
                close_fds=True,
            )

    def exchange(self, payload: Mapping[str, Any], timeout_s: float, max_bytes: int) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            SandboxFailure: The answer is too long, or the process has ended.
            TimeoutError: No answer within ``timeout_s`` and, for the first one, the time of the start.
        """
        if self._is_fresh:
            self._is_fresh, timeout_s = False, timeout_s + START_WALL_S
        deadline = time.monotonic() + timeout_s
        body = json.dumps(payload).encode()
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(len(body).to_bytes(8, "big") + body)
            size = int.from_bytes(self._receive(8, deadline), "big")
            if size > max_bytes:
                raise SandboxFailure("output")
            reply: dict[str, Any] = json.loads(self._receive(size, deadline))
            return reply
        except TimeoutError:
            raise
        except OSError:
            raise SandboxFailure(self._end()) from None

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            count = self._socket.recv_into(view)
            if not count:
                raise SandboxFailure(self._end())
            view = view[count:]
        return bytes(data)

    def _end(self) -> FailureKind:
        """Why the child closed its end: the interval timer's signal, or anything else."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return "time" if self.process.wait(1.0) == -27 else "crash"  # SIGPROF
        return "crash"

    def kill(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()
