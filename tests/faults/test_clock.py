"""A process with a wrong clock: its time of day jumps, its waits don't."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.faults.clock import build_library, clock_variables, has_compiler, set_clock

PROGRAM = """
import datetime, sys, threading, time
for _ in sys.stdin:
    begun = time.monotonic()
    threading.Event().wait(0.05)
    time.sleep(0.05)
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic() - begun, flush=True)
"""


@pytest.mark.skipif(not has_compiler(), reason="there is no g++")
def test_the_time_of_day_jumps_and_waits_stay_as_they_are(tmp_path):
    clock = tmp_path / "clock"
    environment = {**os.environ, **clock_variables(build_library(tmp_path), clock)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset_s in (0, 3600, -3600):
            set_clock(clock, offset_s)
            process.stdin.write("\n")
            process.stdin.flush()
            now, today, waited_s = map(float, process.stdout.readline().split())
            assert abs(now - time.time() - offset_s) < 5
            assert abs(today - time.time() - offset_s) < 5
            assert 0.1 <= waited_s < 5
        process.stdin.close()
