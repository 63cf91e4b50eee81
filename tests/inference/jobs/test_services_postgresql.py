"""The rules of jobs, batches, usage and accounts on PostgreSQL too: its row locks, its own clock, its own text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LINES = (
    "workers_that_claim_at_once_never_get_the_same_line",
    "no_line_starts_once_a_pause_has_answered",
    "a_sweep_waits_for_no_line_that_ends_late",
    "lines_are_locked_in_the_order_of_their_keys",
)
"""Those of the tests of lines whose outcome depends on the database's locks."""


@pytest.mark.slow
def test_jobs_on_postgresql(postgres_url):
    names = ("services", "claims", "claims_state_machine", "selectors", "sweep", "runner")
    files = [HERE / f"test_{name}.py" for name in names]
    files += [HERE.parent / "records" / "test_usage.py"]
    batches = ("runner", "progress", "upkeep", "batch_claims")
    files += [HERE.parent / "batches" / f"test_{name}.py" for name in batches]
    files += [f"{HERE.parent / 'batches' / 'test_lines.py'}::test_{name}" for name in LINES]
    files += [HERE.parent / "schedules" / "test_runs.py"]
    files += [HERE.parent / "access" / "test_account_changes.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)],
        cwd=HERE.parents[2],
        env={**os.environ, "DATABASE_URL": postgres_url},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
