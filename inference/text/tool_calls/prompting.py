"""Write a conversation with tools for a model: through its own template, or in Hermes form.

A template that names ``tools`` gets the definitions as that variable. One that doesn't would drop them in
silence; then they go into the system message, calls into the text of the assistant and results into messages of
the user, as Hermes models learn it (https://github.com/NousResearch/Hermes-Function-Calling).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from inference.errors import UnsupportedFeature
from inference.values.chat_options import ChatOptions, ReasoningEffort
from inference.values.messages import PromptMessage
from inference.values.output_format import KIMI_FUNCTION, TAGS, ToolFormat, uses_tools

_INTRODUCTION = (
    "You may call functions to help with the user's request. Their definitions, one JSON object per line:\n"
    "<tools>\n{tools}\n</tools>\n"
    "To call one, answer with a JSON object of its name and its arguments between {start} and {end}:\n"
    '{start}\n{{"name": "the function\'s name", "arguments": {{"the argument\'s name": "its value"}}}}\n{end}'
)
_MISTRAL_ID = re.compile("[a-zA-Z0-9]{9}")
_MISTRAL_ID_CHARS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SWITCHES = ("enable_thinking", "thinking")
"""Template variables that turn thinking on and off: of Qwen 3 and others, of DeepSeek V3.1."""

Message = dict[str, Any]


def with_tools(prompt: PromptMessage, options: ChatOptions, template: str, tool_format: ToolFormat) -> PromptMessage:
    """The prompt as the model's template has to get it.

    Raises:
        UnsupportedFeature: The template knows nothing of ``reasoning_effort``.
    """
    messages = prompt["messages"]
    kwargs = dict(prompt.get("template_kwargs") or {})
    tools = [_shown_tool(tool) for tool in options.offered]
    if uses_tools(template):
        if tools:
            kwargs["tools"] = tools
        if tool_format == "mistral":
            messages = [_with_short_ids(message) for message in messages]
        elif tool_format == "kimi":
            messages = _with_names_as_ids(messages)
    else:
        messages = in_hermes_form(messages, tools, TAGS.get(tool_format, TAGS["hermes"]))
    if options.reasoning_effort is not None:
        kwargs |= _effort(options.reasoning_effort, template, kwargs)
    changed: PromptMessage = {**prompt, "messages": messages}
    if kwargs:
        changed["template_kwargs"] = kwargs
    return changed


def _shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A definition without what is for the server (``strict``), members in OpenAI's order."""
    function = tool["function"]
    shown = {name: function[name] for name in ("name", "description", "parameters") if name in function}
    return {"type": "function", "function": shown}


def in_hermes_form(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tags: tuple[str, str]
) -> list[Message]:
    """A conversation for a template that knows system, user and assistant only."""
    changed: list[Message] = []
    if tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        changed.append({"role": "system", "content": _INTRODUCTION.format(tools=lines, start=tags[0], end=tags[1])})
    was_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            content = f"<tool_response>\n{text_of(message)}\n</tool_response>"
            if was_result:
                changed[-1]["content"] += "\n" + content
            else:
                changed.append({"role": "user", "content": content})
            if "cache_control" in message:
                changed[-1]["cache_control"] = message["cache_control"]
        elif message.get("tool_calls"):
            parts = [text_of(message)] if text_of(message) else []
            parts += [_call_text(call, tags) for call in message["tool_calls"]]
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            changed.append({**rest, "content": "\n".join(parts)})
        elif tools and message is messages[0] and message["role"] == "system":
            changed[0]["content"] = f"{text_of(message)}\n\n{changed[0]['content']}"
        else:
            changed.append(dict(message))
        was_result = is_result
    return changed


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, parts joined as the template's reader joins them."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def _call_text(call: Mapping[str, Any], tags: tuple[str, str]) -> str:
    function = call["function"]
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{tags[0]}\n{{"name": {name}, "arguments": {function["arguments"] or "{}"}}}\n{tags[1]}'


def _with_short_ids(message: Message) -> Message:
    """Mistral's templates refuse ids that aren't nine letters and digits."""
    changed = dict(message)
    if "tool_call_id" in changed:
        changed["tool_call_id"] = _short_id(changed["tool_call_id"])
    if changed.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in changed["tool_calls"]]
    return changed


def _with_names_as_ids(messages: Sequence[Message]) -> list[Message]:
    """Kimi's templates write a call's id in place of its name: ``functions.name:3`` for the fourth one of all."""
    ids: dict[str, str] = {}
    changed = []
    num_calls = 0
    for message in messages:
        copy = dict(message)
        if message.get("tool_calls"):
            copy["tool_calls"] = []
            for call in message["tool_calls"]:
                ids[call["id"]] = f"{KIMI_FUNCTION}{call['function']['name']}:{num_calls}"
                copy["tool_calls"].append({**call, "id": ids[call["id"]]})
                num_calls += 1
        elif "tool_call_id" in message:
            copy["tool_call_id"] = ids.get(message["tool_call_id"], message["tool_call_id"])
        changed.append(copy)
    return changed


def _short_id(call_id: str) -> str:
    if _MISTRAL_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8])
    digits = ""
    for _ in range(9):
        number, digit = divmod(number, len(_MISTRAL_ID_CHARS))
        digits += _MISTRAL_ID_CHARS[digit]
    return digits


def effort_variables(template: str) -> list[str]:
    """Return the names of the template's variables that ``reasoning_effort`` sets; empty: it refuses the parameter."""
    return [name for name in ("reasoning_effort", *_SWITCHES) if re.search(rf"\b{name}\b", template)]


def _effort(effort: ReasoningEffort, template: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The template's variables for an effort; what ``chat_template_kwargs`` says goes first."""
    found = {name: effort if name == "reasoning_effort" else effort != "none" for name in effort_variables(template)}
    if not found:
        raise UnsupportedFeature(
            "reasoning_effort is not supported by this model: its chat template has no variable for it; "
            "leave it out, or pass what the template knows in chat_template_kwargs.",
            param="reasoning_effort",
        )
    return {name: value for name, value in found.items() if name not in kwargs}
