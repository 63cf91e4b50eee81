"""A plan becomes a body that means the same plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference.dialects.openai.bodies import body_of_plan
from inference.dialects.openai.requests import plan_from_body
from inference.errors import UnsupportedFeature
from inference.values.plan import EmbeddingOptions, GenerationPlan

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CHAT = {"model": "demo", "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hi"}]}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    ("chat", CHAT),
    ("chat", {**CHAT, "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "stop": ["a", "b"], "seed": 4, "n": 2}),
    ("chat", {**CHAT, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ("chat", {**CHAT, "tools": [TOOL], "parallel_tool_calls": False}),
    ("chat", {**CHAT, "response_format": {"type": "json_object"}, "logprobs": True, "top_logprobs": 2}),
    ("chat", {**CHAT, "guided_choice": ["yes", "no"], "chat_template_kwargs": {"enable_thinking": False}}),
    ("chat", {**CHAT, "stream": True, "stream_options": {"include_usage": True, "include_queue": True}}),
    ("completion", {"model": "demo", "prompt": "The list"}),
    ("completion", {"model": "demo", "prompt": ["a", "b"], "max_tokens": 0, "echo": True, "logprobs": 1}),
    ("completion", {"model": "demo", "prompt": "a", "suffix": "b", "guided_regex": "x+", "logit_bias": {"5": -1}}),
    ("completion", {"model": "demo", "prompt": "a", "n": 1, "best_of": 3, "priority": 5, "stop_token_ids": [3]}),
    ("completion", {"model": "demo", "prompt": [1], "guided_json": {"type": "object"}, "min_tokens": 2}),
]


@pytest.mark.parametrize(("endpoint", "body"), BODIES)
def test_the_body_of_a_plan_is_read_as_the_plan(endpoint: Any, body: dict[str, Any]) -> None:
    plan = plan_from_body(endpoint, body)
    again = plan_from_body(endpoint, body_of_plan(plan))
    assert again == replace(plan, stream=False, include_usage=False, include_queue=False)


def test_what_no_body_says_is_refused() -> None:
    plan = plan_from_body("chat", CHAT)
    for other in (
        replace(plan, adapter="1"),
        replace(plan, endpoint="embedding", embedding=EmbeddingOptions(pooling=None, dimensions=None, normalize=True,
                                                                       encoding_format="float")),
        GenerationPlan("chat", "demo", (), plan.params),
    ):  # fmt: skip
        with pytest.raises(UnsupportedFeature, match="batch"):
            body_of_plan(other)
