"""Requests for pooled vectors: one vector per input, cut or refused inputs, aborts."""

from __future__ import annotations

from inference.llm.llm import LLM
from tests.inference.llm.harness import (
    embedded,
)


def test_inputs_of_one_message_become_vectors(llm: LLM):
    import numpy as np

    texts = ["the quick brown fox", "dog", "jumps over the lazy dog"]
    together, events = embedded(llm, [{"text": text} for text in texts])
    assert events[0]["type"] == "start"
    num_tokens = [len(llm.tokenizer.encode(text)) for text in texts]
    assert events[0]["prompt_tokens"] == sum(num_tokens) == events[-1]["usage"]["prompt_tokens"]
    assert events[-1]["usage"]["completion_tokens"] == 0
    for text, vector in zip(texts, together, strict=True):
        ids = llm.tokenizer.encode(text)
        (alone,), _ = embedded(llm, [{"token_ids": ids}], pooling="mean")
        np.testing.assert_allclose(vector, alone, rtol=1e-4, atol=1e-5)
        (last,), _ = embedded(llm, [{"token_ids": ids}], pooling="last")
        assert len(ids) == 1 or not np.allclose(vector, last)


def test_a_request_for_vectors_can_be_aborted_and_continued(llm: LLM):
    message = {
        "request_id": "e", "web_id": "", "attempt": 1, "model": "", "params": {}, "priority": 0, "deadline": 0.0,
        "pooling": None, "delivered": [[]], "prompt": {"inputs": [{"text": "a b c"}, {"text": "d"}]},
    }  # fmt: skip
    llm.add(llm.prepare(message))
    assert llm.abort("e")
    events = llm.step()
    assert [event["type"] for event in events] == ["start", "delta", "delta", "done"]
    assert {event.get("finish_reason") for event in events[1:3]} == {"abort"}
    assert not llm.has_unfinished()
