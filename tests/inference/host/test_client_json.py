"""Texts of clients: what is refused before it is parsed, and that nothing holds the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import InvalidRequest, RequestTooLarge
from inference.host import client_json
from inference.host.client_json import INLINE_BYTES, MAX_DEPTH, MAX_VALUES, parse_json, read_json


def num_values(value: Any) -> int:
    """Values of ``value``; a text counts as three, a name as eight."""
    if isinstance(value, dict):
        return 1 + sum(8 + num_values(item) for item in value.values())
    if isinstance(value, list):
        return 1 + sum(map(num_values, value))
    return 3 if isinstance(value, str) else 1


def depth(value: Any) -> int:
    """Levels of lists and objects of ``value``."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


TEXTS = st.text(st.sampled_from('\\"[]{},:ab\n'), max_size=30)
JSON = st.recursive(
    st.none() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(value=JSON, step=st.integers(1, 40))
def test_names_values_and_levels_are_counted_outside_of_texts(value, step):
    text = orjson.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_json, "_STEP_BYTES", step)
        # Every bracket and every separator counts, which is at least the values, and at most twice those.
        patch.setattr(client_json, "MAX_VALUES", 2 * num_values(value))
        patch.setattr(client_json, "MAX_DEPTH", depth(value))
        client_json._check_size(text)
        patch.setattr(client_json, "MAX_DEPTH", depth(value) - 1)
        if depth(value):
            with pytest.raises(InvalidRequest, match="levels"):
                client_json._check_size(text)
        patch.setattr(client_json, "MAX_VALUES", num_values(value) - 3)
        patch.setattr(client_json, "MAX_DEPTH", 99)
        if num_values(value) > 3:
            with pytest.raises(RequestTooLarge):
                client_json._check_size(text)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * MAX_VALUES + b"[]]",
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"{" + b'"a":1,' * MAX_VALUES + b'"b":1}',
        b'["\\\\",' + b"1," * MAX_VALUES + b"1]",  # a text that ends with a backslash
        b'["' + b"a" * (1 << 16) + b'",' + b"1," * MAX_VALUES + b"1]",
    ],
    ids=["lists", "numbers", "names", "escape", "behind a long text"],
)
def test_too_many_values_are_refused(text):
    with pytest.raises(RequestTooLarge, match=f"{MAX_VALUES:,}"):
        parse_json(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)])
def test_too_many_levels_are_refused(text):
    with pytest.raises(InvalidRequest, match=f"{MAX_DEPTH} levels"):
        parse_json(text)


def test_what_a_text_holds_counts_for_nothing():
    words = '[{",:' * MAX_VALUES + '\\"'
    assert parse_json(orjson.dumps([words])) == [words]
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert len(parse_json(b"[" + b"1," * (MAX_VALUES - 2) + b"1]")) == MAX_VALUES - 1


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"NaN", b"1e999", b'"\\ud800"', b'"\xff"', b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"9" * 5000],
)
def test_no_json(text):
    with pytest.raises(InvalidRequest, match="isn't valid JSON"):
        parse_json(text)


def test_the_collector_works_again_after_a_large_text():
    parse_json(b"[" + b" " * INLINE_BYTES + b"]")
    assert gc.isenabled()
    with pytest.raises(InvalidRequest):
        parse_json(b" " * (INLINE_BYTES + 1))
    assert gc.isenabled()


async def test_large_texts_are_read_in_one_thread():
    def thread(value: Any) -> tuple[Any, int]:
        return value, threading.get_ident()

    small = await read_json(b"[1]", thread)
    assert small == ([1], threading.get_ident())
    large = b" " * INLINE_BYTES + b"[1]"
    found = await asyncio.gather(*(read_json(large, thread) for _ in range(4)))
    assert {value[0][0] for value in found} == {1}
    assert len({ident for _, ident in found} | {threading.get_ident()}) == 2
    with pytest.raises(InvalidRequest, match="wrong"):
        await read_json(large, _refuse)


def _refuse(value: Any) -> None:
    raise InvalidRequest("wrong")


async def test_the_worst_text_of_all_is_refused_within_a_moment_of_processor_time():
    text = b"[" + b"[]," * (9 << 20) + b"[]]"
    started = time.thread_time()
    with pytest.raises(RequestTooLarge):
        parse_json(text)
    assert time.thread_time() - started < 0.5  # 3.7 s to parse it
