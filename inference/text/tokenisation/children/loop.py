"""The loop of a sandboxed child: read a request, compute under limits, write the answer.

Frames on descriptor 0 (a socket, both directions): eight bytes of length, big-endian, then JSON. A request holds
``cpu_s``, the processor seconds it may use: an interval timer ends the process when they are spent, even in
the middle of one long C call. The parent closes its end to end the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inference.host.confinement import confine

Handler = Callable[[dict[str, Any]], dict[str, Any]]

_CHANNEL = 0
_PAGE_BYTES = resource.getpagesize()


class Refused(Exception):
    """The request's own fault; the message may be shown."""


def limit_memory(budget_bytes: int) -> None:
    """Let this process map ``budget_bytes`` more than it has mapped now, write no file and leave no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():
        limit = int(statm.read_text().split()[0]) * _PAGE_BYTES + budget_bytes
        with contextlib.suppress(ValueError, OSError):  # a stricter hard limit is already there
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(handle: Handler, memory_bytes: int, readable: Sequence[Path] = ()) -> None:
    """Handle requests until the parent goes away, without network, and without files but the readable ones."""
    limit_memory(memory_bytes)
    confine(readable)
    while True:
        header = _read(8)
        if header is None:
            return
        body = _read(int.from_bytes(header, "big"))
        if body is None:
            return
        _write(_response(handle, body))


def _response(handle: Handler, body: bytes) -> bytes:
    try:
        request = json.loads(body)
        signal.setitimer(signal.ITIMER_PROF, request.pop("cpu_s"))
        reply = json.dumps({"ok": handle(request)}, separators=(",", ":")).encode()
    except Refused as error:
        reply = _failure("refused", str(error))
    except MemoryError:
        reply = _failure("memory", "")
    except RecursionError:
        reply = _failure("refused", "it nests too deeply")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic is a BaseException; the child goes on with the next request
        reply = _failure("refused", f"{type(error).__name__}: {error}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return reply


def _failure(kind: str, message: str) -> bytes:
    return json.dumps({"failure": kind, "message": message}).encode()


def _read(size: int) -> bytes | None:
    chunks: list[bytes] = []
    while size:
        chunk = os.read(_CHANNEL, min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _write(body: bytes) -> None:
    frame = memoryview(len(body).to_bytes(8, "big") + body)
    while frame:
        frame = frame[os.write(_CHANNEL, frame) :]
