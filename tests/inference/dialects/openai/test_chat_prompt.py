"""A chat as a prompt message."""

from __future__ import annotations

from inference.dialects.openai.requests import plan_from_body
from tests.inference.dialects.openai.test_requests import CHAT, refused


def test_template_switches_exclude_each_other():
    last = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Sure, "}]
    body = {**CHAT, "messages": last, "continue_final_message": True}
    assert plan_from_body("chat", body).prompts[0]["add_generation_prompt"] is False
    refused("chat", {**body, "add_generation_prompt": True}, "continue_final_message")
    refused("chat", {**CHAT, "continue_final_message": True}, "continue_final_message")
    refused("chat", {**CHAT, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs")
    refused("chat", {**CHAT, "chat_template": "{{ messages }}"}, "chat_template")
