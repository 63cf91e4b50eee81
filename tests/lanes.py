"""Run all checks and the whole suite in three lanes on two cores: the engine, the platform, and what starts servers.

Each lane has a session of pytest with a database, a Redis and folders of its own, and in the same order each time, so a
red run is red again. Tests of servers wait for processes and pages for more than half of their time, which the others
use. The checks (ruff, import-linter, mypy) run beside all in what is left, and give way to them. The arguments are
given to all sessions: ``python -m tests.lanes -x``.

Where at most six tests of a lane failed, they run once more when all lanes have ended. What passes then, with the
machine to itself, is named as UNSTEADY and doesn't make the run red: it has a race to be found. What fails again does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
INFERENCE = "tests/inference"
PLATFORM = (
    "access", "api", "batches", "dialects", "files", "host", "jobs", "llm", "models", "pages", "records", "schedules",
    "serving", "test_consumers.py", "text", "transport", "values",
)  # fmt: skip
"""What of ``tests/inference`` is in the platform's lane."""
OTHERS = sorted(path.name for path in (ROOT / INFERENCE).iterdir() if path.name not in (*PLATFORM, "conftest.py"))
ENGINE = ("tests/device",)
"""Tests outside of ``tests/inference`` in the engine's lane."""
SERVERS = ("tests/faults", "tests/live", "tests/browser")
"""Tests that drive processes of a server, one package after the other."""
NOTHING_COLLECTED = 5
TESTS_FAILED = 1
MAX_REPEATED = 6
"""More failures of a lane than these are no matter of chance."""


@dataclass
class Part:
    """A command, what it complained of, and how it ended."""

    name: str
    command: list[str]
    complaints: list[str] = field(default_factory=list)
    is_cut_short: bool = False
    status: int = -1
    seconds: float = 0.0
    busy_s: float = 0.0
    """Time of processors, with that of its children."""

    def run(self) -> None:
        """Its lines are shown with its name before them."""
        started = time.monotonic()
        # Tests start some hundred processes of ours, each of which would compile the sources again.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        # More threads than cores wait for each other; tests of what threads do take as many as they need.
        environment["OMP_NUM_THREADS"] = "1"
        # Where tests use two, those that wait would keep the processors from the other lanes: three times the time.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        with subprocess.Popen(
            self.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            is_summary = False  # before it, such lines are what a failed test has logged
            for line in process.stdout or ():
                sys.stdout.write(f"{self.name:9} | {line.rstrip()}\n")
                sys.stdout.flush()
                is_summary = is_summary or "short test summary info" in line
                self.is_cut_short = self.is_cut_short or "stopping after" in line
                if is_summary and line.startswith(("FAILED ", "ERROR ")):
                    self.complaints.append(line.rstrip())
            _, status, usage = os.wait4(process.pid, 0)
            self.status = process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds, self.busy_s = time.monotonic() - started, usage.ru_utime + usage.ru_stime

    @property
    def is_good(self) -> bool:
        """An empty session is one whose tests the arguments have deselected."""
        return self.status in (0, NOTHING_COLLECTED if "pytest" in self.command else 0)


def pytest(name: str, *arguments: str) -> Part:
    """A session of pytest."""
    options = ["-o", f"cache_dir=.pytest_cache/{name}", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, *arguments, *sys.argv[1:]]
    return Part(name, command)


def lanes() -> list[list[Part]]:
    """What runs at the same time; every test is in one of the first three."""
    # What is installed is left alone: the tools run in the environment that runs this.
    make = ["nice", "-n", "10", "make", "--no-print-directory", "--keep-going", "--old-file=.venv/.installed-dev"]
    checks = Part("checks", [*make, "lint", "imports", "types"])
    engine = pytest("engine", INFERENCE, *ENGINE, *(f"--ignore={INFERENCE}/{name}" for name in PLATFORM))
    others = (*(f"{INFERENCE}/{name}" for name in OTHERS), *ENGINE, *SERVERS)
    platform = pytest("platform", "tests", *(f"--ignore={path}" for path in others))
    return [[engine], [platform], [pytest("servers", *SERVERS)], [checks]]


def repeated(lane: Part) -> Part | None:
    """The session that runs the failed tests of a lane again, if they are few; its lane is good if it is."""
    if lane.status != TESTS_FAILED or lane.is_cut_short or not 0 < len(lane.complaints) <= MAX_REPEATED:
        return None
    again = pytest(lane.name, "--last-failed", "--last-failed-no-failures=none")
    again.run()
    return again


def run_lane(parts: list[Part]) -> None:
    """One part after the other, whatever came of those before."""
    for part in parts:
        part.run()


def main() -> int:
    """All parts, and in the end a line for each.

    Returns:
        0 if all is well; pytest's status for "nothing collected" if no test was.
    """
    chosen = lanes()
    with ThreadPoolExecutor(len(chosen)) as pool:
        list(pool.map(run_lane, chosen))
    parts = [part for lane in chosen for part in lane]
    complaints = []
    for part in parts:
        again = repeated(part) if "pytest" in part.command else None
        is_unsteady = again is not None and again.status == 0
        if is_unsteady:
            part.status = 0
        unsteady = "UNSTEADY: " if is_unsteady else ""
        complaints += [f"{part.name:9} | {unsteady}{complaint}\n" for complaint in part.complaints]
    sys.stdout.writelines(complaints)  # of all parts together, behind what the repetitions print
    for part in parts:
        verdict = "passed" if part.is_good else f"FAILED (status {part.status})"
        sys.stdout.write(f"{part.name:9} | {verdict} after {part.seconds:.0f} s, {part.busy_s:.0f} s of a processor\n")
    bad = [part.status for part in parts if not part.is_good]
    if bad:
        return bad[0]
    sessions = [part.status for part in parts if "pytest" in part.command]
    return min(sessions)


if __name__ == "__main__":
    sys.exit(main())
