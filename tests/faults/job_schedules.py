"""Run the jobs' state machine for long: ``python -m tests.faults.job_schedules --schedules 100000 --seed 1``.

The machine and its rules are in ``tests/inference/jobs/test_runner_state_machine.py``; the
first failure ends a run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.faults.campaigns import ROOT, add_argument, record

TEST = "tests/inference/jobs/test_runner_state_machine.py::test_jobs_end_once_in_every_schedule"


def main() -> int:
    """Return 0 if no schedule broke an invariant."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.job_schedules", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    add_argument(parser)
    given = parser.parse_args()
    started = time.monotonic()
    variables = {**os.environ, "SCHEDULES": str(given.schedules), "SCHEDULES_SEED": str(given.seed)}
    command = [sys.executable, "-m", "pytest", "-q", TEST]
    code = subprocess.run(command, cwd=ROOT, env=variables).returncode
    record(
        given.record, "job schedules", seed=given.seed, size=given.schedules, failures=int(code != 0),
        seconds=time.monotonic() - started, figures={},
    )  # fmt: skip
    return code


if __name__ == "__main__":
    sys.exit(main())
