"""JSON values read while they arrive: RFC 8259, https://www.rfc-editor.org/rfc/rfc8259.

Python's ``json`` needs the whole text; a stream wants to pass arguments on before they end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from inference.text.tool_calls.source import Reader, Source

MAX_NAME_CHARS = 256
_SPACE = " \t\n\r"
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_HEX = frozenset("0123456789abcdefABCDEF")
_FIRST_OF_PAIR = re.compile("[dD][89abAB]")
_SECOND_OF_PAIR = re.compile("[dD][c-fC-F]")
_NO_TEXT = "\\ufffd"
_SCALAR_CHARS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MAX_SCALAR_CHARS = 400


class BadJSON(Exception):
    """The text can't become JSON any more."""


def read_string(source: Source, emit: Callable[[str], None], *, max_chars: int | None = None) -> Reader[None]:
    """Read a string with its quotes; ``emit`` gets it as JSON text with control characters escaped, no lone surrogate.

    Raises:
        BadJSON: It isn't one, is longer than ``max_chars``, or the text ends before it does.
    """
    if (yield from source.peek()) != '"':
        raise BadJSON
    source.pos += 1
    emit('"')
    length = 0
    while True:
        char = yield from source.peek()
        if char == "":
            raise BadJSON
        found = _PLAIN.match(source.text, source.pos)
        assert found is not None
        if found.end() > source.pos:
            emit(found[0])
            length += found.end() - source.pos
            source.pos = found.end()
        elif char == '"':
            source.pos += 1
            emit('"')
            return
        elif char == "\\":
            yield from _read_escape(source, emit)
            length += 1
        else:
            source.pos += 1
            emit(json.dumps(char)[1:-1])
            length += 1
        if max_chars is not None and length > max_chars:
            raise BadJSON


def _read_escape(source: Source, emit: Callable[[str], None]) -> Reader[None]:
    source.pos += 1
    char = yield from source.peek()
    if char == "u":
        source.pos += 1
        yield from _read_unit(source, emit)
    elif char != "" and char in '"\\/bfnrt':
        source.pos += 1
        emit("\\" + char)
    else:
        raise BadJSON


def _read_unit(source: Source, emit: Callable[[str], None]) -> Reader[None]:
    """A unit of UTF-16 behind its mark, with the one that it makes a pair with; half a pair is no text: U+FFFD."""
    digits = yield from _read_digits(source)
    while _FIRST_OF_PAIR.match(digits):
        following = (yield from _read_digits(source)) if (yield from source.take("\\u")) else ""
        if _SECOND_OF_PAIR.match(following):
            emit(f"\\u{digits}\\u{following}")
            return
        emit(_NO_TEXT)
        if not following:
            return
        digits = following
    emit(_NO_TEXT if _SECOND_OF_PAIR.match(digits) else f"\\u{digits}")


def _read_digits(source: Source) -> Reader[str]:
    digits = ""
    while len(digits) < 4:
        digit = yield from source.peek()
        if digit not in _HEX:
            raise BadJSON
        digits += digit
        source.pos += 1
    return digits


def _read_scalar(source: Source) -> Reader[str]:
    """A number, true, false or null; it ends before the first character that can't be part of one."""
    text = ""
    while True:
        char = yield from source.peek()
        if char == "" or char not in _SCALAR_CHARS:
            break
        text += char
        source.pos += 1
        if len(text) > _MAX_SCALAR_CHARS:
            raise BadJSON
    if _SCALAR.fullmatch(text) is None:
        raise BadJSON
    return text


def _read_space(source: Source, emit: Callable[[str], None]) -> Reader[str]:
    while True:
        char = yield from source.peek()
        if char == "" or char not in _SPACE:
            return char
        emit(char)
        source.pos += 1


def read_value(
    source: Source, emit: Callable[[str], None], mark_begun: Callable[[], None] = lambda: None
) -> Reader[None]:
    """Read one value of any kind; ``emit`` gets its text.

    Args:
        source: Stands at the value's first character.
        emit: Called with pieces, in order.
        mark_begun: Called (often) once an object's first member has a value that begins like one, or an array an item.

    Raises:
        BadJSON: At the first character that can't be right; what came before has been emitted.
    """
    closers: list[str] = []
    while True:
        char = yield from source.peek()
        if char == '"':
            if closers:
                mark_begun()
            yield from read_string(source, emit)
        elif char != "" and char in "{[":
            if closers:
                mark_begun()
            emit(char)
            source.pos += 1
            closers.append("}" if char == "{" else "]")
            following = yield from _read_space(source, emit)
            if following != closers[-1]:
                if char == "{":
                    yield from _read_key(source, emit)
                continue
        else:
            scalar = yield from _read_scalar(source)
            if closers:
                mark_begun()
            emit(scalar)
        # A value has ended, or an empty container is about to.
        while closers:
            following = yield from _read_space(source, emit)
            if following == closers[-1]:
                emit(following)
                source.pos += 1
                closers.pop()
            elif following == ",":
                emit(",")
                source.pos += 1
                yield from _read_space(source, emit)
                if closers[-1] == "}":
                    yield from _read_key(source, emit)
                break
            else:
                raise BadJSON
        if not closers:
            return


def _read_key(source: Source, emit: Callable[[str], None]) -> Reader[None]:
    yield from read_string(source, emit)
    if (yield from _read_space(source, emit)) != ":":
        raise BadJSON
    emit(":")
    source.pos += 1
    yield from _read_space(source, emit)
