"""Shapes of /v1/completions: choices, offsets, echoes."""

from __future__ import annotations

from tests.inference.dialects.openai.outputs.builders import delta, entry, event, taken


def test_the_stream_and_the_whole_say_the_same():
    events = [delta("Hel"), delta("lo", finish_reason="stop", stop_reason=None)]
    found = taken("completion", {"prompt": "x"}, *events)
    whole = found.whole()
    assert list(found.opening()) == []
    chunks = [chunk for item in events for chunk in found.chunks(0, item)]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"] == "Hello"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_logprobs_are_four_parallel_lists_with_offsets_in_characters():
    events = [delta("ü", logprobs=[entry("ü", 1, -0.1)]), delta("b", logprobs=[entry("b", 2, -0.2, ("c", 3, -0.3))])]
    found = taken("completion", {"prompt": "x", "logprobs": 1}, *events).whole()["choices"][0]["logprobs"]
    assert found["tokens"] == ["ü", "b"]
    assert found["token_logprobs"] == [-0.1, -0.2]
    assert found["text_offset"] == [0, 1]
    assert found["top_logprobs"][1] == {"b": -0.2}


def test_an_echoed_prompt_is_scored_with_the_text():
    scored = event("start", prompt_tokens=2, prompt_text="ab", prompt_token_ids=[5, 6],
                   prompt_logprobs=[None, entry("b", 6, -0.5)])  # fmt: skip
    body = {"prompt": "ab", "echo": True, "logprobs": 0}
    found = taken("completion", body, scored, delta("c", logprobs=[entry("c", 7, -0.7)]))
    choice = found.whole()["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.7]
    assert next(found.opening())["choices"][0]["text"] == "ab"


def test_tokens_may_be_named_by_their_ids():
    body = {"prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = taken("completion", body, delta("b", 9, logprobs=[entry("b", 9, -0.2)])).whole()["choices"][0]
    assert choice["logprobs"]["tokens"] == ["token_id:9"]
    assert choice["token_ids"] == [9]
