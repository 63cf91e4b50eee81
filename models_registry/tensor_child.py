"""Sum up or compare the numbers of tensors, as the child process of ``tensor_values``.

A request is a line on the standard input, which then stays open; the reply is a line of JSON. Nothing of a file is
interpreted but numbers at known places.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

from inference.errors import BlazrError
from inference.host.signals import end_with_stdin
from models_registry.tensor_numbers import StoredTensor, change, statistics

NICENESS = 10
CPU_S = 120
MEMORY_BYTES = 4 << 30
"""Of addresses, which numpy's libraries take more of than of memory."""


def summarise(request: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of one tensor."""
    return statistics(StoredTensor(**request["tensor"]))


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of pairs of tensors, as many as there is time for: ``changes``, by the pairs' numbers."""
    ends_at = time.monotonic() + request["seconds"]
    found = []
    for before, after in request["pairs"]:
        if time.monotonic() > ends_at:
            break
        found.append(change(StoredTensor(**before), StoredTensor(**after), request["max_values"]))
    return {"changes": found}


WORK = {"summarise": summarise, "compare": compare}


def main() -> None:
    """Run one request."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    request = json.loads(sys.stdin.buffer.readline())
    end_with_stdin()
    try:
        reply = {"result": WORK[request.pop("work")](request)}
    except BlazrError as error:
        reply = {"error": error.to_dict()}
    sys.stdout.write(json.dumps(reply, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
