"""A pull in a process of its own: a request in, lines of JSON out (progress, then a path or an error).

The hub's library and its threads stay out of the web process, and whoever started the pull can end it at once; what
was fetched stays in the cache, where the next pull goes on.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from inference.errors import BlazrError
from models_registry.hub import PullProgress, hub_pull

REPORT_EVERY_S = 0.1


class Reporter:
    """Writes progress, not more often than somebody can read it."""

    def __init__(self) -> None:
        self._file = ""
        self._said_at = 0.0

    def __call__(self, progress: PullProgress) -> None:
        """The beginning and the end of each file are always told."""
        now = time.monotonic()
        is_news = progress.file != self._file or progress.file_done_bytes == progress.file_bytes
        if is_news or now - self._said_at >= REPORT_EVERY_S:
            self._file, self._said_at = progress.file, now
            _say({"progress": asdict(progress)})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The child: one request as argument."""
    request = json.loads(sys.argv[1])
    try:
        path = hub_pull(request["repo_id"], progress=Reporter(), max_bytes=request["max_bytes"])
        _say({"path": str(path)})
    except BlazrError as error:
        _say({"error": error.to_dict()})


if __name__ == "__main__":
    main()
