"""DraftingPolicy: who drafts, when it stops, and when it is probed again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inference.engine.running_request import Request
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.policy import (
    INITIAL_RATE,
    MAX_NUM_DECODING,
    MAX_PROBE_STEPS,
    PROBE_STEPS,
    ROW_COST,
    VERIFICATION_COST,
    DraftingPolicy,
    expected_speedup,
    expected_tokens,
)
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import request

K = 8


def running(name="r") -> Request:
    return Request(request(name, [1]), 0, 20, frozenset(), [1], SamplingState(SamplingParams(), [], [1], []))


def drafts(policy: DraftingPolicy, item: Request) -> bool:
    return policy.can_draft(item, 1) and policy.has_speedup([item], 1)


def step(policy: DraftingPolicy, item: Request, num_accepted: int) -> bool:
    """One step of a lone request; whether it drafted."""
    has_verified = drafts(policy, item)
    if has_verified:
        policy.record(item, K, num_accepted)
    policy.end_step(has_verified=has_verified, num_decoding=1)
    return has_verified


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (0.5, 1.0 + 0.5 + 0.25), (1.0, 3.0)])
def test_expected_tokens_of_two_draft_tokens(rate, expected):
    assert expected_tokens(rate, 2) == pytest.approx(expected)


def test_expected_speedup_shares_the_cost_of_the_step_among_all():
    cost = 1 + VERIFICATION_COST + ROW_COST * 4
    assert expected_speedup([1.0], 1, 4) == pytest.approx(5 / cost)
    assert expected_speedup([1.0], 4, 4) == pytest.approx((3 + 5) / 4 / cost)


def test_a_request_whose_draft_tokens_hold_always_drafts():
    policy, item = DraftingPolicy(K, is_adaptive=True), running()
    assert all(step(policy, item, K) for _ in range(100))
    assert policy.acceptance_rate(item) > 0.99


def test_a_request_whose_draft_tokens_fail_stops_at_once_and_probes_ever_more_rarely():
    policy, item = DraftingPolicy(K, is_adaptive=True), running()
    verified = [number for number in range(4000) if step(policy, item, 0)]
    assert verified[0] == 0
    assert len([number for number in verified if number < PROBE_STEPS]) <= 3
    gaps = [after - before for before, after in pairwise(verified[2:])]
    assert gaps[0] >= PROBE_STEPS and max(gaps) == MAX_PROBE_STEPS + 1
    assert gaps == sorted(gaps)


def test_a_text_that_begins_to_repeat_itself_drafts_after_the_next_probe():
    policy, item = DraftingPolicy(K, is_adaptive=True), running()
    for _ in range(10):
        step(policy, item, 0)
    assert sum(step(policy, item, K) for _ in range(PROBE_STEPS + 20)) >= 20


def test_a_new_request_begins_with_the_rate_of_the_engine():
    policy = DraftingPolicy(K, is_adaptive=True)
    assert policy.acceptance_rate(running()) == INITIAL_RATE
    for number in range(40):
        item = running(str(number))
        policy.record(item, K, 0)
        policy.forget(item)
    assert not policy._rates
    assert policy.acceptance_rate(running()) < 0.2
    assert not policy.can_draft(running(), 1)


def test_draft_tokens_behind_a_wrong_one_say_nothing():
    policy, few, many = DraftingPolicy(K, is_adaptive=True), running("few"), running("many")
    policy.record(few, 2, 1)
    policy.record(many, K, 1)
    assert policy.acceptance_rate(few) == pytest.approx(policy.acceptance_rate(many), abs=0.02)


def test_one_good_request_does_not_hold_up_a_batch_for_nothing():
    policy, good = DraftingPolicy(K, is_adaptive=True), running("good")
    policy.record(good, K, 6)
    assert policy.has_speedup([good], 1)
    assert not policy.has_speedup([good], 12)


def test_no_request_of_a_large_batch_drafts():
    policy, item = DraftingPolicy(K, is_adaptive=True), running()
    assert policy.can_draft(item, MAX_NUM_DECODING)
    assert not policy.can_draft(item, MAX_NUM_DECODING + 1)


def test_without_adaption_every_request_drafts_in_every_step():
    policy, item = DraftingPolicy(K, is_adaptive=False), running()
    assert all(step(policy, item, 0) for _ in range(50))
    assert policy.can_draft(item, 200) and policy.has_speedup([item], 200)
