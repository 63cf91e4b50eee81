"""The worker's meter: whose joules are whose, over real files, engines' loops and a whole worker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.transport.worker_states import worker_states_sync
from inference.worker import energy
from inference.worker.energy import EnergyCounters, EnergyMeter, energy_counters
from tests.inference.host.test_rapl import count, zone
from tests.inference.worker.fakes import FakeLLM, message, wait_until


class Loop:
    def __init__(self) -> None:
        self.work_s = 0.0


class Counted:
    """A counter and a clock that a test moves."""

    identity, name, source = "boot/0", "package-0", "rapl"

    def __init__(self) -> None:
        self.now, self.joules = 100.0, 0.0

    def read(self) -> float:
        if self.joules < 0:
            raise OSError("gone")
        return self.joules

    def pass_time(self, seconds: float, joules: float, **work: Loop) -> None:
        self.now += seconds
        self.joules += joules


def meter(counted: Counted, **loops: Loop) -> EnergyMeter:
    return EnergyMeter(EnergyCounters([counted]), lambda: list(loops.items()), clock=lambda: counted.now)


def test_each_model_gets_the_share_of_the_time_in_which_it_had_work() -> None:
    counted, a, b = Counted(), Loop(), Loop()
    found = meter(counted, a=a, b=b)
    counted.pass_time(1, 40)
    found.tick()
    (reading,) = found.readings
    assert (reading.joules, reading.work_joules, reading.watts) == (40, {}, 40)
    counted.pass_time(1, 100)
    a.work_s = 0.5
    found.tick()
    assert found.readings[0].work_joules == {"a": 50}
    counted.pass_time(1, 100)  # both all the time: half of it each
    a.work_s, b.work_s = 1.5, 1.0
    found.tick()
    (reading,) = found.readings
    assert reading.work_joules == {"a": 100, "b": 50}
    assert (reading.joules, reading.watts, reading.hour_watts) == (240, 80, 80)
    assert reading.device.endswith("/package-0") and reading.counter == "boot/0"


@given(
    ticks=st.lists(
        st.tuples(st.floats(0.01, 30), st.floats(0, 1e4), st.lists(st.floats(0, 30), min_size=3, max_size=3)),
        max_size=20,
    )
)
def test_models_never_get_more_than_there_was(ticks: list[tuple[float, float, list[float]]]) -> None:
    counted, loops = Counted(), {"a": Loop(), "b": Loop(), "c": Loop()}
    found = meter(counted, **loops)
    for seconds, joules, worked_s in ticks:
        counted.pass_time(seconds, joules)
        for loop, worked in zip(loops.values(), worked_s, strict=True):
            loop.work_s += min(worked, seconds)
        found.tick()
        (reading,) = found.readings
        work = sum(reading.work_joules.values())
        assert 0 <= work <= reading.joules * (1 + 1e-9)
    if ticks and all(max(worked_s) >= seconds for seconds, _, worked_s in ticks):
        assert work == pytest.approx(counted.joules)


def test_power_is_that_of_the_last_seconds_and_of_the_last_hour() -> None:
    counted = Counted()
    found = meter(counted)
    for _ in range(3600):
        counted.pass_time(1, 10)
        found.tick()
    for _ in range(1800):
        counted.pass_time(1, 50)
        found.tick()
    (reading,) = found.readings
    assert reading.watts == 50
    assert reading.hour_watts == pytest.approx(30, abs=1)


def test_a_counter_that_is_away_for_a_moment_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    counted, a = Counted(), Loop()
    found = meter(counted, a=a)
    for joules in (-1, -1, 20):
        counted.now += 1
        counted.joules, a.work_s = joules, a.work_s + 1
        found.tick()
    assert (found.readings[0].joules, found.readings[0].work_joules) == (20, {"a": 20})
    assert len([line for line in caplog.records if "can't be read" in line.message]) == 1


def test_a_model_that_is_loaded_again_begins_anew() -> None:
    counted, loops = Counted(), {"a": Loop()}
    found = EnergyMeter(EnergyCounters([counted]), lambda: list(loops.items()), clock=lambda: counted.now)
    loops["a"].work_s = 1.0
    counted.pass_time(1, 10)
    found.tick()
    loops["a"] = Loop()
    counted.pass_time(1, 10)
    found.tick()
    assert found.readings[0].work_joules == {"a": 10}


def test_devices_have_their_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    assert [item.name for item in energy_counters("cpu", powercap=tmp_path).counters] == ["package-0"]
    assert "mps has no energy counter" in energy_counters("mps").notice

    class Properties:
        uuid = "1-2"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    assert "libnothing.so" in energy_counters("cuda:0", library="libnothing.so").notice


def test_without_a_counter_there_is_no_thread() -> None:
    found = EnergyMeter(EnergyCounters((), "no counter"), lambda: ())
    before = threading.active_count()
    found.start()
    assert (threading.active_count(), found.readings, found.notice) == (before, (), "no counter")
    found.stop()


def test_a_worker_reports_what_its_machine_counts(
    worker, redis_urls_in_settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of it: files as the kernel's, a real worker, its heartbeat in Redis, and what others read there."""
    monkeypatch.setattr(energy, "TICK_S", 0.01)
    path = zone(tmp_path, "intel-rapl:0", "package-0")
    gate = threading.Event()
    w = worker(make=lambda _: FakeLLM(gate=gate), counters=energy_counters("cpu", powercap=tmp_path))
    w.deliver(message("r", max_tokens=5))
    wait_until(lambda: any(loop.is_busy for loop in w.runtime.manager.loops()))
    wait_until(lambda: bool(w.runtime.energy.readings))
    count(path, 30_000_000)

    def reported() -> float:
        w.runtime.heartbeat.wake()
        states = worker_states_sync()
        return states["w1"].energy[0].work_joules.get("a", 0.0) if "w1" in states and states["w1"].energy else 0.0

    wait_until(lambda: reported() > 0)
    (reading,) = worker_states_sync()["w1"].energy
    assert (reading.joules, reading.source) == (30.0, "rapl") and reading.work_joules["a"] <= 30.0
    gate.set()
