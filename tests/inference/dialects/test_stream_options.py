"""Stream options of the APIs beside chat completions."""

from __future__ import annotations

from typing import Any

import pytest

from inference.dialects.stream_options import read_include_queue
from inference.errors import InvalidRequest


@pytest.mark.parametrize(
    ("options", "found"),
    [(None, False), ({}, False), ({"include_queue": None}, False), ({"include_queue": True}, True)],
)
def test_the_queue_is_included_when_asked_for(options: Any, found: bool) -> None:
    assert read_include_queue({"stream": True, "stream_options": options}) is found


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"stream_options": {"include_queue": False}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_queue": "yes"}}, "stream_options.include_queue"),
        ({"stream": True, "stream_options": {"x" * 200: 1}}, "stream_options." + "x" * 80),
        ({"stream": True, "stream_options": {"obfuscated": True}}, "stream_options.obfuscated"),
    ],
)
def test_what_cannot_be_honoured_is_named(values: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_include_queue(values, only_false=("obfuscated",))
    assert caught.value.param == param


def test_further_options_may_be_false() -> None:
    options = {"obfuscated": False, "include_queue": True}
    assert read_include_queue({"stream": True, "stream_options": options}, only_false=("obfuscated",))
