"""Requests are made by number, never twice, and for every endpoint."""

from __future__ import annotations

import json
from collections import Counter

from bench.soak.requests import NUM_REPEATS, REPEAT_EVERY, RequestSource, SoakModel, texts_of

MODELS = [SoakModel("attention", 512), SoakModel("hybrid", 1024)]


def bodies(requests):
    return [json.dumps([request.path, request.body], sort_keys=True) for request in requests]


def test_no_request_is_made_twice():
    source = RequestSource(MODELS, seed=1)
    for make in (source.unique, source.mixed):
        requests = [request for request in map(make, range(4000)) if request.repeat is None]
        assert len(set(bodies(requests))) == len(requests) == 4000 - 4000 // REPEAT_EVERY


def test_the_same_number_makes_the_same_request():
    first, again, other = (RequestSource(MODELS, seed=seed) for seed in (1, 1, 2))
    numbers = range(200)
    assert bodies(map(first.mixed, numbers)) == bodies(map(again.mixed, numbers))
    assert not set(bodies(map(first.mixed, numbers))) & set(bodies(map(other.mixed, numbers)))


def test_repeats_are_greedy_and_the_same_in_both_phases():
    source = RequestSource(MODELS, seed=1)
    numbers = range(0, 3 * NUM_REPEATS * REPEAT_EVERY, REPEAT_EVERY)
    seen = {}
    for request in [*map(source.unique, numbers), *map(source.mixed, numbers)]:
        assert request.body.get("options", request.body)["temperature"] == 0
        assert request.cancel_after is None
        assert seen.setdefault(request.repeat, request) == request
    assert sorted(seen) == list(range(NUM_REPEATS))
    assert {request.body["model"] for request in seen.values()} == {"attention", "hybrid"}


def test_mixed_requests_reach_every_endpoint_with_every_option():
    requests = [RequestSource(MODELS, seed=3).mixed(number) for number in range(3000)]
    paths = Counter(request.path for request in requests)
    assert set(paths) == {
        *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
        *("/v1/rerank", "/api/generate", "/api/chat", "/tokenize"),
    }
    used = Counter(name for request in requests for name, value in request.body.items() if value)
    for name in ("n", "stop", "stop_sequences", "stream", "response_format", "format", "text", "logprobs", "seed"):
        assert used[name] > 20, name
    assert 60 < sum(request.cancel_after is not None for request in requests) < 400
    assert {request.body["model"] for request in requests} == {"attention", "hybrid"}


def test_token_ids_are_ids_of_the_model():
    source = RequestSource(MODELS, seed=1)
    for request in map(source.unique, range(1, 200)):
        if request.repeat is None:
            size = {model.name: model.vocab_size for model in MODELS}[request.body["model"]]
            assert len(request.body["prompt"]) == 64 and max(request.body["prompt"]) < size


def test_texts_are_found_in_every_shape():
    assert list(texts_of({"choices": [{"text": "a", "finish_reason": "stop"}, {"text": "b"}]})) == ["a", "b"]
    assert list(texts_of({"choices": [{"delta": {"role": "assistant", "content": "c"}}]})) == ["c"]
    assert list(texts_of({"type": "response.output_text.delta", "delta": "d", "item_id": "x"})) == ["d"]
    assert list(texts_of({"content": [{"type": "text", "text": "e"}]})) == ["e"]
    assert list(texts_of({"message": {"content": "f"}, "done": True})) == ["f"]
    assert list(texts_of({"data": [{"embedding": [0.5]}]})) == []
