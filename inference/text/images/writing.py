"""Write the pictures of a conversation into what a chat template reads, and into what it has printed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from inference.errors import InvalidChatTemplate
from inference.values.images import ImagePrompt, is_image


def with_text_content(messages: Sequence[dict[str, Any]], place: str, numbered: str) -> list[dict[str, Any]]:
    """Messages with texts in the place of parts, for templates that take nothing else.

    A picture is a line with the character ``place``, unless its message's text names it, as the model's users are used
    to: then it stands there.

    Args:
        messages: Checked, their content a text, or parts of text and bare pictures.
        place: A character that isn't in them.
        numbered: How a text names a picture, with ``{n}`` for its number in the conversation, from 1; empty: not.
    """
    numbers = itertools.count(1)
    return [
        message
        if isinstance(message["content"], str)
        else {**message, "content": _text(message, place, numbered, numbers)}
        for message in messages
    ]


def _text(message: dict[str, Any], place: str, numbered: str, numbers: Iterator[int]) -> str:
    lines = [place if is_image(part) else part["text"] for part in message["content"]]
    texts = [number for number, part in enumerate(message["content"]) if not is_image(part)]
    for number, part in enumerate(message["content"]):
        if not is_image(part):
            continue
        name = numbered.replace("{n}", str(next(numbers)))
        found = [at for at in texts if name and name in lines[at]]
        if found:
            lines[found[0]] = lines[found[0]].replace(name, place, 1)
            lines[number] = ""
    kept = [line for line, part in zip(lines, message["content"], strict=True) if line or not is_image(part)]
    return "\n".join(kept)


def with_images(
    pieces: Sequence[tuple[str, bool]], images: ImagePrompt, place: str, count: int
) -> list[tuple[str, bool]]:
    """The pieces of a prompt with the model's own text for each picture that the template printed.

    Args:
        pieces: Texts, and whether control tokens in them count: those that a user wrote don't.
        place: What stands for a picture if the template takes texts only.
        count: Pictures of the conversation.

    Raises:
        InvalidChatTemplate: The template prints more or fewer.
    """
    printed = images.printed or place
    written = images.before + images.placeholder + images.after
    found = sum(text.count(printed) for text, counts in pieces if counts)
    if found != count:
        raise InvalidChatTemplate(
            f"the chat template prints {found} of {count} images; put them where it expects them, into messages of "
            "the user.",
            param="messages",
        )
    return [(text.replace(printed, written) if counts else text, counts) for text, counts in pieces]
