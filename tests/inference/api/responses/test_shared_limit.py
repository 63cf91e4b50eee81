"""What callers hold together and each is limited, and is given back exactly once, whatever happens to the holder."""

from __future__ import annotations

import gc

import pytest

from inference.api.responses.shared_limit import SharedLimit
from inference.errors import RateLimitExceeded, Unavailable


@pytest.fixture
def limit() -> SharedLimit:
    return SharedLimit("bytes that are read", "try again.", total=100, per_caller=60)


def test_a_caller_and_all_callers_have_a_limit(limit):
    first = limit.hold("key:1", 40)
    with pytest.raises(RateLimitExceeded, match="more than 60 bytes that are read, the limit; try again") as refused:
        limit.hold("key:1", 21)
    assert refused.value.retry_after_s
    second = limit.hold("key:2", 60)
    with pytest.raises(Unavailable, match="All callers would have more than 100") as full:
        limit.hold("key:3", 1)
    assert full.value.retry_after_s
    assert limit.num_held == 100, "nothing of a refused one is held"
    first.release()
    with limit.hold("key:3", 40):
        assert limit.num_held == 100
    second.release()
    assert limit.num_held == 0


def test_a_share_is_released_once(limit):
    share, other = limit.hold("key:1", 30), limit.hold("key:1", 30)
    for _ in range(2):
        share.release()
        assert limit.num_held == 30
    del share
    gc.collect()
    assert limit.num_held == 30
    other.release()


def test_what_is_more_than_a_caller_may_hold_can_be_had_alone(limit):
    with limit.hold("key:1", 1000):
        assert limit.num_held == 60
        with pytest.raises(RateLimitExceeded):
            limit.hold("key:1", 1)
    assert limit.num_held == 0


def test_a_share_that_nobody_has_any_more_is_released(limit):
    holder: list[object] = [limit.hold("key:1", 60)]
    holder.append(holder)
    del holder
    gc.collect()
    assert limit.num_held == 0
