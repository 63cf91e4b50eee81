"""Tools and thinking through OpenAI's client: what the model is sent, and how its text comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from inference.dialects.openai.outputs.formats import output_formatter
from inference.dialects.openai.requests import plan_from_body
from inference.serving.served_models import plan_for_model, served_model_read
from inference.values.output_builder import OutputBuilder
from inference.values.plan import GenerationPlan
from tests.inference.api.scripted_worker import say
from tests.inference.rows import make_checkpoint

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Is it warm in Köln?"}]}
TWO_CALLS = (
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
)
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}<tool_call> {{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
)


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def refused(client: Any, **options: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK | options)
    return caught.value


def collect(stream: Any) -> dict[int, dict[str, Any]]:
    """A stream's choices as whole messages, deltas put together the way OpenAI documents it."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in stream:
        for choice in chunk.choices:
            message = found.setdefault(choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None})
            message["content"] += choice.delta.content or ""
            message["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                if call.index == len(message["calls"]):
                    assert call.id and call.type == "function" and call.function.name
                    message["calls"].append({"name": call.function.name, "arguments": ""})
                message["calls"][call.index]["arguments"] += call.function.arguments or ""
            message["finish"] = choice.finish_reason or message["finish"]
    return found


def test_calls_in_a_whole_answer(worker, client):
    worker.script = say(*pieces(TWO_CALLS))
    choice = client.chat.completions.create(**ASK, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    calls = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Köln"}, {"city": "Bonn"}]
    assert {call.function.name for call in calls} == {"weather"}
    assert calls[0].id.startswith("call_") and calls[0].id != calls[1].id


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_says_the_same(worker, client, size):
    worker.script = say(*pieces(TWO_CALLS, size))
    found = collect(client.chat.completions.create(**ASK, tools=[WEATHER], stream=True, n=2))
    assert found[0] == found[1]
    assert found[0]["finish"] == "tool_calls"
    assert found[0]["content"] == "Let me look."
    assert [json.loads(call["arguments"]) for call in found[0]["calls"]] == [{"city": "Köln"}, {"city": "Bonn"}]


def test_arguments_stream_before_the_call_ends(worker, client):
    worker.script = say('<tool_call>{"name": "weather", "arguments": {"city": "K', "öln", '"}}</tool_call>')
    stream = client.chat.completions.create(**ASK, tools=[WEATHER], stream=True)
    deltas = [call.function.arguments for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    assert deltas == ['{"city": "K', "öln", '"}']


def test_an_answer_without_calls_is_content(worker, client):
    worker.script = say("It is ", "warm.")
    choice = client.chat.completions.create(**ASK, tools=[WEATHER]).choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", "It is warm.", None)


def test_a_broken_call_stays_visible(worker, client):
    worker.script = say("<tool_call>{oops}</tool_call>")
    choice = client.chat.completions.create(**ASK, tools=[WEATHER]).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", "<tool_call>{oops}</tool_call>")


def test_a_cut_call_ends_with_length(worker, client):
    worker.script = say('<tool_call>{"name": "weather", "arguments": {"city": "K', finish_reason="length")
    choice = client.chat.completions.create(**ASK, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "K'


def test_only_one_call_when_parallel_ones_are_off(worker, client):
    worker.script = say(TWO_CALLS)
    message = client.chat.completions.create(**ASK, tools=[WEATHER], parallel_tool_calls=False).choices[0].message
    assert len(message.tool_calls) == 1


def test_without_tools_the_text_is_left_alone(worker, client):
    worker.script = say(TWO_CALLS)
    for options in ({}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}):
        message = client.chat.completions.create(**ASK, **options).choices[0].message
        assert (message.content, message.tool_calls) == (TWO_CALLS, None)
        assert "weather" not in json.dumps(worker.messages[-1]["prompt"])


def test_a_template_that_ignores_tools_gets_them_as_text(worker, client):
    messages = [
        {"role": "system", "content": "Be brief."},
        *ASK["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
                {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12 °C"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "13 °C"}]},
    ]
    client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER])
    sent = worker.messages[-1]["prompt"]
    assert "template_kwargs" not in sent
    system, user, assistant, results = sent["messages"]
    assert system["content"].startswith("Be brief.\n\nYou may call functions")
    assert json.dumps(WEATHER, ensure_ascii=False) in system["content"]
    assert user == ASK["messages"][0]
    assert assistant["content"].count("<tool_call>") == 2 and "Köln" in assistant["content"]
    assert results == {
        "role": "user",
        "content": "<tool_response>\n12 °C\n</tool_response>\n<tool_response>\n13 °C\n</tool_response>",
    }


def test_a_template_with_tools_gets_them_as_they_are(worker, client):
    row = make_checkpoint("knows-tools", template=TOOL_TEMPLATE)
    worker.checkpoint_ids.add(str(row.pk))
    worker.script = say(TWO_CALLS)
    answer = client.chat.completions.create(**ASK | {"model": "knows-tools"}, tools=[WEATHER])
    assert len(answer.choices[0].message.tool_calls) == 2
    sent = worker.messages[-1]
    assert sent["prompt"]["template_kwargs"] == {"tools": [WEATHER]}
    assert sent["prompt"]["messages"] == ASK["messages"]
    assert "<tool_call>" in sent["visible_tokens"]


def test_the_operator_chooses_the_format(worker, client):
    row = make_checkpoint("mistral-like", template=TOOL_TEMPLATE, settings={"tool_format": "mistral"})
    worker.checkpoint_ids.add(str(row.pk))
    worker.script = say('[TOOL_CALLS]weather[ARGS]{"city": "Köln"}')
    call = {"id": "call_0123456789", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "12 °C"},
    ]
    answer = client.chat.completions.create(model="mistral-like", messages=messages, tools=[WEATHER])
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"city": "Köln"}'
    sent = worker.messages[-1]["prompt"]["messages"]
    # Templates of this family refuse other ids than nine letters and digits.
    short = sent[1]["tool_calls"][0]["id"]
    assert len(short) == 9 and short.isalnum() and sent[2]["tool_call_id"] == short


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_goes_to_the_worker_as_a_grammar(worker, client, choice):
    worker.script = say(TWO_CALLS)
    answer = client.chat.completions.create(**ASK, tools=[WEATHER], tool_choice=choice)
    assert answer.choices[0].finish_reason == "tool_calls"
    params = worker.messages[-1]["params"]
    assert params["grammar"]["kind"] == "lark" and '"weather' in params["grammar"]["value"]
    assert params["grammar_after"] == "<|/think|>"  # counts where the prompt has begun to think


def test_a_schema_that_cannot_be_enforced_is_refused(worker, client):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=b)c"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    error = refused(client, tools=[tool], tool_choice="required")
    assert error.param == "tools" and "can't be compiled" in error.message
    client.chat.completions.create(**ASK, tools=[tool])  # nothing is promised of it


