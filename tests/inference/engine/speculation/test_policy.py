"""DraftingPolicy: who drafts, when it stops, and when it is probed again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inference.engine.running_request import Request
from inference.engine.sampling.sampling_state import SamplingState
from inference.engine.speculation.policy import (
    INITIAL_RATE,
    MAX_NUM_DECODING,
    MAX_PROBE_FACTOR,
    MIN_SPEEDUP,
    PROBE_STEPS,
    RECURRENCE_COST,
    ROW_COST,
    VERIFICATION_COST,
    DraftingCosts,
    DraftingPolicy,
    expected_speedup,
    expected_tokens,
)
from inference.values.sampling_params import SamplingParams
from tests.inference.engine.fakes import request

K = 8
COSTS = DraftingCosts()


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
    assert expected_speedup([1.0], 1, 4, COSTS) == pytest.approx(5 / cost)
    assert expected_speedup([1.0], 4, 4, COSTS) == pytest.approx((3 + 5) / 4 / cost)


def test_what_drafts_and_recurrent_states_cost_something():
    costs = DraftingCosts(pass_cost=0.25, has_recurrence=True)
    cost = 1 + VERIFICATION_COST + RECURRENCE_COST + 2 * (0.25 + 8 * ROW_COST)
    assert costs.of_step(8, 2) == pytest.approx(cost)
    assert expected_speedup([1.0] * 8, 8, 2, costs) == pytest.approx(3 / cost), "no token is computed again"
    replayed = cost + VERIFICATION_COST * (1 - 0.5**2)
    assert expected_speedup([0.5] * 8, 8, 2, costs) == pytest.approx(1.75 / replayed)


SMALL_RECURRENT = DraftingCosts(pass_cost=0.34, has_recurrence=True)
"""A head of one layer of attention beside a Mamba-2 of 130M, as ``bench.speculation`` has them."""


def test_a_head_drafts_for_a_lone_request_of_a_small_recurrent_model_but_not_for_eight():
    """At best 2 of 2 draft tokens hold: three tokens for the cost of a step, two passes and eight saved states."""
    policy = DraftingPolicy(2, SMALL_RECURRENT, is_adaptive=True)
    items = [running(str(number)) for number in range(8)]
    for item in items:
        policy.record(item, 2, 2)
    policy.end_step(has_verified=True, num_decoding=8)
    assert policy.has_speedup(items[:1], 1)
    assert not policy.has_speedup(items, 8)


@pytest.mark.parametrize("costs", [COSTS, DraftingCosts(0.24), SMALL_RECURRENT])
@pytest.mark.parametrize("batch", [1, 8])
def test_text_whose_draft_tokens_never_hold_loses_less_than_three_percent(costs, batch):
    """By the policy's own costs, over 600 tokens of requests that follow each other."""
    policy, plain, paid = DraftingPolicy(2, costs, is_adaptive=True), 0, 0.0
    for _ in range(3):
        items = [running(str(number)) for number in range(batch)]
        for _ in range(600):
            drafting = [item for item in items if policy.can_draft(item, batch)]
            has_verified = bool(drafting) and policy.has_speedup(drafting, batch)
            for item in drafting if has_verified else ():
                policy.record(item, 2, 0)
            plain += 1
            paid += costs.of_step(len(drafting), 2) + costs.of_replay(0.0, 2) if has_verified else 1.0
            policy.end_step(has_verified=has_verified, num_decoding=batch)
        for item in items:
            policy.forget(item)
    assert plain / paid >= 0.97


def test_probes_that_show_no_speedup_of_the_batch_become_rarer():
    """Though each of its requests would gain alone."""
    policy, items = DraftingPolicy(2, SMALL_RECURRENT, is_adaptive=True), [running(str(n)) for n in range(8)]
    probes = []
    for number in range(3000):
        has_verified = policy.has_speedup(items, 8)
        for item in items if has_verified else ():
            policy.record(item, 2, 2)
        policy.end_step(has_verified=has_verified, num_decoding=8)
        probes += [number] * has_verified
    gaps = [after - before for before, after in pairwise(probes)]
    assert probes[0] == 0 and gaps == sorted(gaps) and gaps[-1] > 4 * gaps[0] > 4 * PROBE_STEPS
    assert expected_speedup([1.0], 1, 2, SMALL_RECURRENT) >= MIN_SPEEDUP


def test_a_request_whose_draft_tokens_hold_always_drafts():
    policy, item = DraftingPolicy(K, COSTS, is_adaptive=True), running()
    assert all(step(policy, item, K) for _ in range(100))
    assert policy.acceptance_rate(item) > 0.99


def test_a_request_whose_draft_tokens_fail_stops_at_once_and_probes_ever_more_rarely():
    policy, item = DraftingPolicy(K, COSTS, is_adaptive=True), running()
    verified = [number for number in range(4000) if step(policy, item, 0)]
    assert verified[0] == 0
    assert len([number for number in verified if number < PROBE_STEPS]) <= 3
    gaps = [after - before for before, after in pairwise(verified[2:])]
    assert gaps[0] >= PROBE_STEPS and max(gaps) == MAX_PROBE_FACTOR * PROBE_STEPS + 1
    assert gaps == sorted(gaps)


def test_a_text_that_begins_to_repeat_itself_drafts_after_the_next_probe():
    policy, item = DraftingPolicy(K, COSTS, is_adaptive=True), running()
    for _ in range(10):
        step(policy, item, 0)
    assert sum(step(policy, item, K) for _ in range(PROBE_STEPS + 20)) >= 20


def test_a_new_request_begins_with_the_rate_of_the_engine():
    policy = DraftingPolicy(K, COSTS, is_adaptive=True)
    assert policy.acceptance_rate(running()) == INITIAL_RATE
    for number in range(40):
        item = running(str(number))
        policy.record(item, K, 0)
        policy.end_step(has_verified=True, num_decoding=1)
        policy.forget(item)
    assert not policy._rates
    assert policy.acceptance_rate(running()) < 0.2
    assert not policy.can_draft(running(), 1)


def test_draft_tokens_behind_a_wrong_one_say_nothing():
    policy, few, many = DraftingPolicy(K, COSTS, is_adaptive=True), running("few"), running("many")
    policy.record(few, 2, 1)
    policy.record(many, K, 1)
    assert policy.acceptance_rate(few) == pytest.approx(policy.acceptance_rate(many), abs=0.02)


def test_one_good_request_does_not_hold_up_a_batch_for_nothing():
    policy, good = DraftingPolicy(K, COSTS, is_adaptive=True), running("good")
    policy.record(good, K, 6)
    policy.end_step(has_verified=True, num_decoding=12)
    assert policy.has_speedup([good], 1)
    assert not policy.has_speedup([good], 12)


def test_no_request_of_a_large_batch_drafts():
    policy, item = DraftingPolicy(K, COSTS, is_adaptive=True), running()
    assert policy.can_draft(item, MAX_NUM_DECODING)
    assert not policy.can_draft(item, MAX_NUM_DECODING + 1)


def test_without_adaption_every_request_drafts_in_every_step():
    policy, item = DraftingPolicy(K, COSTS, is_adaptive=False), running()
    assert all(step(policy, item, 0) for _ in range(50))
    assert policy.can_draft(item, 200) and policy.has_speedup([item], 200)
