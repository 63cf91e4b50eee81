"""Other work beside a measurement is noticed; the measurement's own is not taken for it."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from bench import disturbance
from bench.disturbance import Disturbed, _Moment, foreign_work, undisturbed, undisturbed_rounds

BUSY = [sys.executable, "-c", "while True: pass"]


def test_work_that_is_nobodys_is_foreign() -> None:
    before = _Moment(0.0, 100.0, {1: 5.0, 2: 7.0})
    after = _Moment(10.0, 118.0, {1: 14.0, 2: 15.5, 3: 0.5})
    assert foreign_work(before, after, {1, 2, 3})[0] == 0.0  # 9 + 8.5 + 0.5 of 18 s
    assert foreign_work(before, after, {1, 3})[0] == pytest.approx(0.85, abs=0.01)
    # Steal and processes that ended have no row in the table, but the processors were busy.
    assert foreign_work(before, _Moment(10.0, 123.0, after.processes), {1, 2, 3})[0] == pytest.approx(0.5, abs=0.01)


def test_a_disturbed_value_is_measured_again_and_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 9.0, 10.0, 10.0])
    monkeypatch.setattr(disturbance, "moment", lambda: _Moment(time.perf_counter(), next(moments), {}))
    calls: list[int] = []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"value": len(calls)}

    assert undisturbed(lambda: [], measure)[0] == {"value": 2}
    busy = iter(range(100))
    monkeypatch.setattr(disturbance, "moment", lambda: _Moment(time.perf_counter(), float(next(busy)), {}))
    with pytest.raises(Disturbed, match="other work took"):
        undisturbed(lambda: [], measure, attempts=2)
    assert len(calls) == 4


def test_a_repeated_attempt_has_prompts_that_no_cache_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 9.0, 10.0, 10.0, 10.0, 10.0])  # the first attempt of the first round is disturbed
    monkeypatch.setattr(disturbance, "moment", lambda: _Moment(time.perf_counter(), next(moments), {}))
    seeds: list[int] = []

    def measure(seed: int) -> dict[str, Any]:
        seeds.append(seed)
        return {"seed": seed}

    found = undisturbed_rounds(lambda: [], measure, [3, 4])
    assert seeds == [3, 3 + disturbance.SEEDS_APART, 4]
    assert [values["seed"] % 2 for values in found] == [1, 0]  # the order of the turns follows from the parity


def test_a_real_process_beside_the_measurement_is_noticed_unless_it_belongs_to_it() -> None:
    busy = subprocess.Popen(BUSY)
    try:
        before = disturbance.moment()
        time.sleep(0.5)
        after = disturbance.moment()
    finally:
        busy.kill()
        busy.wait()
    used = after.processes[busy.pid] - before.processes.get(busy.pid, 0.0)
    assert used > 0
    everybody = set(after.processes)
    assert foreign_work(before, after, everybody - {busy.pid})[0] >= foreign_work(before, after, everybody)[0]
