"""NgramIndex against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.speculation.ngram import MAX_CANDIDATES, MAX_MATCH, NgramIndex


def slow_draft(tokens, width, count):
    """The same rule by searching everything."""
    length = len(tokens)
    ends = [end for end in range(width, length) if tokens[end - width : end] == tokens[length - width :]]
    best, longest = 0, 0
    for end in reversed(ends[-MAX_CANDIDATES:] if length > width else []):
        agreed = width
        while agreed < min(MAX_MATCH, end) and tokens[end - agreed - 1] == tokens[length - agreed - 1]:
            agreed += 1
        if agreed > longest:
            best, longest = end, agreed
    if best == 0:
        return []
    text = list(tokens)
    for number in range(count):
        text.append(text[best + number])
    return text[length:]


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    width=st.integers(1, 4),
    count=st.integers(1, 9),
    grown=st.lists(st.integers(1, 9), max_size=12),
)
def test_the_index_finds_what_a_search_finds_however_the_text_grew(tokens, width, count, grown):
    index = NgramIndex(width)
    length = 1
    for more in grown:
        assert index.propose(tokens[:length], count) == slow_draft(tokens[:length], width, count)
        length = min(len(tokens), length + more)
    assert index.propose(tokens, count) == slow_draft(tokens, width, count)


@pytest.mark.parametrize(
    ("tokens", "agreed"), [([1, 2, 3], 0), ([1, 2, 9, 1, 2], 2), ([1, 2, 3, 9, 1, 2, 3], 3), ([5] * 30, MAX_MATCH)]
)
def test_the_index_says_how_much_agrees(tokens, agreed):
    index = NgramIndex(2)
    for _ in range(2):
        assert index.agreement(tokens) == agreed
    assert bool(index.propose(tokens, 3)) == bool(agreed)


def test_the_longest_agreement_wins_and_a_period_goes_on():
    assert NgramIndex(2).propose([1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3], 2) == [4, 9]
    assert NgramIndex(2).propose([9, 2, 3, 4, 8, 2, 3, 7, 1, 2, 3], 2) == [7, 1]
    assert NgramIndex(2).propose([5, 5, 5], 4) == [5, 5, 5, 5]
    assert NgramIndex(1).propose([6, 7, 6], 5) == [7, 6, 7, 6, 7]
