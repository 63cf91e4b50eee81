"""When a step of an engine counts as hung."""

from __future__ import annotations

import pytest

from inference.worker import step_watch
from inference.worker.step_watch import FIRST_ALLOWANCE_S, HUNG_AFTER_S, TICK_S, StepWatch, allowance_s
from tests.inference.worker.fakes import wait_until


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
    watch._thread.join(5)
    assert hung == [True]
    assert watch.is_late
