"""Messages of a chat: wrong ones, and those that a client sends back."""

from __future__ import annotations

import base64

import pytest

from inference.dialects.openai.requests import plan_from_body
from tests.inference.dialects.openai.test_requests import CHAT, refused
from tests.inference.text.images.pictures import png_of_size


@pytest.mark.parametrize(
    "messages",
    [
        [],
        {},
        "Hi",
        [1],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": None}],
        [{"role": "robot", "content": "x"}],
        [{"role": 1, "content": "x"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": {"type": "text"}}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        [{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": "x", "colour": "red"}],
        [{"role": "user", "content": "x", "name": 1}],
        [{"role": "user", "content": "x", "copilot_cache_control": {"type": "permanent"}}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "media_type": 3}}]}],
        [{"role": "user", "content": "x", "audio": {"id": "a"}}],
        [{"role": "user", "content": "x"}] * 4097,
    ],
)
def test_messages_of_the_wrong_kind(messages):
    refused("chat", {**CHAT, "messages": messages}, "messages")


def test_an_answer_can_be_sent_back_as_it_came():
    message = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    plan = plan_from_body("chat", {**CHAT, "messages": [*CHAT["messages"], message, *CHAT["messages"]]})
    assert plan.prompts[0]["messages"][1] == {"role": "assistant", "content": "Hello"}


def test_copilot_marks_messages_for_its_own_service():
    """In every agent's request, also to a server that the user has added; images come with their media type."""
    data = base64.b64encode(png_of_size(40, 30)).decode()
    image = {"url": f"data:image/png;base64,{data}", "detail": "auto"}
    content = [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": image}]
    marked = [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {**image, "media_type": "image/png"}}]
    message = {"role": "user", "content": marked, "copilot_cache_control": {"type": "ephemeral"}}
    plan = plan_from_body("chat", {**CHAT, "messages": [message]})
    assert plan == plan_from_body("chat", {**CHAT, "messages": [{"role": "user", "content": content}]})
