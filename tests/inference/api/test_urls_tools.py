"""Tools, thinking and structured output through /v1/responses and /v1/messages, as the clients see them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.inference.api.openai.test_views_tool_calls import TOOL_TEMPLATE, TWO_CALLS, pieces
from tests.inference.api.scripted_worker import say
from tests.inference.rows import make_checkpoint

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": SCHEMA}
TOOL: Any = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}}
THINKING = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}<think></think>"
CITIES = [{"city": "Köln"}, {"city": "Bonn"}]


@pytest.fixture
def claude(live_url):
    with anthropic.Anthropic(base_url=live_url, api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture
def caller(worker) -> str:
    """A model whose template knows tools."""
    row = make_checkpoint("caller", template=TOOL_TEMPLATE)
    worker.checkpoint_ids.add(str(row.pk))
    return "caller"


def test_calls_of_a_response_and_their_results(client, worker, caller):
    worker.script = say(*pieces(TWO_CALLS))
    response = client.responses.create(model=caller, input="Is it warm?", tools=[FUNCTION])
    message, *calls = response.output
    assert (response.status, message.content[0].text) == ("completed", "Let me look.")
    assert [json.loads(call.arguments) for call in calls] == CITIES
    assert {(call.type, call.name, call.status) for call in calls} == {("function_call", "weather", "completed")}
    assert len({call.call_id for call in calls}) == 2
    worker.script = say("Warm.")
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "12 °C"} for call in calls]
    for request in (
        {"input": results, "previous_response_id": response.id},
        {"input": [{"role": "user", "content": "Is it warm?"}, *response.output, *results]},
    ):
        assert client.responses.create(model=caller, tools=[FUNCTION], **request).output_text == "Warm."
        check_turns(worker, [call.call_id for call in calls])


def check_turns(worker, call_ids: list[str]) -> None:
    """What the worker got: the question, the answer with its calls, a result for each."""
    sent = worker.messages[-1]["prompt"]["messages"]
    assert [item["role"] for item in sent] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == [item["tool_call_id"] for item in sent[2:]] == call_ids
    assert [item["content"] for item in sent] == ["Is it warm?", "Let me look.", "12 °C", "12 °C"]


def test_a_stream_of_calls(client, worker):
    worker.script = say(*pieces(TWO_CALLS))
    with client.responses.stream(model="tiny", input="Is it warm?", tools=[FUNCTION]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [json.loads(item.arguments) for item in final.output[1:]] == CITIES
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in done] == CITIES
    for event in done:
        deltas = [
            item.delta for item in events
            if item.type == "response.function_call_arguments.delta" and item.item_id == event.item_id
        ]  # fmt: skip
        assert "".join(deltas) == event.arguments
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_forced_call_reaches_the_grammar(client, claude, worker):
    worker.script = say(*pieces(TWO_CALLS))
    named: Any = {"type": "function", "name": "weather"}
    client.responses.create(model="tiny", input="Is it warm?", tools=[FUNCTION], tool_choice=named)
    claude.messages.create(
        model="tiny", max_tokens=99, messages=[{"role": "user", "content": "Is it warm?"}], tools=[TOOL],
        tool_choice={"type": "tool", "name": "weather"},
    )  # fmt: skip
    first, second = (message["params"]["grammar"] for message in worker.messages[-2:])
    assert first == second
    assert "weather" in json.dumps(first)


def test_tools_that_are_wrong_are_named(client, claude, worker):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="Hi", tool_choice="required")
    assert caught.value.param == "tool_choice"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="Hi", tools=[{**FUNCTION, "name": "a b"}])
    assert caught.value.param == "tools"
    with pytest.raises(anthropic.BadRequestError, match="tool 0"):
        claude.messages.create(
            model="tiny", max_tokens=9, messages=[{"role": "user", "content": "Hi"}], tools=[{**TOOL, "name": "a b"}]
        )


def test_calls_of_a_message_and_their_results(claude, worker, caller):
    worker.script = say(*pieces(TWO_CALLS))
    request: Any = {"model": caller, "max_tokens": 99, "tools": [TOOL]}
    question: Any = {"role": "user", "content": "Is it warm?"}
    message = claude.messages.create(messages=[question], **request)
    text, *calls = message.content
    assert (message.stop_reason, text.text) == ("tool_use", "Let me look.")
    assert [call.input for call in calls] == CITIES
    worker.script = say("Warm.")
    results: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "12 °C"} for call in calls]
    turns: Any = [question, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    assert claude.messages.create(messages=turns, **request).content[0].text == "Warm."
    check_turns(worker, [call.id for call in calls])
    with claude.messages.stream(messages=[question], **request) as stream:
        assert stream.get_final_message().stop_reason == "end_turn"


def test_a_stream_of_tool_use(claude, worker):
    worker.script = say(*pieces(TWO_CALLS))
    question: Any = [{"role": "user", "content": "Is it warm?"}]
    with claude.messages.stream(model="tiny", max_tokens=99, messages=question, tools=[TOOL]) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [block.input for block in final.content[1:]] == CITIES


def test_thinking(client, claude, worker):
    row = make_checkpoint("thinker", template=THINKING)
    worker.checkpoint_ids.add(str(row.pk))
    worker.script = say("<think>let", " me</think>", "Warm", ".")
    response = client.responses.create(model="thinker", input="Is it warm?")
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "let me"
    assert response.output_text == "Warm."
    message = claude.messages.create(
        model="thinker", max_tokens=99, messages=[{"role": "user", "content": "Is it warm?"}]
    )
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[1].text) == ("let me", "Warm.")
    client.responses.create(model="thinker", input="And now?", previous_response_id=response.id)
    assert worker.messages[-1]["prompt"]["messages"][1] == {
        "role": "assistant", "content": "Warm.", "reasoning_content": "let me",
    }  # fmt: skip


def test_structured_output(client, claude, worker):
    worker.script = say('{"city": "Köln"}')
    shape: Any = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
    response = client.responses.create(model="tiny", input="Where?", text=shape)
    assert json.loads(response.output_text) == {"city": "Köln"}
    assert response.text.format.name == "place"
    assert worker.messages[-1]["params"]["grammar"]["kind"] == "json_schema"
    question: Any = [{"role": "user", "content": "Where?"}]
    output: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    claude.messages.create(model="tiny", max_tokens=99, messages=question, output_config=output)
    assert worker.messages[-1]["params"]["grammar"]["kind"] == "json_schema"
    bad = {"type": "object", "properties": {"a": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model="tiny", input="Where?", text={"format": {"type": "json_schema", "name": "x", "schema": bad}}
        )
    assert caught.value.param.startswith("text.format")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model="tiny", input="Where?", background=True,
            text={"format": {"type": "json_schema", "name": "x", "schema": bad}},
        )  # fmt: skip
    assert caught.value.param.startswith("text.format")
