"""ChatTemplate: messages to a prompt, through the checkpoint's own Jinja template.

The template runs in a sandboxed child process. The messages are a user's: a control token written in
them must stay text. Before rendering, each one is put between two marker characters that occur nowhere
else; afterwards the text is cut at the markers, and what stood between them is encoded without control tokens.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from inference.errors import InvalidChatTemplate, InvalidRequest, PromptTooLong, RequestTooLarge, UnsupportedFeature
from inference.host.client_json import INLINE_BYTES, parse_json
from inference.text.images.writing import with_images, with_text_content
from inference.text.tokenisation.control_tokens import ControlTokens
from inference.text.tokenisation.sandbox import Sandbox, SandboxFailure
from inference.text.tokenisation.text import check_text
from inference.values.cache_control import CacheMark, without_marks
from inference.values.images import IMAGE_PART, ImagePrompt, bare_images, images_of, is_image
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS

MAX_MESSAGES = 20_000
MAX_CHARS_PER_TOKEN = 32
"""A rendered conversation with more characters per token of context can't fit into the context."""
MAX_DEPTH = 64
RENDER_CPU_S = 0.5
RENDER_MEMORY_BYTES = 96 << 20
_RESERVED = frozenset({"messages", "add_generation_prompt", "chat_template", "continue_final_message"})
_MARKERS = range(0xF0000, 0xFFFFE)  # a private plane of Unicode

Piece = tuple[str, bool]
"""Text, and whether control tokens in it count."""


