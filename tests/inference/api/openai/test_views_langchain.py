"""The langchain-openai package against the server: chat and responses, streams, tools, structured output, errors."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.inference.api.openai.test_views_tool_calls import TWO_CALLS, pieces
from tests.inference.api.scripted_worker import say

SCHEMA: dict[str, Any] = {
    "title": "place",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def chat(live_url, worker):
    """Makes LangChain's model; the package takes seconds to import."""
    from langchain_openai import ChatOpenAI

    def make(**options: Any) -> Any:
        return ChatOpenAI(model="tiny", base_url=f"{live_url}/v1", api_key="none", max_retries=0, timeout=60, **options)

    return make


def weather(city: str) -> str:
    """The weather of a city."""
    return f"warm in {city}"


@pytest.mark.parametrize("use_responses_api", [False, True], ids=["chat", "responses"])
def test_texts_streams_and_tools(chat, worker, use_responses_api):
    from langchain_core.messages import ToolMessage

    model = chat(use_responses_api=use_responses_api, temperature=0.5)
    answer = model.invoke([("system", "Be brief."), ("human", "Hi")])
    assert answer.text == "Hello, world"
    assert answer.usage_metadata["total_tokens"] == 7
    assert [message["role"] for message in worker.messages[-1]["prompt"]["messages"]] == ["system", "user"]
    assert "".join(chunk.text for chunk in model.stream("Hi")) == "Hello, world"
    worker.script = say(*pieces(TWO_CALLS))
    called = model.bind_tools([weather]).invoke("Is it warm?")
    assert [call["args"] for call in called.tool_calls] == [{"city": "Köln"}, {"city": "Bonn"}]
    # Its own answer can be sent back, with results.
    worker.script = say("Warm.")
    results = [ToolMessage(f"12 °C in {call['args']['city']}", tool_call_id=call["id"]) for call in called.tool_calls]
    turns = [("human", "Is it warm?"), called, *results]
    assert model.bind_tools([weather]).invoke(turns).text == "Warm."
    sent = str(worker.messages[-1]["prompt"]["messages"])
    assert "12 °C in Köln" in sent
    assert "12 °C in Bonn" in sent


@pytest.mark.parametrize("use_responses_api", [False, True], ids=["chat", "responses"])
def test_structured_output(chat, worker, use_responses_api):
    worker.script = say('{"city": "Köln"}')
    model = chat(use_responses_api=use_responses_api).with_structured_output(SCHEMA, method="json_schema", strict=True)
    assert model.invoke("Where?") == {"city": "Köln"}
    assert worker.messages[-1]["params"]["grammar"]["kind"] == "json_schema"


def test_errors(chat):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(temperature=9).invoke("Hi")
