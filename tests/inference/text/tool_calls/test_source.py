"""Source: text in pieces, marks, and words that may still come."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.tool_calls.source import Reader, Source, find_first, held_length


def read(reader: Reader, source: Source, pieces: Iterable[str]) -> object:
    """Run a reader over pieces of text."""
    waiting = iter(pieces)
    while True:
        try:
            next(reader)
        except StopIteration as done:
            return done.value
        piece = next(waiting, None)
        if piece is None:
            source.is_final = True
        else:
            source.feed(piece)


@given(st.lists(st.text("ab <", max_size=3), max_size=4))
def test_a_word_is_taken_wherever_pieces_end(pieces: list[str]) -> None:
    source = Source()
    taken = read(source.take("<a"), source, pieces)
    assert taken == "".join(pieces).startswith("<a")
    assert source.pos == (2 if taken else 0)


def test_space_is_skipped_up_to_the_end() -> None:
    source = Source()
    assert read(source.skip_space(), source, [" ", "\n", "x"]) == "x"
    source = Source()
    assert read(source.skip_space(), source, ["  "]) == ""


def test_marked_text_is_kept_and_read_text_is_not() -> None:
    source = Source()
    source.feed("abcd")
    source.pos = 1
    source.mark()
    source.pos = 3
    source.feed("ef")
    assert (source.text, source.pos, source.marked()) == ("bcdef", 2, "bc")
    source.rewind()
    assert source.pos == 0
    source.pos = 4
    source.release()
    source.feed("g")
    assert (source.text, source.pos, source.marked()) == ("fg", 0, "")


def test_the_first_of_several_words() -> None:
    assert find_first("xxbyya", ("a", "b")) == (2, "b")
    assert find_first("xxbyya", ("a", "b"), 3) == (5, "a")
    assert find_first("xx", ("a",)) == (-1, "")


@pytest.mark.parametrize(("text", "start", "held"), [("x<to", 0, 3), ("x<tool>", 0, 0), ("x<", 0, 1), ("x<to", 2, 0)])
def test_an_end_that_may_begin_a_word_is_held(text: str, start: int, held: int) -> None:
    assert held_length(text, ("<tool>",), start) == held
