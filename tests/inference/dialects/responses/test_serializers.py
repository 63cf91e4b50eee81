"""Bodies of /v1/responses: what is wrong is named by its field."""

from __future__ import annotations

import pytest

from inference.dialects.responses.returned_reasoning import encoded_reasoning
from inference.dialects.responses.serializers import ResponseRequestSerializer
from inference.errors import InvalidRequest


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input.0"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"input": [{"role": "king", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": "x", "mood": "good"}]}, "input.0.mood"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input.0.content.0"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"include": ["web_search_call.action.sources"]}, "include.0"),
        ({"include": ["reasoning.encrypted_content"], "background": True}, "include"),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 2}, "top_logprobs"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABk"}]},
         "input.0.encrypted_content"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "blazr.x"}]},
         "input.0.encrypted_content"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"truncation": "later"}, "truncation"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "none"}}, "reasoning.summary"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_errors_name_the_field(members, param):
    body = {"model": "tiny", "input": "Hi", **members}
    with pytest.raises(InvalidRequest) as caught:
        ResponseRequestSerializer.shared().read(body).plan()
    assert caught.value.param == param
    assert param.split(".")[-1] in caught.value.message or param in caught.value.message


def test_a_conversation_stays_behind_its_state():
    """Its first request names the state; later ones needn't, and can't name another."""
    read = ResponseRequestSerializer.shared().read
    first = read({"model": "tiny", "input": "Hi", "state": "manual"})
    assert first.plan().state == "manual"
    skeleton = first.skeleton(first.plan(), response_id="r", created=1, model="tiny")
    assert skeleton["state"] == "manual"
    later = read({"model": "tiny", "input": "And?"})
    assert later.following(None).plan().state is None
    assert "state" not in later.skeleton(later.plan(), response_id="r", created=1, model="tiny")
    followed = later.following("manual")
    assert followed.plan().state == followed.values["state"] == "manual"
    assert first.following("manual") is first
    with pytest.raises(InvalidRequest, match="began behind 'other'") as caught:
        first.following("other")
    assert caught.value.param == "state"


def test_what_a_state_holds_is_not_cut_off():
    body = {"model": "tiny", "input": "Hi", "truncation": "auto"}
    read = ResponseRequestSerializer.shared().read
    for refused in (lambda: read({**body, "state": "manual"}), lambda: read(body).following("manual")):
        with pytest.raises(InvalidRequest, match="doesn't go with a state") as caught:
            refused()
        assert caught.value.param == "truncation"


def test_codex_describes_itself_in_client_metadata():
    body = {"model": "tiny", "input": "Hi"}
    metadata = {"x-codex-installation-id": "7c1d", "x-codex-turn-metadata": '{"turn_id": "1"}' * 100}
    assert _plan(body | {"client_metadata": metadata}) == _plan(body)


@pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
def test_codex_and_ai_sdk_ask_for_summaries_where_reasoning_comes_whole(summary):
    body = {"model": "tiny", "input": "Hi", "reasoning": {"effort": "high"}}
    assert _plan(body | {"reasoning": {"effort": "high", "summary": summary}}) == _plan(body)


def test_a_turn_of_codex():
    """A request within a session: Codex stores nothing, and sends back what it has kept of the output's items."""
    function = {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False,
                "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}  # fmt: skip
    body = {
        "model": "tiny",
        "instructions": "You are an agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": encoded_reasoning("hm")},
            {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a.py"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "more"}]},
        ],
        "tools": [function, {"type": "namespace", "name": "mcp__wiki", "description": "A wiki.", "tools": [function]}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-1f",
        "client_metadata": {"x-codex-installation-id": "7c1d"},
    }
    plan = _plan(body)
    messages = plan.prompts[0]["messages"]
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert messages[2]["reasoning_content"] == "hm"
    assert plan.chat is not None
    assert plan.chat.tool_names == ("exec_command", "mcp__wiki__exec_command")
    unknown = _plan(body | {"reasoning": None, "include": []})  # of a model without catalogue entry
    assert unknown.chat is not None
    assert unknown.chat.reasoning_effort is None


@pytest.mark.parametrize("kind", ["web_search", "image_generation", "custom", "local_shell", "tool_search"])
def test_tools_of_codex_that_are_not_supported_are_named(kind):
    with pytest.raises(InvalidRequest, match=f"tools.0.type is '{kind}'") as caught:
        _plan({"model": "tiny", "input": "Hi", "tools": [{"type": kind, "name": "x"}]})
    assert caught.value.param == "tools.0.type"


def _plan(body):
    return ResponseRequestSerializer.shared().read(body).plan()
