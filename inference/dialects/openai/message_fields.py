"""Validate the messages of a chat request: roles, contents and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.fields import RequestField
from inference.errors import InvalidRequest, shown
from inference.text.images.parts import is_client_image, read_client_image
from inference.values.cache_control import TTL_SECONDS, seconds_of

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")

# Clients copy these members from an earlier response into the next request; empty ones have no meaning.
_EMPTY_MESSAGE_MEMBERS = frozenset({"refusal", "audio", "function_call", "annotations"})
_FUNCTION_MEMBERS = frozenset({"name", "arguments"})


def checked_mark(where: str, value: Any) -> dict[str, Any]:
    """Return a ``cache_control``.

    Raises:
        ValidationError: It has another form.
    """
    try:
        seconds_of(value, "cache_control")
    except InvalidRequest as error:
        raise serializers.ValidationError(f"{where}: {error.message}") from None
    return dict(value)


@extend_schema_field(
    {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_MESSAGES,
        "items": {
            "type": "object",
            "required": ["role"],
            "properties": {
                "role": {"type": "string", "enum": list(ROLES)},
                "content": {
                    "oneOf": [
                        {"type": "string"},
                        {
                            "type": "array",
                            "maxItems": MAX_CONTENT_PARTS,
                            "items": {
                                "type": "object",
                                "required": ["type"],
                                "properties": {
                                    "type": {"type": "string", "enum": ["text", "image_url", "image_file"]},
                                    "text": {"type": "string"},
                                    "image_url": {
                                        "type": "object",
                                        "properties": {
                                            "url": {"type": "string", "description": "data:image/...;base64,..."},
                                            "file_id": {"type": "string"},
                                            "detail": {"type": "string", "enum": ["auto", "high"]},
                                        },
                                    },
                                    "image_file": {"type": "object", "properties": {"file_id": {"type": "string"}}},
                                    "cache_control": {"type": "object"},
                                },
                                "additionalProperties": False,
                            },
                        },
                    ],
                    "nullable": True,
                },
                "name": {"type": "string"},
                "reasoning_content": {"type": "string"},
                "tool_calls": {
                    "type": "array",
                    "maxItems": MAX_CONTENT_PARTS,
                    "items": {
                        "type": "object",
                        "required": ["id", "function"],
                        "properties": {
                            "id": {"type": "string"},
                            "type": {"type": "string", "enum": ["function"]},
                            "function": {
                                "type": "object",
                                "required": ["name", "arguments"],
                                "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
                            },
                        },
                    },
                },
                "tool_call_id": {"type": "string"},
                "cache_control": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string", "enum": ["ephemeral"]},
                        "ttl": {"type": "string", "enum": list(TTL_SECONDS)},
                    },
                },
            },
        },
    }
)
class MessagesField(RequestField):
    """A conversation. The role ``developer`` becomes ``system``, because templates know only the older name."""

    def to_internal_value(self, data: Any) -> list[dict[str, Any]]:
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("must be a list with at least one message.")
        if len(data) > MAX_MESSAGES:
            raise serializers.ValidationError(f"has {len(data)} messages, at most {MAX_MESSAGES} are allowed.")
        return [self._message(number, item) for number, item in enumerate(data)]

    def _message(self, number: int, item: Any) -> dict[str, Any]:
        where = f"message {number}"
        if not isinstance(item, dict):
            raise serializers.ValidationError(f"{where} must be an object, got {shown(item)}.")
        role = item.get("role")
        if role not in ROLES:
            raise serializers.ValidationError(f"{where} has the role {shown(role)}; known are {', '.join(ROLES)}.")
        message: dict[str, Any] = {"role": "system" if role == "developer" else role}
        for name, value in item.items():
            if name == "role":
                continue
            if name == "content":
                message["content"] = self._content(where, value, number if role == "user" else None)
            elif name in ("name", "tool_call_id"):
                if value is None:
                    continue
                if not isinstance(value, str):
                    raise serializers.ValidationError(f"{where}: {name} must be a string, got {shown(value)}.")
                message[name] = value
            elif name == "tool_calls":
                if value:
                    if role != "assistant":
                        raise serializers.ValidationError(f"{where}: tool_calls belong to the role assistant.")
                    message["tool_calls"] = self._tool_calls(where, value)
            elif name in ("reasoning_content", "reasoning"):
                if not value:
                    continue
                if role != "assistant" or not isinstance(value, str):
                    raise serializers.ValidationError(f"{where}: {name} is a string of the role assistant.")
                message["reasoning_content"] = value
            elif name == "cache_control":
                if value is not None:
                    message[name] = checked_mark(where, value)
            elif name == "copilot_cache_control":  # a hint of Copilot for its own service
                if value is not None:
                    checked_mark(where, value)
            elif name in _EMPTY_MESSAGE_MEMBERS:
                if value:
                    raise serializers.ValidationError(f"{where}: {name} is not supported; remove it.")
            else:
                raise serializers.ValidationError(f"{where} has the unknown member {name[:80]!r}; remove it.")
        if message.get("content") is None:
            if "tool_calls" not in message and "reasoning_content" not in message:
                raise serializers.ValidationError(f"{where} has no content.")
            message["content"] = ""
        if role == "tool" and "tool_call_id" not in message:
            raise serializers.ValidationError(f"{where} needs tool_call_id, the id of the call that it answers.")
        return message

    @staticmethod
    def _content(where: str, value: Any, images_of: int | None) -> str | list[dict[str, Any]] | None:
        """The checked content; ``images_of``: number of a message that may have pictures."""
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list) or len(value) > MAX_CONTENT_PARTS:
            raise serializers.ValidationError(
                f"{where}: content must be a string or a list of at most {MAX_CONTENT_PARTS} parts."
            )
        parts: list[dict[str, Any]] = []
        for place, part in enumerate(value):
            if is_client_image(part):
                if images_of is None:
                    raise serializers.ValidationError(f"{where}: images belong to the role user.")
                if part.get("cache_control") is not None:
                    checked_mark(where, part["cache_control"])
                image = read_client_image(_without_media_type(part), f"messages.{images_of}.content.{place}")
                parts.append(dict(image))
                continue
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text":
                raise serializers.ValidationError(
                    f"{where}: content parts of type {shown(kind)} are not supported, only 'text', 'image_url' and "
                    "'image_file'."
                )
            if set(part) - {"cache_control"} != {"type", "text"} or not isinstance(part["text"], str):
                raise serializers.ValidationError(
                    f"{where}: a text part has the members type, text (a string) and perhaps cache_control."
                )
            mark = part.get("cache_control")
            marked = {} if mark is None else {"cache_control": checked_mark(where, mark)}
            parts.append({"type": "text", "text": part["text"], **marked})
        return parts

    @staticmethod
    def _tool_calls(where: str, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list) or len(value) > MAX_CONTENT_PARTS:
            raise serializers.ValidationError(
                f"{where}: tool_calls must be a list of at most {MAX_CONTENT_PARTS} objects."
            )
        calls: list[dict[str, Any]] = []
        for call in value:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict) or call.get("type", "function") != "function":
                raise serializers.ValidationError(
                    f"{where}: a tool call is an object of id, type ('function') and function, got {shown(call)}."
                )
            # Clients that assemble a stream keep the index of the deltas in the call.
            for name in (*(call.keys() - {"id", "type", "function", "index"}), *(function.keys() - _FUNCTION_MEMBERS)):
                raise serializers.ValidationError(f"{where}: a tool call has the unknown member {name[:80]!r}.")
            texts = {"id": call.get("id"), "function.name": function.get("name")}
            texts["function.arguments"] = function.get("arguments")
            for name, text in texts.items():
                if not isinstance(text, str):
                    raise serializers.ValidationError(
                        f"{where}: {name} of a tool call must be a string, got {shown(text)}."
                    )
            kept = {"name": function["name"], "arguments": function["arguments"]}
            calls.append({"id": call["id"], "type": "function", "function": kept})
        return calls


def _without_media_type(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an ``image_url`` part without the media type that Copilot adds, which the data URL has too."""
    image = part.get("image_url")
    if not isinstance(image, Mapping) or not isinstance(image.get("media_type"), str):
        return part
    return {**part, "image_url": {name: value for name, value in image.items() if name != "media_type"}}
