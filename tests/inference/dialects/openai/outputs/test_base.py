"""What the formats of generated text share: envelopes, plain chunks, prompt log-probabilities."""

from __future__ import annotations

import pytest

from tests.inference.dialects.openai.outputs.builders import delta, entry, event, taken

COMPLETION = {"prompt": "x"}


def test_every_chunk_has_usage_only_if_it_was_asked_for():
    for options, expected in ((None, False), ({"include_usage": True}, True)):
        body = COMPLETION | {"stream": True} | ({"stream_options": options} if options else {})
        found = taken("completion", body, delta("a"))
        (chunk,) = found.chunks(0, delta("a"))
        assert (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) == ("id-1", "text_completion", 5, "m")
        assert ("usage" in chunk) is expected
        assert found.usage_chunk()["usage"]["total_tokens"] == 5
        assert found.usage_chunk()["choices"] == []


@pytest.mark.parametrize("item", [delta("a", finish_reason="stop"), delta("a", choice=1), event("start")])
def test_only_events_that_bring_nothing_but_text_are_plain(item):
    found = taken("completion", COMPLETION)
    assert found.plain_text(0, delta("a")) == "a"
    assert found.plain_text(0, item) is None
    assert found.plain_text(1, delta("a")) is None
    assert taken("completion", COMPLETION | {"logprobs": 1}).plain_text(0, delta("a")) is None
    assert taken("completion", COMPLETION | {"return_token_ids": True}).plain_text(0, delta("a")) is None


def test_prompt_logprobs_are_in_vllm_s_form():
    scored = event("start", prompt_tokens=2, prompt_logprobs=[None, entry("b", 9, -0.5, ("c", 8, -1.0))])
    (choice,) = taken("completion", COMPLETION | {"prompt_logprobs": 2}, scored).whole()["choices"]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1]["8"] == {"logprob": -1.0, "rank": 2, "decoded_token": "c"}
    assert choice["prompt_logprobs"][1]["9"]["decoded_token"] == "b"
