"""Reasoning that a client sends back."""

from __future__ import annotations

import pytest

from inference.dialects.responses.returned_reasoning import decoded_reasoning, encoded_reasoning
from inference.errors import InvalidRequest


@pytest.mark.parametrize("text", ["", "hm", "två\n\U0001f9ea"])
def test_a_text_comes_back(text):
    assert decoded_reasoning(encoded_reasoning(text), "input.0") == text


@pytest.mark.parametrize("value", ["", "gAAAAABk", "blazr.x", "blazr.gICA", encoded_reasoning("x") + "!"])
def test_what_another_server_wrote_is_refused(value):
    with pytest.raises(InvalidRequest, match="another server") as caught:
        decoded_reasoning(value, "input.0.encrypted_content")
    assert caught.value.param == "input.0.encrypted_content"
