"""Marks in conversations: their order, their forms, their number."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from inference.values.cache_control import CacheMark, check_marks, marks_of, seconds_of, without_marks

MARK = {"type": "ephemeral"}
MESSAGES = [
    {
        "role": "system",
        "content": [{"type": "text", "text": "a", "cache_control": MARK}, {"type": "text", "text": "b"}],
    },
    {"role": "user", "content": "c", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
]


def test_marks_come_in_the_order_of_the_conversation():
    assert marks_of(MESSAGES) == [CacheMark(0, 0, 300), CacheMark(1, None, 3600)]
    assert marks_of(MESSAGES, 300) == [CacheMark(0, 0, 300), CacheMark(1, -1, 300), CacheMark(1, None, 3600)]
    assert marks_of(MESSAGES[:1], 300) == [CacheMark(0, 0, 300)], "nothing but a system message"


def test_copies_have_no_marks_and_the_originals_keep_theirs():
    copies = without_marks([*MESSAGES, {"role": "assistant", "content": None}])
    assert "cache_control" not in str(copies) and len(marks_of(MESSAGES)) == 2
    assert copies[0]["content"][0] == {"type": "text", "text": "a"} and copies[2]["content"] is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("5m", "it must be {'type': 'ephemeral'}"),
        ({"type": "persistent"}, "it must be"),
        ({"type": "ephemeral", "scope": "global"}, "it must be"),
        ({"type": "ephemeral", "ttl": "2h"}, "cache_control.ttl is '2h', it must be 5m or 1h"),
        ({"type": "ephemeral", "ttl": []}, "must be 5m or 1h"),
    ],
)
def test_forms_that_are_refused(value, words):
    with pytest.raises(InvalidRequest) as caught:
        seconds_of(value, "cache_control")
    assert words in caught.value.message


def test_at_most_four_marks():
    messages = [{"role": "user", "content": "x", "cache_control": MARK}] * 4
    check_marks(messages)
    with pytest.raises(InvalidRequest, match="has 5 cache_control marks, at most 4 are taken"):
        check_marks(messages, 300)
