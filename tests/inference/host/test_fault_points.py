"""Fault points: what may be armed, when a point acts, and that each point is in the code once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.host import fault_points
from inference.host.fault_points import POINTS, FaultInjected, arm, fault_point
from tests.inference.worker.fakes import wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def disarmed():
    yield
    arm("")


def test_without_the_variable_no_point_acts():
    for name in POINTS:
        fault_point(name)


def test_a_point_acts_at_its_time_and_once():
    arm("job.flush:raise:3, hint:raise:1")
    fault_point("job.flush")
    fault_point("job.flush")
    fault_point("job.finish")
    with pytest.raises(FaultInjected):
        fault_point("job.flush")
    fault_point("job.flush")
    with pytest.raises(FaultInjected):
        fault_point("hint")


def test_sleep_delays_the_thread_only(monkeypatch):
    seconds, gate = [], threading.Event()

    def sleep(value: float) -> None:
        seconds.append(value)
        assert gate.wait(60)

    monkeypatch.setattr(fault_points, "time", SimpleNamespace(sleep=sleep))
    arm("hint:sleep:1")
    thread = threading.Thread(target=fault_point, args=("hint",))
    thread.start()
    wait_until(lambda: seconds)
    fault_point("hint")
    assert thread.is_alive()
    gate.set()
    thread.join(60)
    assert not thread.is_alive()
    assert seconds == [fault_points.SLEEP_S]


@pytest.mark.parametrize(("action", "status"), [("kill", -signal.SIGKILL), ("stop", -signal.SIGKILL)])
def test_kill_and_stop_are_real_signals(action, status):
    code = f"from inference.host.fault_points import *; arm('hint:{action}:1'); fault_point('hint'); print('survived')"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if action == "stop":
        stat = Path(f"/proc/{process.pid}/stat")
        for _ in range(60_000):
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "T":
                break
            threading.Event().wait(0.001)
        else:
            pytest.fail("the process isn't stopped")
        process.kill()
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == status


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere:kill:1", "no fault point; there are jobs.store, "),
        ("hint:explode:1", "one of kill, stop, sleep, raise"),
        ("hint", "one of kill"),
        ("hint:kill", "needs a number from 1"),
        ("hint:kill:0", "needs a number from 1"),
        ("hint:kill:-1", "needs a number from 1"),
        ("hint:kill:1,nowhere:kill:1", "'nowhere'"),
    ],
)
def test_what_can_t_be_armed_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        arm(text)
    fault_point("hint")


def test_every_point_stands_in_the_code_once():
    found = Counter(
        name
        for path in (ROOT / "inference").rglob("*.py")
        if path.name != "fault_points.py"
        for name in re.findall(r'fault_point\("([^"]+)"\)', path.read_text())
    )
    assert found == Counter(dict.fromkeys(POINTS, 1))
