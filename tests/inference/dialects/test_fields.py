"""Fields that take JSON's types as they are."""

from __future__ import annotations

import json

import pytest

from inference.dialects.openai.requests import plan_from_body
from inference.errors import InvalidRequest
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
    reading_s, checking_s = [], []
    for _ in range(3):  # the collector may take its time in one of them
        started = time.process_time()
        json.loads(text)
        reading_s.append(time.process_time() - started)
        started = time.process_time()
        plan_from_body("completion", {**COMPLETION, "prompt": ids})
        checking_s.append(time.process_time() - started)
    assert min(checking_s) < 6 * min(reading_s)


@pytest.mark.parametrize("value", [1e30, -1e30, 2.0**63, 10**30])
def test_an_integer_beyond_64_bits_is_out_of_range(value):
    """orjson reads it as a float."""
    with pytest.raises(InvalidRequest, match=r"max_tokens is -?[\d.e+]+, it must be from 1 to 16777216"):
        plan_from_body("chat", {**CHAT, "max_tokens": value})


@pytest.mark.parametrize("wrong", [1.5, True, "1", None, -1, 1 << 31])
@pytest.mark.parametrize("place", [0, 16_383, 16_384, 50_000])
def test_wrong_token_ids_are_found_in_every_step(wrong, place):
    ids = [1] * 50_001
    ids[place] = wrong
    refused("completion", {**COMPLETION, "prompt": [[1], ids]}, "prompt")


def test_errors_show_large_values_in_a_moment():
    import time

    value = [[1] * 1000] * 1000
    took_s = []
    for _ in range(3):  # the collector may take its time in one of them
        started = time.process_time()
        with pytest.raises(InvalidRequest, match=r"must be a number, got \[\[1, 1, 1.*\.\.\.") as error:
            plan_from_body("chat", {**CHAT, "temperature": value})
        assert len(error.value.message) < 120
        with pytest.raises(InvalidRequest, match="keep_alive"):
            plan_from_body("chat", {**CHAT, "keep_alive": "1s" * 4_000_000})
        took_s.append(time.process_time() - started)
    assert min(took_s) < 0.05
