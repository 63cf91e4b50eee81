"""/v1/messages with Anthropic's own client, and its wire format where that client hides it."""

from __future__ import annotations

import anthropic
import httpx
import pytest

from inference.access.api_keys import api_key_create
from inference.dialects.anthropic.events import message_usage
from tests.inference.api.scripted_worker import Reply, say

MESSAGES = [{"role": "user", "content": "Hi"}]
BODY = {"model": "tiny", "max_tokens": 9, "messages": MESSAGES}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}


def test_whole_message(claude, worker):
    message = claude.messages.create(
        model="tiny", max_tokens=9, system="Be brief.", messages=MESSAGES, stop_sequences=["END"],
        metadata={"user_id": "u"}, extra_body={"temperature": 0.5, "top_k": 3, "top_p": 0.9},
    )  # fmt: skip
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello, world")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 2)
    sent = worker.messages[-1]
    assert sent["prompt"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    params = sent["params"]
    assert (params["max_tokens"], params["temperature"], params["top_k"], params["top_p"]) == (9, 0.5, 3, 0.9)
    assert params["stop"] == ["END"]


def test_blocks_become_messages(claude, worker):
    hint = {"cache_control": {"type": "ephemeral"}}
    claude.messages.create(
        model="tiny",
        max_tokens=9,
        system=[{"type": "text", "text": "Rules.", **hint}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two", **hint}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "three"}]},
            {"role": "user", "content": "four"},
        ],
    )  # fmt: skip
    assert worker.messages[-1]["prompt"]["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "Rules.", **hint}]},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two", **hint}]},
        {"role": "assistant", "content": "three", "reasoning_content": "hm"},
        {"role": "user", "content": "four"},
    ]


def test_an_answer_goes_on_behind_words_put_into_its_mouth(claude, worker):
    claude.messages.create(model="tiny", max_tokens=9, messages=[*MESSAGES, {"role": "assistant", "content": "Well,"}])
    prompt = worker.messages[-1]["prompt"]
    assert (prompt["continue_final_message"], prompt["add_generation_prompt"]) == (True, False)


def test_stream_of_the_client(claude, worker):
    with claude.messages.stream(model="tiny", max_tokens=9, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == "Hello, world"
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].text) == ("end_turn", "Hello, world")
    assert (final.usage.input_tokens, final.usage.output_tokens) == (5, 2)
    headers = stream.response.headers
    assert headers["request-id"] == headers["x-request-id"]


def test_count_tokens_is_what_generating_would_read(claude, worker, live_url):
    counted = claude.messages.count_tokens(model="tiny", system="Be brief.", messages=MESSAGES)
    conversation = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    told = httpx.post(f"{live_url}/tokenize", json={"model": "tiny", "messages": conversation}).json()
    assert counted.input_tokens == told["count"] > 5
    assert not worker.messages


# --- keys and versions -------------------------------------------------------------------------


def test_keys_in_either_header(live_url, worker, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    _, key = api_key_create(name="a")
    with anthropic.Anthropic(base_url=live_url, api_key=key, max_retries=0) as found:
        assert found.messages.create(**BODY).content[0].text == "Hello, world"
    with anthropic.Anthropic(base_url=live_url, auth_token=key, max_retries=0) as found:
        assert found.messages.create(**BODY).content[0].text == "Hello, world"
    with (
        anthropic.Anthropic(base_url=live_url, api_key="sk-wrong", max_retries=0) as found,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        found.messages.create(**BODY)
    assert caught.value.body["error"]["type"] == "authentication_error"
    # Either header opens the other endpoints too.
    assert httpx.get(f"{live_url}/v1/models", headers={"x-api-key": key}).status_code == 200


def test_versions(live_url, worker):
    for version, status in ((None, 200), ("2023-06-01", 200), ("2026-10-21", 200), ("2023-01-01", 400)):
        headers = {} if version is None else {"anthropic-version": version}
        answer = httpx.post(f"{live_url}/v1/messages", json=BODY, headers=headers, timeout=60)
        assert answer.status_code == status, answer.text


# --- errors ------------------------------------------------------------------------------------


def test_errors_have_anthropics_shape(claude, live_url, worker, settings):
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(**BODY | {"model": "missing"})
    assert caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="frobnicate") as caught:
        claude.messages.create(**BODY, extra_body={"frobnicate": 1})
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    answer = httpx.get(f"{live_url}/v1/messages")
    assert (answer.status_code, answer.json()["type"]) == (405, "error")
    settings.BLAZR_MAX_IN_FLIGHT = 0
    with pytest.raises(anthropic.RateLimitError) as caught:
        claude.messages.create(**BODY)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert int(caught.value.response.headers["retry-after"]) > 0


def test_thinking_is_switched_in_the_template(claude, worker):
    claude.messages.create(**BODY, thinking={"type": "disabled"})
    assert worker.messages[-1]["prompt"]["template_kwargs"] == {"enable_thinking": False}


def test_a_refused_prompt_names_the_field_as_it_is_called_here(claude, worker):
    from inference.errors import PromptTooLong

    worker.script = lambda reply: iter([reply.error(PromptTooLong("stop has too much", param="stop"))])
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences has too much"):
        claude.messages.create(**BODY)


def test_stop_sequences_reach_the_end(claude, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("Hi", finish_reason="stop", stop_reason="END")
        yield reply.done(cached_tokens=2)

    worker.script = script
    message = claude.messages.create(**BODY, stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (3, 2)


def test_max_tokens(claude, worker):
    worker.script = say("Hel", finish_reason="length")
    assert claude.messages.create(**BODY).stop_reason == "max_tokens"


def test_marks_of_tools_calls_results_and_the_whole_reach_the_worker(claude, worker):
    mark, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    claude.messages.create(
        model="tiny",
        max_tokens=9,
        tools=[{"name": "look", "input_schema": {"type": "object"}, "cache_control": hour}],
        messages=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "look", "input": {}, "cache_control": mark}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "two"}]},
        ],
        extra_body={"cache_control": mark},
    )  # fmt: skip
    prompt = worker.messages[-1]["prompt"]
    assert prompt["keep_tools_s"] == 3600
    assert [message.get("cache_control") for message in prompt["messages"]][-3:] == [None, mark, mark]
    assert "cache_control" not in str(prompt.get("template_kwargs"))


def test_usage_says_what_is_kept_and_for_how_long():
    details = {"cached_tokens": 10, "kept_prefixes": [{"tokens": 8, "seconds": 300}, {"tokens": 30, "seconds": 3600}]}
    details["kept_prefixes"].append({"tokens": 35, "seconds": 300})
    usage = message_usage({"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": details})
    assert usage == {
        "input_tokens": 15,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 25,
        "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 20},
        "output_tokens": 2,
    }
