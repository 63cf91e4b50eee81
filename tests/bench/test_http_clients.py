"""Tokens of a recorded stream are counted as they were sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.http_clients import DIALECTS, Line, _arrivals


def line(at: float, **chunk: Any) -> Line:
    return at, b"data: " + json.dumps(chunk).encode()


def text(at: float, words: str) -> Line:
    return line(at, choices=[{"text": words}], usage=None)


def test_words_are_tokens_and_the_usage_says_how_many_there_were() -> None:
    lines = [(0.0, b"HTTP/1.1 200 OK"), text(1.0, " w300"), text(2.0, " w301 w302"), text(3.0, "x")]
    lines += [
        line(3.5, choices=[{"text": "", "finish_reason": "length"}]),
        line(3.5, choices=[], usage={"completion_tokens": 6}),
    ]
    # Two bytes of an unfinished character came with the last text.
    assert _arrivals(DIALECTS["blazr-server"], lines, 6) == [(1.0, 1), (2.0, 2), (3.0, 3)]


def test_a_stream_that_is_short_of_tokens_is_refused() -> None:
    lines = [text(1.0, " w300"), line(2.0, choices=[], usage={"completion_tokens": 1})]
    with pytest.raises(RuntimeError, match="1 tokens instead of 2"):
        _arrivals(DIALECTS["blazr-server"], lines, 2)


def test_llama_servers_tokens_are_counted_by_their_ids() -> None:
    lines = [line(1.0, content="a", tokens=[5]), line(2.0, content="b", tokens=[6, 7])]
    assert _arrivals(DIALECTS["llama-server"], lines, 3) == [(1.0, 1), (2.0, 2)]


def test_llama_servers_last_chunk_counts_the_tokens_that_were_not_shown() -> None:
    lines = [
        line(1.0, content="a", tokens=[5], stop=False, tokens_predicted=1),
        line(2.0, content="b", tokens=[6], stop=False, tokens_predicted=2),
        line(3.0, content="", tokens=[], stop=True, tokens_predicted=4),
    ]
    assert _arrivals(DIALECTS["llama-server"], lines, 4) == [(1.0, 1), (2.0, 3)]
    with pytest.raises(RuntimeError, match="4 tokens instead of 5"):
        _arrivals(DIALECTS["llama-server"], lines, 5)
