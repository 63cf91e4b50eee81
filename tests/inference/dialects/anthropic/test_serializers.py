"""Bodies of Anthropic's endpoints: what is wrong is named by its field."""

from __future__ import annotations

import pytest

from inference.dialects.anthropic.serializers import CountTokensRequestSerializer, MessageRequestSerializer
from inference.errors import InvalidRequest
from inference.text.tool_calls.prompting import with_tools
from tests.inference.api.anthropic.test_views import BODY, MESSAGES


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0.source"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
         "messages.0.content.0.input"),
        ({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "a"}]}]}, "messages.0.content.1"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": 1}]}]},
         "messages.0.content.0.cache_control"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control":
            {"type": "ephemeral", "scope": 7}}]}]}, "messages.0.content.0.cache_control"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
         "messages.0.content.0.type"),
        ({"system": 7}, "system"),
        ({"temperature": 3}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"metadata": {"mood": "good"}}, "metadata"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"thinking": {"type": []}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "whole"}}, "thinking.display"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]}]},
         "tools.0.allowed_callers"),
        ({"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]}, "tools.0.input_examples"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice"),
        ({"tool_choice": {"type": []}}, "tool_choice"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": 1}}, "context_management.edits"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits.0"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management.edits.0"),
        ({"context_management": {"compact": {}}}, "context_management.compact"),
        ({"diagnostics": {"previous_message_id": 7}}, "diagnostics"),
        ({"diagnostics": {"level": "all"}}, "diagnostics"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"stop": "x"}, "stop"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_errors_name_the_field(members, param):
    with pytest.raises(InvalidRequest) as caught:
        MessageRequestSerializer.shared().plan({**BODY, **members})
    found = caught.value.param or ""
    assert found == param or found.startswith(f"{param}.")
    assert param.split(".")[-1] in caught.value.message or param in caught.value.message


def test_counting_takes_no_sampling_parameters():
    with pytest.raises(InvalidRequest) as caught:
        CountTokensRequestSerializer.shared().chat_body({"model": "tiny", "messages": MESSAGES, "max_tokens": 9})
    assert caught.value.param == "max_tokens"


def test_messages_follow_a_state():
    plan, _ = MessageRequestSerializer.shared().plan({**BODY, "state": "manual"})
    assert plan.state == "manual"
    assert MessageRequestSerializer.shared().plan(BODY)[0].state is None
    with pytest.raises(InvalidRequest) as caught:
        MessageRequestSerializer.shared().plan({**BODY, "state": 7})
    assert caught.value.param == "state"


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_claude_code_keeps_all_thinking_by_an_edit_that_changes_nothing(keep):
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}
    assert _plan(context_management=edits) == _plan()
    assert _plan(context_management={}) == _plan(context_management={"edits": None}) == _plan()
    counted = {"model": "tiny", "messages": MESSAGES}
    count = CountTokensRequestSerializer.shared().chat_body
    assert count(counted | {"context_management": edits}) == count(counted)


@pytest.mark.parametrize("previous", [None, "msg_01"])
def test_claude_code_names_its_previous_message_for_diagnostics(previous):
    assert _plan(diagnostics={"previous_message_id": previous}) == _plan()


@pytest.mark.parametrize(
    ("template", "variables"),
    [
        ("{{ messages }}", {}),
        ("{{ messages }}{{ reasoning_effort }}", {"reasoning_effort": "high"}),
        ("{{ messages }}{% if enable_thinking %}x{% endif %}", {"enable_thinking": True}),
        ("{{ messages }}{% if thinking %}x{% endif %}", {"thinking": True}),
    ],
)
def test_claude_code_sends_the_default_effort_to_every_model(template, variables):
    """It sends ``effort: high`` to models that it doesn't know, so a template without an effort mustn't refuse it."""
    plan = _plan(output_config={"effort": "high"}, thinking={"type": "adaptive"})
    assert plan.chat is not None
    prompt = with_tools(plan.prompts[0], plan.chat, template, "hermes")
    assert prompt["template_kwargs"].items() >= variables.items()


def test_an_effort_below_the_default_needs_a_template_that_knows_it():
    plan = _plan(output_config={"effort": "low"})
    assert plan.chat is not None
    assert plan.chat.reasoning_effort == "low"
    switched_off = _plan(output_config={"effort": "high"}, thinking={"type": "disabled"})
    assert switched_off.prompts[0]["template_kwargs"] == {"reasoning_effort": "high", "enable_thinking": False}


def test_a_budget_for_thinking_turns_it_on():
    """Claude Code (MAX_THINKING_TOKENS), Cline, Zed and LangChain give a budget, which is a target and no limit."""
    with_budget = _plan(thinking={"type": "enabled", "budget_tokens": 4096})
    assert with_budget == _plan(thinking={"type": "adaptive"}) == _plan(thinking={"type": "enabled"})
    assert with_budget.prompts[0]["template_kwargs"] == {"enable_thinking": True}


def test_thinking_is_shown_whole_or_not_at_all():
    shown = _plan(thinking={"type": "adaptive", "display": "summarized"})
    assert shown == _plan(thinking={"type": "adaptive"})
    hidden = _plan(thinking={"type": "adaptive", "display": "omitted"})
    assert shown.chat is not None
    assert hidden.chat is not None
    assert (shown.chat.include_reasoning, hidden.chat.include_reasoning) == (True, False)


def test_claude_code_asks_for_inputs_as_they_are_generated():
    """It and AI SDK send members that say how a tool's input is streamed and who may call it."""
    tool = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
    usual = {"eager_input_streaming": True, "defer_loading": False, "allowed_callers": ["direct"], "strict": None}
    assert _plan(tools=[tool | usual]) == _plan(tools=[tool | {"type": "custom"}]) == _plan(tools=[tool])


def test_claude_code_says_who_shares_a_cached_prefix():
    mark: dict[str, str] = {"type": "ephemeral", "ttl": "1h"}
    tool = {"name": "f", "input_schema": {"type": "object"}}

    def marked(mark):
        return _plan(
            system=[{"type": "text", "text": "Rules.", "cache_control": mark}],
            tools=[tool | {"cache_control": mark}],
            cache_control=mark,
        )

    assert marked(mark | {"scope": "global"}) == marked(mark | {"scope": None}) == marked(mark)
    assert marked(mark).prompts[0]["messages"][0]["content"][0]["cache_control"] == mark


def test_a_turn_of_claude_code():
    """A request within a session, with what it sends to a model that it doesn't know."""
    mark = {"type": "ephemeral"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    }
    body = {
        "model": "tiny",
        "max_tokens": 32_000,
        "stream": True,
        "temperature": 1,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": mark | {"scope": "global"}},
            {"type": "text", "text": "Today is Monday.", "cache_control": mark},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<reminder>"}, {"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py", "is_error": False},
                {"type": "text", "text": "go on", "cache_control": mark}]},
        ],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": schema, "eager_input_streaming": True}],
        "metadata": {"user_id": '{"device_id": "0a1b", "account_uuid": "", "session_id": "1f"}'},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"previous_message_id": "msg_1"},
    }  # fmt: skip
    plan, stream = MessageRequestSerializer.shared().plan(body)
    assert stream
    assert [message["role"] for message in plan.prompts[0]["messages"]] == [
        "system", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    counted = {name: body[name] for name in ("model", "messages", "system", "tools", "thinking")}
    assert CountTokensRequestSerializer.shared().chat_body(counted)["messages"] == plan.prompts[0]["messages"]


def _plan(**members):
    return MessageRequestSerializer.shared().plan({**BODY, **members})[0]