def test_thinking_comes_apart(worker, client):
    worker.script = say("<|think|>\nIs it", "?\n<|/thi", "nk|>\n\nYes", ".")
    answer = client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == "Yes."
    assert answer.choices[0].message.reasoning_content == "Is it?"
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0  # the worker counts, and this one doesn't
    found = collect(client.chat.completions.create(**ASK, stream=True))
    assert (found[0]["reasoning"], found[0]["content"], found[0]["finish"]) == ("Is it?", "Yes.", "stop")
    assert worker.messages[-1]["reasoning_tags"] == ["<|think|>", "<|/think|>"]


def test_thinking_that_the_prompt_began(worker, client):
    def script(reply):
        yield reply.start(in_reasoning=True)
        yield reply.delta("Is it?<|/think|>Yes.", finish_reason="stop", stop_reason=None)
        yield reply.done()

    worker.script = script
    message = client.chat.completions.create(**ASK).choices[0].message
    assert (message.reasoning_content, message.content) == ("Is it?", "Yes.")
    found = collect(client.chat.completions.create(**ASK, stream=True))
    assert (found[0]["reasoning"], found[0]["content"]) == ("Is it?", "Yes.")


def test_thinking_can_be_left_out(worker, client):
    worker.script = say("<|think|>Is it?<|/think|>Yes.")
    message = client.chat.completions.create(**ASK, extra_body={"include_reasoning": False}).choices[0].message
    assert message.content == "Yes." and not hasattr(message, "reasoning_content")


def test_thinking_before_a_call(worker, client):
    worker.script = say("<|think|>I need the weather.<|/think|>\n" + TWO_CALLS)
    found = collect(client.chat.completions.create(**ASK, tools=[WEATHER], stream=True))
    assert found[0]["reasoning"] == "I need the weather."
    assert found[0]["content"] == "Let me look." and len(found[0]["calls"]) == 2


def test_thinking_stays_in_the_text_where_the_operator_says_so(worker, client):
    row = make_checkpoint("plain", settings={"reasoning_format": "none"})
    worker.checkpoint_ids.add(str(row.pk))
    worker.script = say("<|think|>a<|/think|>b")
    answer = client.chat.completions.create(**ASK | {"model": "plain"})
    assert answer.choices[0].message.content == "<|think|>a<|/think|>b"
    assert answer.usage.completion_tokens_details is None


def test_an_answer_can_be_sent_back_as_it_came(worker, client):
    worker.script = say("<|think|>Hm.<|/think|>" + TWO_CALLS)
    message = client.chat.completions.create(**ASK, tools=[WEATHER]).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "12 °C"} for call in message.tool_calls]
    worker.script = say("Warm.")
    messages = [*ASK["messages"], message.model_dump(), *results]
    assert client.chat.completions.create(model="tiny", messages=messages).choices[0].message.content == "Warm."
    assert worker.messages[-1]["prompt"]["messages"][1]["reasoning_content"] == "Hm."


