"""Fields that take JSON's types as they are."""

from __future__ import annotations

import json

import pytest

from inference.dialects.openai.requests import plan_from_body
from tests.inference.dialects.openai.test_requests import BOOLEANS, CHAT, COMPLETION, INTEGERS, NUMBERS, refused


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["1", 1.5, True, [1], {}, 1e308, 2**64, -(2**64), float("inf"), float("nan")])
def test_integers_refuse_other_values(name, value):
    for endpoint, body in (("chat", CHAT), ("completion", COMPLETION)):
        refused(endpoint, {**body, name: value}, name)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", True, [1.0], {}, 1e308, -1e308, 10**400, float("inf"), float("nan"), 1e9])
def test_numbers_refuse_other_values(name, value):
    for endpoint, body in (("chat", CHAT), ("completion", COMPLETION)):
        refused(endpoint, {**body, name: value}, name)


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", ["true", 1, 0, [], 0.0])
def test_booleans_refuse_other_values(name, value):
    refused("chat", {**CHAT, name: value}, name)


@pytest.mark.parametrize(
    "prompt",
    [1, 1.5, True, {}, [], [[]], [1, "x"], ["x", 1], [[1], "x"], [["x"]], [[1.5]], [True], [-1], [2**31], ["x"] * 1025],
)
def test_prompts_of_the_wrong_kind(prompt):
    refused("completion", {**COMPLETION, "prompt": prompt}, "prompt")


def test_long_token_prompts_are_checked_quickly():
    """Against reading them, which takes as long: one check at a time would take ten times that."""
    import time

    ids = list(range(100_000)) * 5
    text = json.dumps(ids)
    started = time.process_time()
    json.loads(text)
    reading_s = time.process_time() - started
    started = time.process_time()
    plan_from_body("completion", {**COMPLETION, "prompt": ids})
    assert time.process_time() - started < 6 * reading_s
