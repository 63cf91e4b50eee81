"""OutputParser: a model's text, piece by piece, to reasoning, content and tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from inference.text.tool_calls.call_readers import CALL_STARTS, CallReaders
from inference.text.tool_calls.events import (
    ContentDelta,
    OutputEvent,
    ParsedMessage,
    ReasoningDelta,
)
from inference.text.tool_calls.source import Reader, Source, find_first, held_length
from inference.values.output_format import REASONING_TAGS, OutputFormat


def new_call_id() -> str:
    """An id as OpenAI writes it."""
    return f"call_{secrets.token_hex(12)}"


class OutputParser:
    """Reads the text of one choice; see the package.

    Args:
        output: The formats; None: everything is content.
        in_reasoning: The prompt ended inside a thinking section, so that the text begins in it.
    """

    def __init__(
        self, output: OutputFormat | None, *, in_reasoning: bool = False, make_id: Callable[[], str] = new_call_id
    ) -> None:
        self._output = output or OutputFormat()
        self._in_reasoning = in_reasoning
        self._source = Source()
        self._events: list[OutputEvent] = []
        self._space = ""  # seen, and left out unless more content follows
        self._has_content = False
        self._calls = CallReaders(self._source, self._output, self._emit_content, self._events.append, make_id)
        self._starts = () if self._output.tools is None else CALL_STARTS[self._output.tools]
        self._reader = self._read()
        self._is_over = False

    @property
    def num_calls(self) -> int:
        return self._calls.num_calls

    def push(self, text: str) -> list[OutputEvent]:
        """Take more text; what is certain by now."""
        self._source.feed(text)
        return self._go_on()

    def finish(self) -> list[OutputEvent]:
        """End the text; whatever was held back."""
        self._source.is_final = True
        return self._go_on()

    def _go_on(self) -> list[OutputEvent]:
        if not self._is_over:
            try:
                next(self._reader)
            except StopIteration:
                self._is_over = True
        events = self._events[:]
        self._events.clear()  # the same list: the readers have it too
        return events

    def _read(self) -> Reader[None]:
        source, reasoning = self._source, self._output.reasoning
        if reasoning is not None:
            start, end = REASONING_TAGS[reasoning]
            is_open = self._in_reasoning
            if not is_open:
                yield from self._read_space()
                is_open = yield from source.take(start)
            if is_open:
                yield from self._read_reasoning(end)
                yield from source.skip_space()
        if self._output.tools == "llama3_json":
            yield from self._read_space()
            if (yield from source.peek()) == "{" and (yield from self._calls.read_bare()):
                yield from self._read_space()
        while (yield from self._read_content()):
            if (yield from self._calls.read()):
                yield from self._read_space()
        if self._space and not self.num_calls:
            self._events.append(ContentDelta(self._space))

    def _read_space(self) -> Reader[None]:
        source = self._source
        while True:
            char = yield from source.peek()
            if not char.isspace():
                return
            self._space += char
            source.pos += 1

    def _read_reasoning(self, end: str) -> Reader[None]:
        """The thinking section's text, up to its end mark or the end of all text."""
        source = self._source
        self._space = ""
        yield from source.skip_space()
        space = ""
        while True:
            text, begin = source.text, source.pos
            found = text.find(end, begin)
            if found >= 0:
                stop = found
            elif source.is_final:
                stop = len(text)
            else:
                stop = len(text) - held_length(text, (end,), begin)
            thought = space + text[begin:stop]
            shown = thought.rstrip()
            space = thought[len(shown) :]
            if shown and self._output.include_reasoning:
                self._events.append(ReasoningDelta(shown))
            source.pos = stop
            if found >= 0:
                source.pos += len(end)
                return
            if source.is_final:
                return
            yield

    def _read_content(self) -> Reader[bool]:
        """Text up to the mark of a call, which the source then stands at; False at the end of all text."""
        source, starts = self._source, self._starts
        while True:
            text, begin = source.text, source.pos
            found, _ = find_first(text, starts, begin)
            if found >= 0:
                stop = found
            elif source.is_final:
                stop = len(text)
            else:
                stop = len(text) - held_length(text, starts, begin)
            self._emit_content(text[begin:stop])
            source.pos = stop
            if found >= 0:
                return True
            if source.is_final:
                return False
            yield

    def _emit_content(self, text: str) -> None:
        """Emit content, but for space at its end: it is left out if nothing but calls follows."""
        text = self._space + text
        if self.num_calls and not self._has_content:
            text = text.lstrip()
        shown = text.rstrip() if self._starts else text
        self._space = text[len(shown) :]
        if shown:
            self._has_content = True
            self._events.append(ContentDelta(shown))


def parse_output(output: OutputFormat | None, text: str, *, in_reasoning: bool = False) -> ParsedMessage:
    parser = OutputParser(output, in_reasoning=in_reasoning)
    message = ParsedMessage()
    for event in [*parser.push(text), *parser.finish()]:
        message.add(event)
    return message
