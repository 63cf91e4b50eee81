"""The budget refuses what would be too much of one caller, of strangers or of all, and forgets what was released."""

from __future__ import annotations

import pytest

from blazr_site.body_budget import ANONYMOUS, ANONYMOUS_BYTES, BodyBudget
from inference.errors import RateLimitExceeded, RequestTooLarge, Unavailable


def test_a_caller_has_a_share_and_all_have_a_limit():
    budget = BodyBudget(total_bytes=100, caller_bytes=60)
    budget.hold("key:1", 60)
    with pytest.raises(RateLimitExceeded, match="more than 60 bytes") as refused:
        budget.hold("key:1", 1)
    assert refused.value.retry_after_s
    with pytest.raises(RequestTooLarge, match="more than 60 bytes"):
        budget.hold("key:2", 61)
    budget.hold("key:2", 40)
    with pytest.raises(Unavailable, match="more than 100 bytes") as full:
        budget.hold("key:3", 1)
    assert full.value.retry_after_s
    budget.release("key:1", 60)
    budget.hold("key:3", 60)
    assert budget.held_bytes == 100


def test_strangers_share_one_small_account():
    budget = BodyBudget(total_bytes=1 << 30, caller_bytes=1 << 30)
    budget.hold(ANONYMOUS, ANONYMOUS_BYTES)
    with pytest.raises(RateLimitExceeded):
        budget.hold(ANONYMOUS, 1)
    budget.hold("key:1", ANONYMOUS_BYTES)


def test_a_check_holds_nothing_and_a_released_caller_is_forgotten():
    budget = BodyBudget(total_bytes=10, caller_bytes=10)
    budget.check("key:1", 10)
    assert budget.held_bytes == 0
    budget.hold("key:1", 10)
    budget.release("key:1", 10)
    assert not budget._held


def test_requests_are_counted_while_they_are_open():
    budget = BodyBudget(total_bytes=10, caller_bytes=10)
    with budget.open_request(), budget.open_request():
        assert budget.num_open == 2
    with pytest.raises(ZeroDivisionError), budget.open_request():
        _ = 1 / 0
    assert budget.num_open == 0
