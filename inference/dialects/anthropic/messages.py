"""Translate Anthropic's messages into chat messages.

Shapes: https://docs.anthropic.com/en/api/messages. Text blocks are joined. A ``tool_use`` block becomes a tool call of
the assistant's message, a ``tool_result`` block becomes a message of the role tool. ``cache_control`` is taken wherever
Anthropic's API takes it, and becomes a mark of the chat message or its text part (``inference.values.cache_control``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from inference.dialects.members import check_members, string_member, unsupported
from inference.dialects.openai.message_fields import MAX_CONTENT_PARTS, MAX_MESSAGES
from inference.errors import InvalidRequest, UnsupportedFeature, shown
from inference.text.images.parts import file_part, image_of_url
from inference.values.cache_control import seconds_of

_ROLES = ("user", "assistant", "system")


def chat_messages(system: Any, messages: Any) -> list[dict[str, Any]]:
    """Return the chat messages for ``system`` and ``messages``.

    Thinking stays with its message; the chat template decides how much of it the model reads again.

    Raises:
        InvalidRequest: A message is wrong; ``param`` is the path of the error.
    """
    found: list[dict[str, Any]] = []
    if system is not None:
        found.append({"role": "system", "content": _text("system", system)})
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(messages)} messages, at most {MAX_MESSAGES} are allowed.", param="messages"
        )
    for number, message in enumerate(messages):
        found += _message(f"messages.{number}", message)
    return found


def _message(where: str, message: Any) -> list[dict[str, Any]]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{where} must be an object, got {shown(message)}.", param=where)
    _only(where, message, {"role", "content"})
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise InvalidRequest(f"{where}.role is {shown(role)}; known are {', '.join(_ROLES)}.", param=f"{where}.role")
    where = f"{where}.content"
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "system":
        return [{"role": role, "content": _text(where, content)}]
    blocks = _blocks(where, content)
    return _user(where, blocks) if role == "user" else _assistant(where, blocks)


def _user(where: str, blocks: list[Any]) -> list[dict[str, Any]]:
    """Return a user's messages: tool results first, one message each, in the order that Anthropic's API requires."""
    found: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        kind = _kind(place, block)
        if kind == "text":
            texts.append(_text_of(place, block))
        elif kind == "image":
            texts.append(_image(place, block))
        elif kind == "tool_result":
            if texts:
                raise InvalidRequest(f"{place}: tool_result blocks come before text and image blocks.", param=place)
            found.append(_tool_result(place, block))
        else:
            raise _unknown(place, kind, ("text", "image", "tool_result"))
    if texts or not found:
        found.append({"role": "user", "content": _content(texts)})
    return found


def _tool_result(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    _only(where, block, {"type", "tool_use_id", "content", "is_error", "cache_control"})
    content = block.get("content")
    text = "" if content is None else _text(f"{where}.content", content)
    mark = _mark(block)
    if block.get("is_error", False) is True:
        # Chat templates have no flag for a failed call, so the text says it.
        text = f"Error: {text}" if isinstance(text, str) else [{"type": "text", "text": "Error:"}, *text]
    return {"role": "tool", "tool_call_id": string_member(where, block, "tool_use_id"), "content": text, **mark}


def _assistant(where: str, blocks: list[Any]) -> list[dict[str, Any]]:
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    mark: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        kind = _kind(place, block)
        if kind == "text":
            texts.append(_text_of(place, block))
        elif kind == "tool_use":
            _only(place, block, {"type", "id", "name", "input", "cache_control", "caller"})
            if not isinstance(block.get("input"), dict):
                raise InvalidRequest(
                    f"{place}.input must be an object, got {shown(block.get('input'))}.", param=f"{place}.input"
                )
            arguments = json.dumps(block["input"], ensure_ascii=False)
            function = {"name": string_member(place, block, "name"), "arguments": arguments}
            calls.append({"id": string_member(place, block, "id"), "type": "function", "function": function})
            mark = _mark(block) or mark
        elif kind == "thinking":
            _only(place, block, {"type", "thinking", "signature"})
            thoughts.append(string_member(place, block, "thinking"))
        else:
            raise _unknown(place, kind, ("text", "tool_use", "thinking"))
    message: dict[str, Any] = {"role": "assistant", "content": _content(texts) if texts or not calls else None, **mark}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return [message]


# --- blocks ------------------------------------------------------------------------------------


def _blocks(where: str, content: Any) -> list[Any]:
    if not isinstance(content, list) or len(content) > MAX_CONTENT_PARTS:
        raise InvalidRequest(
            f"{where} must be a string or a list of at most {MAX_CONTENT_PARTS} blocks, got {shown(content)}.",
            param=where,
        )
    return content


def _text(where: str, content: Any) -> str | list[dict[str, Any]]:
    """A string or blocks of text."""
    if isinstance(content, str):
        return content
    texts = []
    for number, block in enumerate(_blocks(where, content)):
        place = f"{where}.{number}"
        kind = _kind(place, block)
        if kind != "text":
            raise _unknown(place, kind, ("text",))
        texts.append(_text_of(place, block))
    return _content(texts)


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text without a mark as it is, otherwise text parts."""
    is_bare = len(parts) == 1 and parts[0]["type"] == "text" and "cache_control" not in parts[0]
    return parts[0]["text"] if is_bare else parts


