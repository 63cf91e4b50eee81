"""Run the product's inspection child in forks of a process that has imported it.

The product starts an interpreter for each inspection, half a second on a busy core. A fork runs the same ``main`` under
the same limits and confinement, and reports what it cost.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.errors import CorruptCheckpoint
from models_registry.detection import child
from models_registry.detection.child import ChildLimits
from models_registry.detection.inspection import Inspection

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one inspection cost.

    Attributes:
        status: Exit status, or the negative number of the signal.
        cpu_s: Processor seconds.
        peak_bytes: Most resident memory, the interpreter's own included.
    """

    status: int
    cpu_s: float
    peak_bytes: int


class Intake:
    """The process that forks; ``inspect`` stands in for ``inspect_in_child``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cost = Cost(0, 0.0, 0)

    def inspect(
        self, path: Path, overrides: Mapping[str, Any] | None = None, limits: ChildLimits | None = None
    ) -> Inspection:
        """As ``inspect_in_child``; ``cost`` is what it cost."""
        limits = limits or ChildLimits()
        request = {"path": str(path.absolute()), "overrides": dict(overrides or {}), "limits": asdict(limits)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        self.cost = Cost(reply["status"], reply["cpu_s"], reply["peak_bytes"])
        if reply["is_late"]:
            raise CorruptCheckpoint(f"inspecting {path.name} took more than {limits.wall_s:g} s.")
        payload = child._result(reply["stdout"].encode(), self.cost.status, reply["stderr"], path, limits)
        return Inspection.from_dict(payload["inspection"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def _fork(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(request).encode())
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate((given, output, errors)):
                os.dup2(file.fileno(), number)
            _run()
        deadline = time.monotonic() + request["limits"]["wall_s"]
        is_late = False
        while (found := os.wait4(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                is_late = True
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        _, status, usage = found
        output.seek(0)
        errors.seek(0)
        return {
            "status": os.waitstatus_to_exitcode(status),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "peak_bytes": usage.ru_maxrss << 10,
            "is_late": is_late,
            "stdout": output.read().decode("utf-8", "replace"),
            "stderr": errors.read(4000).decode("utf-8", "replace"),
        }


def _run() -> None:
    """Be the child, from here to the end of the process."""
    status = 1
    with contextlib.suppress(BaseException):
        try:
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
            child.main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve requests, a line each."""
    from inference.modelling.families.registry import FAMILIES, family_builder

    for name in FAMILIES:  # the child imports them when it needs them
        family_builder(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_fork(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