def test_log_probabilities_cover_every_token(worker, client):
    def entry(token: str) -> dict[str, Any]:
        return {"token_id": 1, "token": token, "bytes": list(token.encode()), "logprob": -0.5, "top": []}

    def script(reply):
        yield reply.start()
        texts = pieces(TWO_CALLS)
        for number, text in enumerate(texts):
            last = {"finish_reason": "stop", "stop_reason": None} if number == len(texts) - 1 else {}
            yield reply.delta(text, logprobs=[entry(text)], **last)
        yield reply.done()

    worker.script = script
    whole = client.chat.completions.create(**ASK, tools=[WEATHER], logprobs=True).choices[0]
    assert "".join(item.token for item in whole.logprobs.content) == TWO_CALLS
    stream = client.chat.completions.create(**ASK, tools=[WEATHER], logprobs=True, stream=True)
    shown = [chunk.choices[0].logprobs for chunk in stream if chunk.choices[0].logprobs is not None]
    assert "".join(item.token for logprobs in shown for item in logprobs.content) == TWO_CALLS


@pytest.mark.parametrize(
    ("effort", "template", "expected"),
    [
        ("high", "{{ reasoning_effort }}{{ messages }}", {"reasoning_effort": "high"}),
        ("none", "{{ enable_thinking }}{{ messages }}", {"enable_thinking": False}),
        ("low", "{{ thinking }}{{ messages }}", {"thinking": True}),
    ],
)
def test_reasoning_effort_goes_to_the_template(worker, client, effort, template, expected):
    row = make_checkpoint("thinker", template=template)
    worker.checkpoint_ids.add(str(row.pk))
    client.chat.completions.create(**ASK | {"model": "thinker"}, reasoning_effort=effort)
    assert worker.messages[-1]["prompt"]["template_kwargs"] == expected


def test_reasoning_effort_that_nobody_knows_is_refused(worker, client):
    error = refused(client, reasoning_effort="low")
    assert error.param == "reasoning_effort" and "chat_template_kwargs" in error.message


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"tools": {}}, "tools", "must be a list"),
        ({"tools": [WEATHER] * 129}, "tools", "at most 128"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "'weather' twice"),
        ({"tools": [{"type": "custom"}]}, "tools", "only 'function'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "1 to 128"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools", "JSON schema"),
        ({"tools": [{"type": "function", "function": {"name": "f", "extra": 1}}]}, "tools", "'extra'"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools", "true or false"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice", "'required'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice", "must be"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "wind"}}},
            "tool_choice",
            "none of the tools: weather",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "one of none"),
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
        ({"function_call": "auto"}, "function_call", "tool_choice"),
        ({"messages": [{"role": "tool", "content": "12"}]}, "messages", "tool_call_id"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages", "role assistant"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages", "id, type"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]},
            "messages",
            "function.arguments",
        ),
    ],
)
def test_what_is_wrong_is_named(worker, client, options, param, words):
    error = refused(client, **options)
    assert error.param == param
    assert words in error.message


def test_apply_template_and_tokenize_show_what_a_chat_would_send(worker, live_url):
    body = {"model": "tiny", "messages": ASK["messages"], "tools": [WEATHER]}
    text = httpx.post(f"{live_url}/apply-template", json=body).json()["prompt"]
    assert "<tool_call>" in text and '"name": "weather"' in text
    counts = [httpx.post(f"{live_url}/tokenize", json=item).json()["count"] for item in (body, {**body, "tools": []})]
    assert counts[0] > counts[1] + 50
    response = httpx.post(f"{live_url}/tokenize", json={"model": "tiny", "prompt": "a", "tools": [WEATHER]})
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"


def test_template_values_have_a_limit(worker, client):
    error = refused(client, extra_body={"chat_template_kwargs": {"text": "a" * (1 << 20)}})
    assert error.param == "chat_template_kwargs" and "1048576" in error.message


def test_a_queued_job_answers_with_calls(worker, checkpoint):
    """What the job runner stores of a run is parsed like an answer over HTTP."""
    plan = plan_for_model(plan_from_body("chat", ASK | {"tools": [WEATHER]}), served_model_read("tiny"))
    again = GenerationPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    builder = OutputBuilder(again)
    for number, text in enumerate(pieces(TWO_CALLS)):
        event: Any = {"type": "delta", "index": number, "choice": 0, "text": text, "token_ids": [number]}
        builder.add(0, event)
    builder.add(0, {"type": "delta", "text": "", "finish_reason": "stop"})  # type: ignore[typeddict-item]
    answer = output_formatter(again, builder, request_id="r", created=1, model="tiny").whole()
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2
