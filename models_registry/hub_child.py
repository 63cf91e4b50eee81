"""Pull a checkpoint in a child process, and write lines of JSON: progress, then a path or an error.

    {"model": …, "max_bytes": …}            a pull; ORG/NAME, perhaps with :TAG or :FILE.gguf
    {"model": …, "is_preview": true}        what it would fetch: {"result": …}
    {"search": …, "limit": …}               what the hub finds: {"result": […]}

The hub's library and its threads stay out of the web process, which can kill the pull at once. Downloaded files stay in
the hub's cache, and the next pull resumes there; an incomplete wheel is removed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict
from typing import Any

from inference.errors import BlazrError
from inference.host.signals import end_with_stdin, exit_on_sigterm
from models_registry.hub import PullProgress, hub_pull
from models_registry.hub_preview import hub_preview, hub_search
from models_registry.package_index import package_pull, wheel_reference

REPORT_EVERY_S = 0.1
PIECE_BYTES = 1 << 20
MAX_MEMORY_BYTES = 4 << 30
"""The hub's library reads replies whole, and a compressed one can be a thousand times as large as what is sent."""


class Reporter:
    """Writes the progress, ten times a second at most."""

    def __init__(self) -> None:
        self._file, self._stage = "", ""
        self._reported_at = 0.0

    def __call__(self, progress: PullProgress) -> None:
        """Write the progress; the start and the end of each file and stage are always written."""
        now = time.monotonic()
        is_other = (progress.file, progress.stage) != (self._file, self._stage)
        if is_other or progress.done_bytes == progress.total_bytes or now - self._reported_at >= REPORT_EVERY_S:
            self._file, self._stage, self._reported_at = progress.file, progress.stage, now
            _write_line({"progress": asdict(progress)})


def _write_line(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _take_small_pieces() -> None:
    """Let the hub's library hand on a mebibyte at a time instead of ten: so that slow downloads show what comes."""
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES


def _result(request: dict[str, Any]) -> dict[str, Any]:
    """Do what the request asks for; returns the last line.

    Raises:
        BlazrError: It can't be done.
    """
    if "search" in request:
        found = hub_search(request["search"], request["limit"])
        return {"result": [asdict(row) | {"can_be_pulled": row.can_be_pulled} for row in found]}
    reference = wheel_reference(request["model"])
    if request.get("is_preview"):
        seen = hub_preview(request["model"])
        return {"result": asdict(seen) | {"total_bytes": seen.total_bytes}}
    if reference is None:
        _take_small_pieces()
        return {"path": str(hub_pull(request["model"], progress=Reporter(), max_bytes=request["max_bytes"]))}
    exit_on_sigterm()
    return {"path": str(package_pull(reference, Reporter(), max_bytes=request["max_bytes"]))}


def main() -> None:
    """Serve one request, which is the argument, or a line of the input, which then stays open."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    if len(sys.argv) > 1:
        request = json.loads(sys.argv[1])
    else:
        request = json.loads(sys.stdin.buffer.readline())
        end_with_stdin()
    try:
        _write_line(_result(request))
    except BlazrError as error:
        _write_line({"error": error.to_dict()})


if __name__ == "__main__":
    main()
