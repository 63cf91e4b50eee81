"""A minute of the soak: a real server, two kinds of model, no request twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.live.conftest import ROOT

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_nothing_breaks_in_a_minute(tmp_path):
    report = tmp_path / "soak.json"
    # It takes all processors that it gets for a minute, however many requests that makes; other tests run beside.
    command = ["nice", "-n", "5", sys.executable, "-m", "bench.soak"]
    command += ["--minutes", "1", "--clients", "16", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    found = json.loads(report.read_text()) if report.exists() else {}
    assert done.returncode == 0 and found["passed"], done.stdout[-5000:] + done.stderr[-5000:]
    assert set(found["phases"]) == {"unique", "mixed"}
    for phase in found["phases"].values():
        assert phase["num_requests"] >= 100
        assert phase["num_failures"] == phase["num_changed_repeats"] == phase["num_deaths"] == 0
        assert set(phase["memory"]) == {"web", "worker"}
    assert found["phases"]["mixed"]["num_cancelled"] > 0
