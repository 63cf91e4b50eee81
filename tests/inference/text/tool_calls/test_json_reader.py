"""JSON values read while they arrive, against Python's json."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tool_calls.json_reader import BadJSON, read_string, read_value
from inference.text.tool_calls.source import Source
from tests.inference.text.tool_calls.test_source import read

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def value_of(pieces: list[str]) -> str:
    source, parts = Source(), []
    read(read_value(source, parts.append), source, pieces)
    return "".join(parts)


@given(VALUES, st.integers(1, 7), st.booleans())
def test_any_value_in_any_pieces_is_read_whole(value: object, size: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert json.loads(value_of([*pieces, " tail"])) == value


def test_bare_control_characters_are_escaped() -> None:
    assert value_of(['"a\nb\tc"']) == '"a\\nb\\tc"'


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize(
    ("units", "text"),
    [
        (r"\ud83d\uDE00", "😀"), (r"\ud83d", "\ufffd"), (r"\uDE00", "\ufffd"), (r"\uD83Dx\ude00", "\ufffdx\ufffd"),
        (r"\ud83d\n", "\ufffd\n"), (r"\ud83d\u0041", "\ufffdA"), (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ud7ff", "\ud7ff"),
    ],
)  # fmt: skip
def test_half_a_pair_of_surrogates_is_replaced(units: str, text: str, size: int) -> None:
    whole = f'"a{units}b"'
    assert json.loads(value_of([whole[at : at + size] for at in range(0, len(whole), size)])) == f"a{text}b"


@pytest.mark.parametrize(
    "text", ["", "{", '{"a" 1}', "[1,", "[1 2]", "01", "nul", "tru,", '"\\x"', '"\\u12g4"', "1" * 500]
)
def test_text_that_cannot_become_json_is_refused(text: str) -> None:
    with pytest.raises(BadJSON):
        value_of([text])


def test_a_string_has_a_longest_length() -> None:
    source, parts = Source(), []
    read(read_string(source, parts.append, max_chars=3), source, ['"abc"'])
    assert parts == ['"', "abc", '"']
    with pytest.raises(BadJSON):
        source = Source()
        read(read_string(source, parts.append, max_chars=3), source, ['"abcd"'])
