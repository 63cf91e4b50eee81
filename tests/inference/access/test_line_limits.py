"""The limit of lines: exact while several submissions store theirs."""

from __future__ import annotations

import time

import pytest

from inference.access import line_limits
from inference.access.line_limits import lines_reserved
from inference.errors import RateLimitExceeded, RequestTooLarge, Unavailable
from inference.transport import keys as redis_keys
from inference.values.principal import LOCAL
from tests.inference.access.limited import TENANT, caller


def test_lines_are_held_to_their_limit_with_what_others_are_storing(counters):
    stored = 3
    with lines_reserved(principal=caller(lines=10), lines=4, count=lambda: stored):
        with (
            pytest.raises(RateLimitExceeded, match="limit of 10"),
            lines_reserved(principal=caller(lines=10), lines=4, count=lambda: stored),
        ):
            raise AssertionError("not to be reached")
        with lines_reserved(principal=caller(lines=10), lines=3, count=lambda: stored):
            pass
    assert counters.zcard(redis_keys.limit_lines(TENANT)) == 0
    with (
        pytest.raises(RequestTooLarge, match="11 lines"),
        lines_reserved(principal=caller(lines=10), lines=11, count=lambda: 0),
    ):
        raise AssertionError("not to be reached")


def test_lines_without_a_limit_touch_nothing(settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock"
    with lines_reserved(principal=LOCAL, lines=10**6, count=lambda: 1 / 0):
        pass


def test_the_reservation_of_a_killed_process_expires(counters, monkeypatch):
    monkeypatch.setattr(line_limits, "RESERVATION_S", 1.0)
    killed = lines_reserved(principal=caller(lines=10), lines=8, count=lambda: 0)
    killed.__enter__()
    with (
        pytest.raises(RateLimitExceeded),
        lines_reserved(principal=caller(lines=10), lines=3, count=lambda: 0),
    ):
        raise AssertionError("not to be reached")
    time.sleep(1.1)
    with lines_reserved(principal=caller(lines=10), lines=3, count=lambda: 0):
        assert counters.zcard(redis_keys.limit_lines(TENANT)) == 1


def test_without_redis_nothing_is_stored(settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock"
    with pytest.raises(Unavailable), lines_reserved(principal=caller(lines=10), lines=1, count=lambda: 0):
        raise AssertionError("not to be reached")
