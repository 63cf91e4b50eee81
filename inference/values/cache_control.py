"""Marks in a conversation up to which its state is to be kept: ``cache_control``, in Anthropic's form.

``{"type": "ephemeral", "ttl": "5m"}`` stands in a text part, or in a message for its end. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidRequest, shown

_NAME = "cache_control"
MAX_MARKS = 4
"""Marks of a request, as many as Anthropic's API takes."""
DEFAULT_TTL = "5m"
TTL_SECONDS = {"5m": 300, "1h": 3600}


@dataclass(frozen=True, slots=True)
class CacheMark:
    """A place in a conversation.

    Attributes:
        message: Number of the message.
        part: Number of the text part at whose end it stands; None: the end of the message's text. -1: its beginning.
        seconds: How long the state up to it is to be kept.
    """

    message: int
    part: int | None
    seconds: int


def seconds_of(value: Any, param: str) -> int:
    """Return how long a ``cache_control`` asks for.

    Raises:
        InvalidRequest: It has another form.
    """
    if not isinstance(value, Mapping) or value.get("type") != "ephemeral" or set(value) - {"type", "ttl"}:
        raise InvalidRequest(
            f"{param} is {shown(value)}, it must be {{'type': 'ephemeral'}}, perhaps with a ttl.", param=param
        )
    ttl = value.get("ttl", DEFAULT_TTL)
    if not isinstance(ttl, str) or ttl not in TTL_SECONDS:
        raise InvalidRequest(f"{param}.ttl is {shown(ttl)}, it must be {' or '.join(TTL_SECONDS)}.", param=param)
    return TTL_SECONDS[ttl]


def marks_of(messages: Sequence[Mapping[str, Any]], keep_tools_s: int | None = None) -> list[CacheMark]:
    """Return the marks of checked messages, in order.

    Args:
        keep_tools_s: Seconds of the mark before the first message that isn't the system's; None: there is none.
    """
    found: list[CacheMark] = []
    first = next((number for number, message in enumerate(messages) if message["role"] != "system"), None)
    for number, message in enumerate(messages):
        if number == first and keep_tools_s is not None:
            found.append(CacheMark(number, -1, keep_tools_s))
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Mapping) and part.get(_NAME) is not None:
                found.append(CacheMark(number, place, seconds_of(part[_NAME], "messages")))
        if message.get(_NAME) is not None:
            found.append(CacheMark(number, None, seconds_of(message[_NAME], "messages")))
    return found


def check_marks(messages: Sequence[Mapping[str, Any]], keep_tools_s: int | None = None) -> None:
    """Refuse more than ``MAX_MARKS`` marks.

    Raises:
        InvalidRequest: There are more.
    """
    found = marks_of(messages, keep_tools_s)
    if len(found) > MAX_MARKS:
        raise InvalidRequest(
            f"the request has {len(found)} cache_control marks, at most {MAX_MARKS} are taken; remove some.",
            param="messages",
        )


def without_marks(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of messages without their marks."""
    return [_without_mark(message) | _content_without_marks(message) for message in messages]


def _content_without_marks(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return {}
    return {"content": [_without_mark(part) if isinstance(part, Mapping) else part for part in content]}


def _without_mark(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name != _NAME}
