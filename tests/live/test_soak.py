"""A short soak: a real server, two kinds of model, no request twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.live.conftest import ROOT

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_nothing_breaks_in_600_requests(tmp_path):
    report = tmp_path / "soak.json"
    # It takes all processors that it gets; other tests run beside.
    command = ["nice", "-n", "5", sys.executable, "-m", "bench.soak"]
    command += ["--unique", "300", "--mixed", "300", "--clients", "16", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    found = json.loads(report.read_text()) if report.exists() else {}
    assert done.returncode == 0 and found["passed"], done.stdout[-5000:] + done.stderr[-5000:]
    assert set(found["phases"]) == {"unique", "mixed"}
    for phase in found["phases"].values():
        assert phase["num_requests"] >= 300
        assert phase["num_failures"] == phase["num_changed_repeats"] == phase["num_deaths"] == 0
        assert set(phase["memory"]) == {"web", "worker"}
    assert found["phases"]["mixed"]["num_cancelled"] > 0
