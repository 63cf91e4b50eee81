"""The litellm package against the server: chat, streams, tools, responses, Anthropic's messages, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inference.api.openai.test_views_tool_calls import TWO_CALLS, WEATHER, pieces
from tests.inference.api.scripted_worker import say

MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def litellm():
    """The package: seconds to import, and not to ask the network for a list of prices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        patch.setattr(litellm, "telemetry", False)
        patch.setattr(litellm, "num_retries", 0)
        yield litellm


@pytest.fixture
def options(live_url, worker) -> dict[str, Any]:
    """Where the server is, as litellm wants to know it."""
    return {
        "model": "openai/tiny", "api_base": f"{live_url}/v1", "api_key": "none", "timeout": 60, "max_retries": 0,
    }  # fmt: skip


def test_chat(litellm, options):
    answer = litellm.completion(messages=MESSAGES, max_tokens=9, seed=1, **options)
    assert answer.choices[0].message.content == "Hello, world"
    assert (answer.choices[0].finish_reason, answer.usage.total_tokens) == ("stop", 7)


def test_chat_as_a_stream(litellm, options):
    chunks = list(litellm.completion(messages=MESSAGES, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_tools(litellm, options, worker):
    worker.script = say(*pieces(TWO_CALLS))
    message = litellm.completion(messages=MESSAGES, tools=[WEATHER], **options).choices[0].message
    assert [json.loads(call.function.arguments)["city"] for call in message.tool_calls] == ["Köln", "Bonn"]


def test_responses(litellm, options):
    response = litellm.responses(input="Hi", **options)
    assert response.output[0].content[0].text == "Hello, world"
    assert (response.status, response.usage.output_tokens) == ("completed", 2)
    events = list(litellm.responses(input="Hi", stream=True, **options))
    assert events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Hello, world"


def test_anthropics_messages(litellm, options, live_url):
    options |= {"model": "anthropic/tiny", "api_base": live_url}
    answer = litellm.completion(messages=MESSAGES, max_tokens=9, temperature=0.5, **options)
    assert answer.choices[0].message.content == "Hello, world"
    chunks = list(litellm.completion(messages=MESSAGES, max_tokens=9, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"


def test_errors(litellm, options):
    with pytest.raises(litellm.NotFoundError, match="missing"):
        litellm.completion(messages=MESSAGES, **options | {"model": "openai/missing"})
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=MESSAGES, temperature=9, **options)
