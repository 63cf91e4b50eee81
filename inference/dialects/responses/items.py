"""Read items of the Responses API from requests, give them ids, and convert them to chat messages.

Shapes: https://platform.openai.com/docs/api-reference/responses/create#responses-create-input. An item is kept as
it will be listed later; what a client copies from an earlier response (ids, states, annotations) may come back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from inference.dialects.members import check_members, string_member, text_content, unsupported
from inference.dialects.openai.message_fields import MAX_CONTENT_PARTS, MAX_MESSAGES
from inference.dialects.responses.namespaces import joined_name
from inference.dialects.responses.returned_reasoning import decoded_reasoning
from inference.errors import InvalidRequest, UnsupportedFeature, shown
from inference.text.images.parts import read_client_image

Item = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
_SYSTEM_ROLES = ("system", "developer")
_STATUSES = ("in_progress", "completed", "incomplete")
_ID_CHARS = 80


def items_read(value: str | list[Any]) -> list[Item]:
    """Validate ``input`` and return its items.

    Args:
        value: A text (one message of the user), or a list of items.

    Raises:
        InvalidRequest: An item is wrong; ``param`` is its path.
    """
    if isinstance(value, str):
        return [_message_item("user", [{"type": "input_text", "text": value}])]
    if len(value) > MAX_MESSAGES:
        raise InvalidRequest(f"input has {len(value)} items, at most {MAX_MESSAGES} are allowed.", param="input")
    return [_read(f"input.{number}", item) for number, item in enumerate(value)]


def _read(where: str, item: Any) -> Item:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where} must be an object, got {shown(item)}.", param=where)
    kind = item.get("type") or ("message" if "role" in item else None)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if kind == "item_reference":
        raise UnsupportedFeature(
            f"{where}.type is 'item_reference': references to stored items aren't followed; send the item itself, as "
            "clients do with store: false, or previous_response_id.",
            param=f"{where}.type",
        )
    if reader is None:
        raise UnsupportedFeature(
            f"{where} has the type {shown(kind)}; known are {', '.join(_READERS)}.", param=f"{where}.type"
        )
    return reader(where, {name: value for name, value in item.items() if value is not None})


# --- one type each -----------------------------------------------------------------------------


def _message(where: str, item: Item) -> Item:
    _only(where, item, {"type", "role", "content", "id", "status", "phase"})
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role is {shown(role)}; known are {', '.join(ROLES)}.", param=f"{where}.role")
    if "phase" in item:
        raise unsupported(f"{where}.phase")
    part_type = "output_text" if role == "assistant" else "input_text"
    content = item.get("content")
    if isinstance(content, str):
        parts = [_text_part(part_type, content)]
    elif isinstance(content, list) and len(content) <= MAX_CONTENT_PARTS:
        parts = [
            _image_part(f"{where}.content.{number}", part)
            if role == "user" and isinstance(part, dict) and part.get("type") == "input_image"
            else _part(f"{where}.content.{number}", part_type, part)
            for number, part in enumerate(content)
        ]
    else:
        raise InvalidRequest(
            f"{where}.content must be a string or a list of at most {MAX_CONTENT_PARTS} parts.",
            param=f"{where}.content",
        )
    return _message_item(role, parts, _id(where, item, "msg"))


def _part(where: str, part_type: str, part: Any) -> Item:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        raise UnsupportedFeature(f"{where} is a refusal, which models here don't make; remove it.", param=where)
    if kind not in ("input_text", "output_text", "text"):
        raise UnsupportedFeature(
            f"{where} has the type {shown(kind)}; texts are supported, as {part_type!r}, and in messages of the user "
            "images, as 'input_image'.",
            param=f"{where}.type",
        )
    _only(where, part, {"type", "text", "annotations", "logprobs"})
    if part.get("annotations"):
        raise UnsupportedFeature(
            f"{where}.annotations is not supported: texts here have no citations.", param=f"{where}.annotations"
        )
    return _text_part(part_type, string_member(where, part, "text"))


def _image_part(where: str, part: Item) -> Item:
    """A picture, which is read here so that errors name the part; it is kept as the client wrote it."""
    given = {name: value for name, value in part.items() if value is not None}
    _only(where, given, {"type", "image_url", "file_id", "detail"})
    kept: Item = {"type": "input_image", "detail": given.get("detail", "auto")}
    for name in ("image_url", "file_id"):
        if name in given:
            kept[name] = string_member(where, given, name)
    read_client_image(_image_in_chat(kept), where)
    return kept


def _image_in_chat(part: Item) -> dict[str, Any]:
    """A kept picture as a part of a chat message."""
    names = {"image_url": "url", "file_id": "file_id", "detail": "detail"}
    return {"type": "image_url", "image_url": {names[name]: part[name] for name in names if name in part}}


def _reasoning(where: str, item: Item) -> Item:
    _only(where, item, {"type", "id", "summary", "content", "encrypted_content", "status"})
    content = item.get("content", [])
    if not content and "encrypted_content" in item:
        written = string_member(where, item, "encrypted_content")
        content = [{"type": "reasoning_text", "text": decoded_reasoning(written, f"{where}.encrypted_content")}]
    for name, value, kind in (("content", content, "reasoning_text"), ("summary", item.get("summary", []), "")):
        good = isinstance(value, list) and all(
            isinstance(part, dict) and part.get("type") == kind and isinstance(part.get("text"), str) for part in value
        )
        if not good or (value and not kind):
            raise InvalidRequest(
                f"{where}.{name} must be " + (f"a list of {kind} parts." if kind else "an empty list."),
                param=f"{where}.{name}",
            )
    return {
        "id": _id(where, item, "rs"),
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": part["text"]} for part in content],
        "status": "completed",
    }


def _function_call(where: str, item: Item) -> Item:
    _only(where, item, {"type", "id", "call_id", "name", "namespace", "arguments", "status"})
    namespace = {"namespace": string_member(where, item, "namespace")} if "namespace" in item else {}
    return {
        "id": _id(where, item, "fc"),
        "type": "function_call",
        "call_id": string_member(where, item, "call_id"),
        "name": string_member(where, item, "name"),
        **namespace,
        "arguments": string_member(where, item, "arguments"),
        "status": "completed",
    }


def _function_call_output(where: str, item: Item) -> Item:
    _only(where, item, {"type", "id", "call_id", "output", "status"})
    output = item.get("output")
    if isinstance(output, list) and len(output) <= MAX_CONTENT_PARTS:
        output = [_part(f"{where}.output.{number}", "input_text", part) for number, part in enumerate(output)]
    elif not isinstance(output, str):
        raise InvalidRequest(
            f"{where}.output must be a string or a list of at most {MAX_CONTENT_PARTS} text parts.",
            param=f"{where}.output",
        )
    return {
        "id": _id(where, item, "fco"),
        "type": "function_call_output",
        "call_id": string_member(where, item, "call_id"),
        "output": output,
        "status": "completed",
    }


_READERS: Mapping[str, Callable[[str, Item], Item]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}


def _message_item(role: str, parts: list[Item], item_id: str | None = None) -> Item:
    return {
        "id": item_id or f"msg_{secrets.token_hex(16)}",
        "type": "message",
        "role": role,
        "status": "completed",
        "content": parts,
    }


def _text_part(kind: str, text: str) -> Item:
    part: Item = {"type": kind, "text": text}
    return {**part, "annotations": []} if kind == "output_text" else part


def _only(where: str, item: Item, known: set[str]) -> None:
    check_members(where, item, known)
    if "status" in item and item["status"] not in _STATUSES:
        raise InvalidRequest(
            f"{where}.status is {shown(item['status'])}; known are {', '.join(_STATUSES)}.", param=f"{where}.status"
        )


def _id(where: str, item: Item, prefix: str) -> str:
    value = item.get("id")
    if value is None:
        return f"{prefix}_{secrets.token_hex(16)}"
    if not isinstance(value, str) or not 0 < len(value) <= _ID_CHARS:
        raise InvalidRequest(f"{where}.id must be a string of 1 to {_ID_CHARS} characters.", param=f"{where}.id")
    return value


# --- the conversation --------------------------------------------------------------------------


def chat_messages(instructions: str | None, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the chat messages for ``items``, after ``instructions`` as the system message.

    Calls belong to the assistant's message before them, or to one of their own, which takes the text of a message
    between the calls and their outputs: no template knows a message there. Messages of system and developer behind
    ``instructions`` are parts of the system message, as many templates take a single one. Reasoning goes with the
    message or call behind it; how much of it is read again is the template's decision.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    reasoning = ""
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            reasoning += "".join(part["text"] for part in item["content"])
            continue
        if kind == "function_call_output":
            output = item["output"]
            text = output if isinstance(output, str) else _content(output)
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        elif kind == "message":
            content = _content(item["content"])
            if item["role"] == "assistant" and not reasoning and _has_only_calls(messages):
                messages[-1]["content"] = content
            elif item["role"] in _SYSTEM_ROLES and [message["role"] in _SYSTEM_ROLES for message in messages] == [True]:
                messages[0]["content"] = _parts(messages[0]["content"]) + _parts(content)
            else:
                messages.append({"role": item["role"], "content": content})
        else:
            if reasoning or not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            name = joined_name(item.get("namespace"), item["name"])
            function = {"name": name, "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = reasoning
        reasoning = ""
    return messages


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _has_only_calls(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message has calls without a text."""
    return bool(messages) and messages[-1]["content"] is None


def _content(parts: list[Item]) -> str | list[dict[str, Any]]:
    if not any(part["type"] == "input_image" for part in parts):
        return text_content([part["text"] for part in parts])
    return [
        _image_in_chat(part) if part["type"] == "input_image" else {"type": "text", "text": part["text"]}
        for part in parts
    ]
