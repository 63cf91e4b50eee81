"""When a step of an engine counts as hung, and a process as stuck."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.worker import step_watch
from inference.worker.step_watch import FIRST_ALLOWANCE_S, HUNG_AFTER_S, TICK_S, StepWatch, allowance_s
from tests.inference.worker.fakes import wait_until

ROOT = Path(__file__).resolve().parents[3]
WATCHED = """
import ctypes, time
from inference.worker import step_watch

step_watch.TICK_S, step_watch.STUCK_AFTER_S = 0.05, {stuck_after_s}
watch = step_watch.StepWatch(lambda: (), lambda: None, ends_stuck_process=True)
watch.start()
time.sleep(0.3)  # the watch ticks

def forward_without_end():
    {work}

forward_without_end()
watch.stop()
watch._thread.join(5)
time.sleep(2)
print("went on")
"""


class Loop:
    def __init__(self, longest_token_s: float, tokens: int = 1) -> None:
        self.step_number: int | None = 1
        self.step_tokens = tokens
        self.longest_token_s = longest_token_s


def ticks(watch: StepWatch, seconds: float) -> float:
    late_s = 0.0
    for _ in range(int(seconds / TICK_S)):
        late_s = watch.tick()
    return late_s


def test_readiness_ends_within_ten_seconds_and_the_process_within_twenty():
    watch = StepWatch(lambda: [loop], lambda: None)
    loop = Loop(0.002)
    ticks(watch, 7)
    assert not watch.is_late
    ticks(watch, 2)
    assert watch.is_late
    assert ticks(watch, 7) > HUNG_AFTER_S
    loop.step_number = 2
    assert ticks(watch, 1) < 1
    assert not watch.is_late


def test_no_step_is_late_while_others_end_or_none_runs():
    loop = Loop(0.002)
    watch = StepWatch(lambda: [loop], lambda: None)
    for number in range(200):
        loop.step_number = number
        assert watch.tick() <= 0
    loop.step_number = None
    assert ticks(watch, 100) <= 0


@pytest.mark.parametrize(
    ("tokens", "longest_token_s", "allowed_s"),
    [
        pytest.param(512, 0.0, FIRST_ALLOWANCE_S, id="a first step may compile kernels"),
        pytest.param(512, 0.02, 81.92, id="a full chunk after a decode of one token"),
        pytest.param(1, 0.003, 0.024, id="a decode after a full chunk of a second"),
        pytest.param(512, 4.0, FIRST_ALLOWANCE_S, id="a full chunk of a very large model"),
    ],
)
def test_what_a_step_may_take(tokens, longest_token_s, allowed_s):
    assert allowance_s(tokens, longest_token_s) == pytest.approx(allowed_s)
    watch = StepWatch(lambda: [Loop(longest_token_s, tokens)], lambda: None)
    # A new loop at each tick is another engine: no step of it is old.
    assert ticks(watch, 1000) <= 0


def test_a_long_chunk_does_not_excuse_a_hung_decode():
    """The limit follows from what a token has taken, not from the longest step."""
    loop = Loop(longest_token_s=12 / 512)
    watch = StepWatch(lambda: [loop], lambda: None)
    ticks(watch, 9.5)
    assert watch.is_late


def test_a_hung_step_is_reported_once(monkeypatch):
    monkeypatch.setattr(step_watch, "TICK_S", 0.01)
    monkeypatch.setattr(step_watch, "HUNG_AFTER_S", 0.05)
    hung: list[bool] = []
    loop = Loop(1e-6)
    watch = StepWatch(lambda: [loop], lambda: hung.append(True))
    watch.start()
    wait_until(lambda: hung)
    watch._thread.join(60)
    assert hung == [True]
    assert watch.is_late


def run_watched(work: str, stuck_after_s: float) -> tuple[int, str, str, float]:
    started = time.monotonic()
    code = WATCHED.format(work=work, stuck_after_s=stuck_after_s)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    return run.returncode, run.stdout, run.stderr, time.monotonic() - started


def test_a_process_whose_gil_is_held_ends_and_says_where():
    code, _, log, took_s = run_watched("ctypes.PyDLL(None).sleep(50)", 1.0)
    assert code == 1
    assert took_s < 40  # of 50
    assert "forward_without_end" in log


def test_a_process_whose_threads_run_goes_on_and_so_does_one_that_has_stopped_its_watch():
    """``CDLL`` gives the GIL back during the call; a machine that stops for a while stops one run, not each of them."""
    work = "ctypes.CDLL(None).sleep(2)"
    assert any(run_watched(work, 1.5)[:3] == (0, "went on\n", "") for _ in range(5))
