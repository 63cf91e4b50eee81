"""One call on its way out, and the parts that calls of all formats are read with."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from inference.text.tool_calls.events import OutputEvent, ToolCallDelta, ToolCallEnd, ToolCallStart
from inference.text.tool_calls.json_reader import MAX_NAME_CHARS, BadJSON, read_string, read_value
from inference.text.tool_calls.source import Reader, Source, find_first, held_length
from inference.values.output_format import OutputFormat

_ARGUMENTS = ("arguments", "parameters", "args")
_BARE_MEMBERS = frozenset({"name", "type", "id", *_ARGUMENTS})
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


class Call:
    """One call on its way out: held back until its name is known and its arguments have begun."""

    def __init__(
        self, name: str | None, start: Callable[[str], int | None], emit: Callable[[OutputEvent], None]
    ) -> None:
        self.name = name
        self.is_started = False
        self.has_arguments = False
        self._start = start
        self._emit = emit
        self._index: int | None = None
        self._held: list[str] = []
        self._has_begun = False

    def add(self, text: str) -> None:
        if self.is_started:
            if self._index is not None:
                self._emit(ToolCallDelta(self._index, text))
        else:
            self._held.append(text)

    def mark_begun(self) -> None:
        """The arguments have begun like JSON."""
        self._has_begun = True
        self.start_if_ready()

    def start_if_ready(self) -> None:
        """Emit what was held back, if all is known."""
        if self.is_started or not self._has_begun or self.name is None:
            return
        self.is_started = True
        self._index = self._start(self.name)
        held = "".join(self._held)
        self._held.clear()
        if held:
            self.add(held)

    def end(self) -> None:
        if not self.is_started:
            if not self._held:
                self._held.append("{}")
            self.mark_begun()
        if self._index is not None:
            self._emit(ToolCallEnd(self._index))


class CallParts:
    """What the readers of one text have in common.

    Args:
        output: The format, and the names that a call without a mark may have.
    """

    def __init__(
        self,
        source: Source,
        output: OutputFormat,
        emit_content: Callable[[str], None],
        emit: Callable[[OutputEvent], None],
        make_id: Callable[[], str],
    ) -> None:
        self.source = source
        self.output = output
        self._emit_content = emit_content
        self._emit = emit
        self._make_id = make_id
        self._open: Call | None = None
        self.num_calls = 0

    def call(self, name: str | None = None) -> Call:
        """A call that is about to be read; ``attempt`` ends it."""
        self._open = call = Call(name, self._start, self._emit)
        return call

    def _start(self, name: str) -> int | None:
        """Number of a call that begins; None: it is left out."""
        self.source.release()  # it can't become content any more
        index = self.num_calls
        if index and not self.output.parallel:
            return None
        self.num_calls += 1
        self._emit(ToolCallStart(index, self._make_id(), name))
        return index

    def attempt(self, body: Reader[Call], ends: tuple[str, ...]) -> Reader[bool]:
        """Read one call. If it can't be read and hasn't started, everything since the mark becomes content."""
        try:
            call = yield from body
        except BadJSON:
            failed = self._open
            if failed is None or not (failed.is_started or (failed.name is not None and failed.has_arguments)):
                self.give_up()
                return False
            call = failed
            if call.has_arguments:
                self.source.rewind()  # what stands between the arguments and here is no part of the call
            else:
                yield from self._read_rest(call, ends)
        call.end()
        self._open = None
        self.source.release()
        return True

    def give_up(self) -> None:
        """Everything since the mark is content."""
        self._open = None
        text = self.source.marked()
        self.source.release()
        self._emit_content(text)

    def _read_rest(self, call: Call, ends: tuple[str, ...]) -> Reader[None]:
        """Arguments that are no JSON: as they are, up to the call's end."""
        source = self.source
        while True:
            text, begin = source.text, source.pos
            found, _ = find_first(text, ends, begin)
            if found >= 0:
                stop = found
            elif source.is_final:
                stop = len(text)
            else:
                stop = len(text) - held_length(text, ends, begin)
            if stop > begin:
                call.add(text[begin:stop])
            source.pos = stop
            if found >= 0 or source.is_final:
                return
            yield

    def read_object(self, call: Call, names: Collection[str] | None = None) -> Reader[Call]:
        """``{"name": …, "arguments": {…}}``, members in any order; with ``names`` nothing else is a call."""
        source = self.source
        if (yield from source.skip_space()) != "{":
            raise BadJSON
        source.pos += 1
        while True:
            yield from source.skip_space()
            key = yield from self._read_text(MAX_NAME_CHARS)
            if (yield from source.skip_space()) != ":":
                raise BadJSON
            source.pos += 1
            yield from source.skip_space()
            if key == "name" and call.name is None:
                name = yield from self._read_text(MAX_NAME_CHARS)
                if not name or (names is not None and name not in names):
                    raise BadJSON
                call.name = name
                call.start_if_ready()
            elif key in _ARGUMENTS and not call.has_arguments:
                yield from self.read_arguments(call)
            elif names is not None and key not in _BARE_MEMBERS:
                raise BadJSON
            else:
                yield from read_value(source, _ignore)
            char = yield from source.skip_space()
            source.pos += char in (",", "}")
            if char == "}":
                break
            if char != ",":
                raise BadJSON
        if call.name is None:
            raise BadJSON
        return call

    def read_arguments(self, call: Call) -> Reader[None]:
        """An object; or a string that holds one; or null."""
        char = yield from self.source.skip_space()
        if char == "{":
            yield from read_value(self.source, call.add, call.mark_begun)
        elif char == '"':
            call.add((yield from self._read_text(None)))
        elif (yield from self.source.take("null")):
            call.add("{}")
        else:
            raise BadJSON
        call.has_arguments = True
        call.mark_begun()
        if call.is_started:
            self.source.mark()

    def _read_text(self, max_chars: int | None) -> Reader[str]:
        parts: list[str] = []
        yield from read_string(self.source, parts.append, max_chars=max_chars)
        value: str = json.loads("".join(parts))
        return value

    def read_name(self, stop: str = "") -> Reader[str]:
        """A bare name; it ends before the first character that can't be in one."""
        source = self.source
        name = ""
        while True:
            char = yield from source.peek()
            if char == "" or char not in _NAME_CHARS or char == stop:
                break
            name += char
            source.pos += 1
            if len(name) > MAX_NAME_CHARS:
                raise BadJSON
        if not name:
            raise BadJSON
        return name

    def read_until(self, word: str) -> Reader[str]:
        """All text before ``word``, however long; the source then stands behind ``word``."""
        source = self.source
        parts: list[str] = []
        while True:
            text, begin = source.text, source.pos
            found = text.find(word, begin)
            stop = found if found >= 0 else len(text) - held_length(text, (word,), begin)
            parts.append(text[begin:stop])
            source.pos = stop
            if found >= 0:
                source.pos += len(word)
                return "".join(parts)
            if source.is_final:
                source.pos = len(text)
                raise BadJSON
            yield

    def read_up_to(self, word: str) -> Reader[str]:
        """Text before ``word``, without space around it; the source then stands behind ``word``."""
        source = self.source
        name_chars = ""
        while not (yield from source.take(word)):
            char = yield from source.peek()
            if char == "" or len(name_chars) >= MAX_NAME_CHARS:
                raise BadJSON
            name_chars += char
            source.pos += 1
        name = name_chars.strip()
        if not name:
            raise BadJSON
        return name


def _ignore(text: str) -> None:
    """For members of a call that mean nothing here (an id, a type)."""
