"""Redis's time, whatever this machine's clock says."""

from __future__ import annotations

import time

import pytest

from inference.transport import redis_time


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    monkeypatch.setattr(redis_time, "_measured", None)


def test_a_wrong_clock_of_this_machine_does_not_count(client, monkeypatch):
    right, clock = time.time(), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    assert redis_time.redis_now_sync(client) == pytest.approx(right, abs=600)
    assert redis_time.redis_now_estimated() == pytest.approx(right, abs=600)


def test_the_difference_is_measured_again_after_a_while(client, monkeypatch):
    class Clock:
        replies = [(100, 0), (500, 250_000)]

        def time(self):
            return self.replies.pop(0)

    now = 7.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = Clock()
    assert redis_time.redis_now_sync(clock) == 100
    now += redis_time.REFRESH_S
    assert redis_time.redis_now_sync(clock) == 100 + redis_time.REFRESH_S
    now += 1
    assert redis_time.redis_now_sync(clock) == 500.25
