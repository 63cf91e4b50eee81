"""Parse JSON that clients sent: strictly, with a limit of its values, and large texts of it outside of the event loop.

A parser holds Python's lock (the GIL) from its start to its end, so that no stream of the process continues meanwhile,
whatever thread it runs in. The values of a large text are therefore counted first, in short steps. What is left to the
parser then takes less than 50 ms (docs/decisions/0042-bodies.md).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson

from inference.errors import InvalidRequest, RequestTooLarge

T = TypeVar("T")

MAX_VALUES = 1 << 19
"""Most values of one text. What is slow to parse counts more: a string as three, a name in an object as eight."""
MAX_DEPTH = 128
"""Most levels of lists and objects; orjson writes up to 254 only, and values go on with some levels around them."""
INLINE_BYTES = 1 << 16
"""Texts up to this size are read by their caller: no content of them takes more than a few milliseconds."""
_STEP_BYTES = 1 << 16
_LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_LEVELS))

_reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="json")
"""One thread, so that large texts wait for each other: the event loop shares the lock with one thread, not several."""


async def read_json(text: bytes, read: Callable[[Any], T]) -> T:
    """Parse ``text`` and return what ``read`` makes of its value; in a thread if the text is large.

    Args:
        text: UTF-8.
        read: Validates the value; must not use the database or the event loop.

    Raises:
        InvalidRequest: The text isn't JSON, or ``read`` refuses it.
        RequestTooLarge: The text has more than ``MAX_VALUES`` values.
    """
    return await read_by_size(len(text), lambda: read(parse_json(text)))


async def read_by_size(num_bytes: int, read: Callable[[], T]) -> T:
    """Run ``read``, which reads ``num_bytes``; in the thread for large texts if they are many.

    Raises:
        BlazrError: As ``read``.
    """
    if num_bytes <= INLINE_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_reader, read)


def parse_json(text: bytes, *, noun: str = "The request") -> Any:
    """Return the value of ``text``, which errors call ``noun``.

    Unlike the standard library, orjson refuses NaN, numbers beyond a double, lone surrogates, and encodings other than
    UTF-8.

    Raises:
        InvalidRequest: The text isn't JSON, or has more than ``MAX_DEPTH`` levels.
        RequestTooLarge: The text has more than ``MAX_VALUES`` values.
    """
    is_large = len(text) > INLINE_BYTES
    if is_large or text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        _check_size(text, noun)
    collects = is_large and gc.isenabled()
    if collects:
        gc.disable()  # its rounds within a large text find nothing, and double the time
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{noun} isn't valid JSON: {error}.") from None
    finally:
        if collects:
            gc.enable()


def _check_size(text: bytes, noun: str = "The request") -> None:
    """Refuse too many values or levels, which a parser would read before the end of ``text`` or its first error.

    Each name is followed by a colon, and each value but the first by a comma or within a bracket, so outside of strings
    these characters are counted, and the quotes of strings.
    """
    num_values, num_quotes, depth, position, is_string = 0, 0, 0, 0, False
    while position < len(text):
        step = text[position : position + _STEP_BYTES]
        if (len(step) - len(step.rstrip(b"\\"))) % 2:  # ends within an escape
            step = text[position : position + _STEP_BYTES + 1]
        position += len(step)
        if b"\\" in step:
            step = step.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = step.split(b'"')
        plain = b"".join(parts[1 if is_string else 0 :: 2])
        if len(parts) % 2 == 0:
            is_string = not is_string
        brackets = plain.translate(None, _NO_BRACKETS)
        num_quotes += len(parts) - 1
        num_values += plain.count(b",") + 6 * plain.count(b":") + brackets.count(b"[") + brackets.count(b"{")
        if num_values + num_quotes > MAX_VALUES:
            raise RequestTooLarge(
                f"{noun} has more than {MAX_VALUES:,} JSON values, the limit (a string counts as three, a name as "
                "eight); split it."
            )
        depths = list(itertools.accumulate(map(_LEVELS.__getitem__, brackets), initial=depth))
        depth = depths[-1]
        if max(depths) > MAX_DEPTH:
            raise InvalidRequest(f"{noun} has JSON of more than {MAX_DEPTH} levels, the limit.")
