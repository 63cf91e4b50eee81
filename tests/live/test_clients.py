"""The clients that people use, on the real platform: OpenAI's responses, Anthropic's messages, litellm, LangChain."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.live

QUESTION = "What is a list?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}},
    "required": ["unit"],
    "additionalProperties": False,
}


@pytest.fixture
def client(server: LiveServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture
def claude(server: LiveServer):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as found:
        yield found


def ask(client: Any, **options: Any) -> Any:
    request = {"model": "demo", "input": QUESTION, "max_output_tokens": 24, "extra_body": {"seed": 3}, **options}
    return client.responses.create(**request)


def test_a_response_is_the_same_whole_streamed_and_in_the_background(client):
    whole = ask(client)
    assert whole.output_text
    assert whole.status in ("completed", "incomplete")
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    *_, last = ask(client, stream=True)
    assert last.response.output_text == whole.output_text
    background = ask(client, background=True)
    done = wait_until(
        lambda: (found := client.responses.retrieve(background.id)).status == whole.status and found,
        what="the background response",
    )
    assert done.output_text == whole.output_text
    assert done.usage.output_tokens == whole.usage.output_tokens
    told = [event.to_dict() for event in client.responses.retrieve(background.id, stream=True)]
    middle = len(told) // 2
    again = client.responses.retrieve(background.id, stream=True, starting_after=middle)
    assert [event.to_dict() for event in again] == told[middle + 1 :]
    follow_up = ask(client, input="And a tuple?", previous_response_id=background.id)
    assert follow_up.usage.input_tokens > whole.usage.input_tokens + whole.usage.output_tokens


def test_a_forced_call_of_a_response(client):
    tool: Any = {"type": "function", "name": "heat", "parameters": SCHEMA}
    response = ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=100)
    (call,) = response.output
    jsonschema.validate(json.loads(call.arguments), SCHEMA)


def test_messages(claude):
    whole = claude.messages.create(model="demo", max_tokens=24, messages=MESSAGES, extra_body={"temperature": 0})
    with claude.messages.stream(
        model="demo", max_tokens=24, messages=MESSAGES, extra_body={"temperature": 0}
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model="demo", messages=MESSAGES).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    tool: Any = {"name": "heat", "input_schema": SCHEMA}
    called = claude.messages.create(
        model="demo", max_tokens=100, messages=MESSAGES, tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )  # fmt: skip
    assert called.stop_reason == "tool_use"
    jsonschema.validate(called.content[0].input, SCHEMA)


def test_errors(client, claude):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_output_tokens=5000)
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(openai.NotFoundError):
        ask(client, model="missing")
    with pytest.raises(anthropic.BadRequestError, match="exceed context limit"):
        claude.messages.create(model="demo", max_tokens=5000, messages=MESSAGES)
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="missing", max_tokens=5, messages=MESSAGES)


def test_litellm_and_langchain_say_what_openai_says(server, client, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm
    from langchain_openai import ChatOpenAI

    options: Any = {"max_tokens": 16, "temperature": 0}
    expected = client.chat.completions.create(model="demo", messages=MESSAGES, **options).choices[0].message.content
    address: Any = {"api_base": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    answer = litellm.completion(model="openai/demo", messages=MESSAGES, **address, **options)
    assert answer.choices[0].message.content == expected
    chain = ChatOpenAI(model="demo", base_url=f"{server.url}/v1", api_key="none", max_retries=0, **options)
    assert chain.invoke(QUESTION).text == expected
    assert "".join(chunk.text for chunk in chain.stream(QUESTION)) == expected
