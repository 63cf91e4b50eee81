"""What all bodies have in common: objects, missing members, null."""

from __future__ import annotations

import pytest

from inference.dialects.openai.requests import plan_from_body
from inference.dialects.strict_serializer import first_error
from inference.errors import InvalidRequest
from tests.inference.dialects.openai.test_requests import BOOLEANS, CHAT, INTEGERS, NUMBERS, refused


@pytest.mark.parametrize("body", [None, 1, "x", [], [CHAT]])
def test_a_body_must_be_an_object(body):
    with pytest.raises(InvalidRequest):
        plan_from_body("chat", body)


def test_an_error_of_no_field_names_none():
    error = first_error({"non_field_errors": ["Invalid data. Expected a dictionary, but got list."]})
    assert error.message == "Invalid data. Expected a dictionary, but got list."
    assert error.param is None


def test_missing_fields():
    refused("chat", {"messages": CHAT["messages"]}, "model")
    refused("chat", {"model": "m"}, "messages")
    refused("completion", {"model": "m"}, "prompt")


def test_null_means_absent():
    names = [*INTEGERS, *NUMBERS, *BOOLEANS, "stop", "logit_bias", "stream_options", "stop_token_ids", "cache_salt"]
    assert plan_from_body("chat", {**CHAT, **dict.fromkeys(names)}) == plan_from_body("chat", CHAT)