class ChatTemplate:
    """One checkpoint's template. Thread-safe; its child starts with the first use.

    Args:
        special_tokens: ``bos_token`` and so on, as the template may name them.
        control_tokens: Texts that become control tokens when a rendered prompt is encoded.
        max_model_len: The model's context; a prompt that is rendered has at most ``MAX_CHARS_PER_TOKEN`` times that.
    """

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], control_tokens: Iterable[str], max_model_len: int
    ) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._control = ControlTokens(control_tokens)
        self._max_model_len = max_model_len
        self._max_chars = MAX_CHARS_PER_TOKEN * max_model_len
        self._sandbox = Sandbox(
            "template",
            memory_bytes=RENDER_MEMORY_BYTES,
            first_call={"source": source},
            first_cpu_s=RENDER_CPU_S,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        images: ImagePrompt | None = None,
    ) -> list[Piece]:
        """The prompt, as pieces to encode one after the other, with one placeholder for each picture.

        Marks (``inference.values.cache_control``) are left out: templates don't see them.

        Args:
            messages: OpenAI's shape; lists of text parts are joined.
            add_generation_prompt: End with the beginning of an answer.
            continue_final_message: End inside the last message, so that the model goes on with it.
            template_kwargs: ``tools``, ``documents``, ``enable_thinking`` …, as the template knows them.
            images: How the model's pictures are written; None: it reads text only.

        Raises:
            InvalidChatTemplate: The template refuses the messages, is broken, or breaks its limits.
            PromptTooLong: The messages have more characters than the context can hold.
            InvalidRequest: The messages aren't messages.
            UnsupportedFeature: A content part that isn't text, or a picture's.
        """
        self._check_options(continue_final_message, add_generation_prompt)
        num_images = 0 if images is None else len(images_of(messages))
        if num_images:
            messages = bare_images(messages)
        values: dict[str, Any] = {"messages": read_messages(messages), **read_kwargs(template_kwargs or {})}
        start, end, cut, place = self._free_markers(values, 4)
        if images is not None and not images.printed:
            values["messages"] = with_text_content(values["messages"], place, images.numbered)
        if self._control:
            values = _map_strings(values, lambda text: self._marked(text, start, end))
        if continue_final_message:
            last = values["messages"][-1]
            if not isinstance(last.get("content"), str):
                raise InvalidRequest("the last message has no text to continue.", param="messages")
            last["content"] += cut
        try:
            text = self._render({**self._special_tokens, **values, "add_generation_prompt": add_generation_prompt})
        except InvalidChatTemplate as error:
            # A template may leave text out, so only a failure shows that the messages were too long for it.
            num_chars = sum(map(len, _strings(values["messages"], with_names=False)))
            if num_chars > self._max_chars:
                raise PromptTooLong.of_chars(self._max_model_len, num_chars, noun="messages") from error
            raise
        if continue_final_message:
            text, found, _ = text.rpartition(cut)
            if not found:
                raise InvalidChatTemplate(
                    "the chat template does not print the last message, so it can't be continued.",
                    param="continue_final_message",
                )
            text = text.replace(cut, "")
        pieces = self._split(text, start, end)
        return pieces if images is None or not num_images else with_images(pieces, images, place, num_images)

    def _check_options(self, continue_final_message: bool, add_generation_prompt: bool) -> None:
        if len(self._source) > MAX_TEMPLATE_CHARS:
            raise InvalidChatTemplate(
                f"the checkpoint's chat template has {len(self._source)} characters, more than {MAX_TEMPLATE_CHARS}.",
                param="messages",
            )
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other; set one of them to false.",
                param="continue_final_message",
            )

    def render_until(
        self, messages: Sequence[Mapping[str, Any]], marks: Sequence[CacheMark], **options: Any
    ) -> list[tuple[CacheMark, list[Piece]]]:
        """Return the part of the prompt before each mark that the template prints.

        The conversation is rendered once more with a character of its own at each mark. A template may treat a text
        with such a character otherwise, so a part may differ from the prompt's beginning: compare them.

        Args:
            messages, options: As ``render`` takes them.
        """
        messages = bare_images(messages)
        places = self._free_markers({"messages": messages, "options": options}, len(marks))
        pieces = self.render(_with_places(messages, marks, places), **options)
        others = str.maketrans("", "", "".join(places))
        found: list[tuple[CacheMark, list[Piece]]] = []
        for mark, place in zip(marks, places, strict=True):
            number = next((number for number, (text, _) in enumerate(pieces) if place in text), None)
            if number is not None:
                text, counts = pieces[number]
                before = [*pieces[:number], (text.partition(place)[0], counts)]
                found.append((mark, _joined((text.translate(others), counts) for text, counts in before)))
        return found

    def warm_up(self) -> None:
        """Start the child now, so that the first request need not wait for it.

        Raises:
            InvalidChatTemplate: The template can't be compiled.
        """
        self._call({"source": self._source})

    def find_problems(self) -> list[tuple[str, int, str]]:
        """Return what the sandbox refuses in the template and what nothing gives it: level, line, sentence.

        Raises:
            InvalidChatTemplate: The template can't be compiled.
        """
        reply = self._call({"special_tokens": list(self._special_tokens)})
        return [(level, line, text) for level, line, text in reply["problems"]]

    def close(self) -> None:
        self._sandbox.close()

    def _render(self, variables: Mapping[str, Any]) -> str:
        # Markers add at most two characters to each control token, which is never shorter than one.
        reply = self._call({"variables": variables, "max_chars": 3 * self._max_chars})
        text: str = reply["text"]
        if len(text) > self._max_chars:
            raise PromptTooLong.of_chars(self._max_model_len, len(text), noun="messages")
        return check_text(text, "messages")

    def _call(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._sandbox.call(payload, cpu_s=RENDER_CPU_S, max_reply_bytes=1024 + 36 * self._max_chars)
        except SandboxFailure as failure:
            raise InvalidChatTemplate(f"the chat template failed: {failure.reason()}.", param="messages") from None

    def _free_markers(self, values: Mapping[str, Any], count: int) -> list[str]:
        """Characters that neither the request nor the template has."""
        taken = set(self._source).union(*_strings(values), *self._special_tokens.values())
        free = (chr(code) for code in _MARKERS if chr(code) not in taken)
        return list(itertools.islice(free, count))

    def _marked(self, text: str, start: str, end: str) -> str:
        """The text with each control token in it between the two marks."""
        parts = self._control.split(text)
        return "".join(start + part + end if number % 2 else part for number, part in enumerate(parts))

    def _split(self, text: str, start: str, end: str) -> list[Piece]:
        """Cut at the markers. A template may have cut a string and lost one of a pair; one is enough."""
        pieces: list[Piece] = []
        position = 0
        for found in re.finditer(f"[{start}{end}]", text) if self._control else ():
            at = found.start()
            if at < position:  # the mark after a token that was taken with the mark before it
                continue
            before, length = 0, 0
            if found[0] == start:
                length = self._control.match(text, at + 1)
            else:
                before = self._control.match_before(text, position, at)
            pieces.append((text[position : at - before], True))
            pieces.append((text[at - before : at] + text[at + 1 : at + 1 + length], False))
            position = at + 1 + length
            if length and text[position : position + 1] == end:
                position += 1
        pieces.append((text[position:], True))
        return _joined(pieces)


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checked copies of a conversation's messages, content parts joined, tool arguments as objects.

    Raises:
        InvalidRequest: Not a list of messages with a role and a content.
        UnsupportedFeature: A content part that isn't text.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"{len(messages)} messages, at most {MAX_MESSAGES} are read.", param="messages")
    return [_read_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _with_places(
    messages: Sequence[Mapping[str, Any]], marks: Sequence[CacheMark], places: Sequence[str]
) -> list[dict[str, Any]]:
    """Copies of messages with a character at each mark, before white space at a text's end, which templates strip."""
    found = [dict(message) for message in without_marks(messages)]
    # The last first, so that the numbers of parts before an added one stay.
    for mark, place in reversed(list(zip(marks, places, strict=True))):
        message = found[mark.message]
        content = message.get("content") or ""
        if isinstance(content, str):
            message["content"] = place + content if mark.part == -1 else _before_space(content, place)
            continue
        number = len(content) - 1 if mark.part is None else max(mark.part, 0)
        if is_image(content[number]):
            number += mark.part != -1
            message["content"] = [*content[:number], place, *content[number:]]
            continue
        text = content[number] if isinstance(content[number], str) else content[number]["text"]
        marked = place + text if mark.part == -1 else _before_space(text, place)
        message["content"] = [*content[:number], marked, *content[number + 1 :]]
    return found


def _before_space(text: str, place: str) -> str:
    bare = text.rstrip()
    return bare + place + text[len(bare) :]


def _read_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object.", param=where)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise InvalidRequest(f"{where}.role must be a non-empty string.", param=f"{where}.role")
    checked: dict[str, Any] = _check_value(
        {name: value for name, value in message.items() if name != "cache_control"}, where
    )
    content = checked.get("content")
    if isinstance(content, list):
        parts = [_read_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        checked["content"] = _joined_texts(parts)
    elif content is None:
        if not checked.get("tool_calls"):
            raise InvalidRequest(f"{where} has no content.", param=f"{where}.content")
        checked["content"] = ""
    elif not isinstance(content, str):
        raise InvalidRequest(f"{where}.content must be a string or a list of parts.", param=f"{where}.content")
    calls = checked.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}.tool_calls must be a list.", param=f"{where}.tool_calls")
    for call in calls:
        _parse_arguments(call)
    return checked


def _joined_texts(parts: list[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text of several; parts in the form that templates take if one is a picture."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def _read_part(part: Any, where: str) -> str | dict[str, Any]:
    if isinstance(part, str):
        return part
    if is_image(part) and set(part) == {"type"}:
        return {"type": IMAGE_PART}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise UnsupportedFeature(
            f"{where} is of type {str(kind)[:40]!r}; this model reads text parts only.", param=where
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text must be a string.", param=where)
    return text


def _parse_arguments(call: Any) -> None:
    """OpenAI sends a call's arguments as JSON text; templates are written for objects."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        text = function["arguments"]
        try:
            # The standard library reads integers of any length, and holds Python's lock for a second with large texts.
            arguments = json.loads(text) if len(text) <= INLINE_BYTES else parse_json(text.encode())
        except (ValueError, RecursionError, InvalidRequest, RequestTooLarge):
            return
        if isinstance(arguments, dict):
            function["arguments"] = _check_value(arguments, "messages")


def read_kwargs(template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Checked copies of the values that a request gives its template.

    Raises:
        InvalidRequest: A name that is not an identifier, or that is set elsewhere.
    """
    checked: dict[str, Any] = {"tools": None, "documents": None}
    for name, value in template_kwargs.items():
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_") or name in _RESERVED:
            raise InvalidRequest(
                f"{str(name)[:40]!r} can't be given to the chat template.", param="chat_template_kwargs"
            )
        checked[name] = _check_value(value, name)
    return checked


def _check_value(value: Any, where: str, depth: int = 0) -> Any:
    """A JSON value, copied; every string valid."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{where} nests more than {MAX_DEPTH} levels.", param=where)
    if isinstance(value, str):
        return check_text(value, where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not abs(value) < 1e300:  # NaN, infinities, and integers too long to write
            raise InvalidRequest(f"{where} has a number that is not finite or too large.", param=where)
        return value
    if isinstance(value, list | tuple):
        return [_check_value(item, where, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {check_text(key, where): _check_value(item, where, depth + 1) for key, item in value.items()}
    raise InvalidRequest(f"{where} has a value of type {type(value).__name__}, which is not JSON.", param=where)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy with every string changed, names of members too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return value


def _strings(value: Any, *, with_names: bool = True) -> Iterator[str]:
    """Yield every string of a JSON value, and the names of members ``with_names``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, with_names=with_names)
    elif isinstance(value, dict):
        if with_names:
            yield from value
        for item in value.values():
            yield from _strings(item, with_names=with_names)


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece[0]]