def _text_of(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    _only(where, block, {"type", "text", "cache_control", "citations"})
    if block.get("citations"):
        raise unsupported(f"{where}.citations")
    return {"type": "text", "text": string_member(where, block, "text"), **_mark(block)}


def _image(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """The picture of a block as a part of a chat message; it is read here, so that errors name the block."""
    _only(where, block, {"type", "source", "cache_control"})
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidRequest(f"{where}.source must be an object, got {shown(source)}.", param=f"{where}.source")
    where = f"{where}.source"
    kind = _kind(where, source)
    if kind == "base64":
        check_members(where, source, {"type", "media_type", "data"})
        url = f"data:{source.get('media_type', 'image/*')};base64,{string_member(where, source, 'data')}"
        image_of_url(url, where)
        return {"type": "image_url", "image_url": {"url": url}, **_mark(block)}
    if kind == "file":
        check_members(where, source, {"type", "file_id"})
        file_id = string_member(where, source, "file_id")
        file_part(file_id, where)
        return {"type": "image_file", "image_file": {"file_id": file_id}, **_mark(block)}
    if kind == "url":
        raise UnsupportedFeature(
            f"{where} is a URL, which isn't fetched; send the image itself (base64), or upload it and name its "
            "file_id.",
            param=f"{where}.type",
        )
    raise _unknown(where, kind, ("base64", "file"))


def _mark(block: Mapping[str, Any]) -> dict[str, Any]:
    """A checked block's mark, as chat messages and their parts have it."""
    mark = block.get("cache_control")
    return {} if mark is None else {"cache_control": _without_scope(mark)}


def mark_of(value: Any, param: str) -> dict[str, Any]:
    """Return a ``cache_control`` as chat messages have it: without ``scope``, who shares a cached prefix.

    Raises:
        InvalidRequest: It has another form.
    """
    has_scope = isinstance(value, dict) and isinstance(value.get("scope"), str | None)
    mark = _without_scope(value) if has_scope else value
    seconds_of(mark, param)
    return dict(mark)


def _without_scope(mark: Mapping[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in mark.items() if name != "scope"}


def _kind(where: str, block: Any) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise InvalidRequest(f"{where} must be an object with a type, got {shown(block)}.", param=where)
    return str(block["type"])


def _unknown(where: str, kind: str, known: Iterable[str]) -> InvalidRequest:
    return UnsupportedFeature(
        f"{where} has the type {shown(kind)}; supported here are {', '.join(known)}.", param=f"{where}.type"
    )


def _only(where: str, value: Mapping[str, Any], known: set[str]) -> None:
    check_members(where, value, known)
    control = value.get("cache_control")
    if control is not None:
        mark_of(control, f"{where}.cache_control")
