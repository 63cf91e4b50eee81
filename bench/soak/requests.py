"""RequestSource: bodies of requests for every endpoint that generates, made from a seed and never twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

PROMPT_TOKENS = 64
NEW_TOKENS = 64
REPEAT_EVERY = 40
"""Of so many requests one is sent again and again, to see whether its answer stays."""
NUM_REPEATS = 24
STREAM_SHARE, CANCEL_SHARE, GRAMMAR_SHARE = 0.5, 0.08, 0.25

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TEXT_FIELDS = ("text", "content", "response", "delta", "arguments", "thinking")


@dataclass(frozen=True, slots=True)
class SoakModel:
    """A model that is served.

    Attributes:
        vocab_size: Token ids below this are sent.
    """

    name: str
    vocab_size: int


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One POST.

    Attributes:
        body: Sent as JSON.
        repeat: The number of the repeated request that it is; None: it is sent once.
        cancel_after: Lines of the response after which the client leaves; None: it stays.
    """

    path: str
    body: dict[str, Any]
    repeat: int | None = None
    cancel_after: int | None = None


class RequestSource:
    """Makes requests by number, so that any thread may ask for any of them.

    Args:
        models: Those that are served; requests go to each in turn.
        seed: Another seed makes other requests.
    """

    def __init__(self, models: list[SoakModel], seed: int) -> None:
        self._models = models
        self._seed = seed

    def unique(self, number: int) -> SoakRequest:
        """A completion of random token ids."""
        source = random.Random(f"{self._seed}/unique/{number}")
        if number % REPEAT_EVERY == 0:
            return self._repeat(number // REPEAT_EVERY)
        model = self._models[number % len(self._models)]
        body = {"model": model.name, "prompt": token_ids(source, model), "max_tokens": NEW_TOKENS, "ignore_eos": True}
        return SoakRequest("/v1/completions", body | {"temperature": source.choice((0, 1.0))})

    def mixed(self, number: int) -> SoakRequest:
        """A request to any endpoint with any options; some clients leave early."""
        if number % REPEAT_EVERY == 0:
            return self._repeat(number // REPEAT_EVERY)
        source = random.Random(f"{self._seed}/mixed/{number}")
        model = source.choice(self._models)
        path, body = source.choice(_MAKERS)(source, model)
        cancels = path not in _WITHOUT_TOKENS and source.random() < CANCEL_SHARE
        return SoakRequest(path, body, cancel_after=source.randrange(6) if cancels else None)

    def _repeat(self, number: int) -> SoakRequest:
        """One of a few greedy requests, with or without a stream."""
        which = number % NUM_REPEATS
        source = random.Random(f"{self._seed}/repeat/{which}")
        model = self._models[which % len(self._models)]
        path, body = _GREEDY_MAKERS[which // len(self._models) % len(_GREEDY_MAKERS)](source, model)
        body.get("options", body)["temperature"] = 0
        return SoakRequest(path, body, repeat=which)


def token_ids(source: random.Random, model: SoakModel) -> list[int]:
    """A prompt of ids that mean text; the last ones of a vocabulary are control tokens."""
    return [source.randrange(model.vocab_size - 16) for _ in range(PROMPT_TOKENS)]


def words(source: random.Random, count: int) -> str:
    """Random words, so many that no text comes twice."""
    return " ".join("".join(source.choices(_LETTERS, k=source.randint(2, 9))) for _ in range(count))


def texts_of(value: Any) -> Iterator[str]:
    """All generated text in a response, or in an event of a stream, in order."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in _TEXT_FIELDS and isinstance(inner, str):
                yield inner
            else:
                yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


# --- the endpoints ---------------------------------------------------------------------------------

Made = tuple[str, dict[str, Any]]


def _schema(source: random.Random) -> dict[str, Any]:
    kinds = [{"type": "integer"}, {"type": "boolean"}, {"enum": [words(source, 1), words(source, 1)]}]
    properties = {words(source, 1): source.choice(kinds) for _ in range(source.randint(1, 3))}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _sampling(source: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": source.randint(1, 40), "temperature": source.choice((0, 0.7, 1.0, 1.5))}
    if source.random() < 0.4:
        body |= {"top_p": source.choice((0.5, 0.9)), "seed": source.randrange(1 << 31)}
    return body


def _openai(source: random.Random) -> dict[str, Any]:
    """Options that chat and completions share."""
    body = _sampling(source)
    if source.random() < 0.3:
        body["n"] = source.randint(2, 3)
    if source.random() < 0.3:
        body["stop"] = [source.choice(_LETTERS) + source.choice(_LETTERS) for _ in range(source.randint(1, 3))]
    if source.random() < 0.2:
        body |= {"presence_penalty": 0.5, "frequency_penalty": 0.25, "top_k": 20, "min_p": 0.01}
    if source.random() < STREAM_SHARE:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _messages(source: random.Random) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": words(source, source.randint(1, 12))}]
    while source.random() < 0.3 and len(messages) < 5:
        messages.append({"role": "assistant", "content": words(source, 4)})
        messages.append({"role": "user", "content": words(source, 5)})
    return messages


def _completion(source: random.Random, model: SoakModel) -> Made:
    ids = source.random() < 0.3
    prompt = token_ids(source, model) if ids else words(source, source.randint(1, 15))
    body = {"model": model.name, "prompt": prompt, **_openai(source)}
    if source.random() < 0.2:
        body["logprobs"] = source.randint(0, 3)
    return "/v1/completions", body


def _chat(source: random.Random, model: SoakModel) -> Made:
    body = {"model": model.name, "messages": _messages(source), **_openai(source)}
    if source.random() < GRAMMAR_SHARE:
        schema = {"name": "answer", "schema": _schema(source)}
        body["response_format"] = source.choice(
            [{"type": "json_object"}, {"type": "json_schema", "json_schema": schema}]
        )
    elif source.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": 2}
    return "/v1/chat/completions", body


def _response(source: random.Random, model: SoakModel) -> Made:
    body: dict[str, Any] = {
        "model": model.name,
        "input": words(source, source.randint(1, 12)),
        "max_output_tokens": source.randint(16, 40),
        "store": source.random() < 0.3,
        "stream": source.random() < STREAM_SHARE,
    }
    if source.random() < GRAMMAR_SHARE:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": _schema(source)}}
    return "/v1/responses", body


def _message(source: random.Random, model: SoakModel) -> Made:
    body: dict[str, Any] = {
        "model": model.name,
        "messages": _messages(source),
        "max_tokens": source.randint(1, 40),
        "stream": source.random() < STREAM_SHARE,
    }
    if source.random() < 0.3:
        body |= {"stop_sequences": [source.choice(_LETTERS) * 2], "system": words(source, 3)}
    return "/v1/messages", body


def _ollama(source: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"num_predict": source.randint(1, 40), "temperature": source.choice((0, 1.0))}
    if source.random() < 0.3:
        options |= {"stop": [source.choice(_LETTERS) * 2], "seed": source.randrange(1 << 31), "top_k": 30}
    body: dict[str, Any] = {"options": options, "stream": source.random() < STREAM_SHARE}
    if source.random() < GRAMMAR_SHARE:
        body["format"] = _schema(source)
    return body


def _ollama_generate(source: random.Random, model: SoakModel) -> Made:
    return "/api/generate", {"model": model.name, "prompt": words(source, 8), "raw": True, **_ollama(source)}


def _ollama_chat(source: random.Random, model: SoakModel) -> Made:
    return "/api/chat", {"model": model.name, "messages": _messages(source), **_ollama(source)}


def _embedding(source: random.Random, model: SoakModel) -> Made:
    texts = [words(source, source.randint(1, 10)) for _ in range(source.randint(1, 4))]
    return "/v1/embeddings", {"model": model.name, "input": texts}


def _rerank(source: random.Random, model: SoakModel) -> Made:
    documents = [words(source, 5) for _ in range(source.randint(1, 4))]
    return "/v1/rerank", {"model": model.name, "query": words(source, 3), "documents": documents}


def _tokenize(source: random.Random, model: SoakModel) -> Made:
    return "/tokenize", {"model": model.name, "content": words(source, 20)}


def _greedy_completion(source: random.Random, model: SoakModel) -> Made:
    return "/v1/completions", {"model": model.name, "prompt": token_ids(source, model), "max_tokens": 48}


def _greedy_chat(source: random.Random, model: SoakModel) -> Made:
    return "/v1/chat/completions", {
        "model": model.name,
        "messages": _messages(source),
        "max_tokens": 32,
        "stream": source.random() < STREAM_SHARE,
    }


def _greedy_message(source: random.Random, model: SoakModel) -> Made:
    return "/v1/messages", {"model": model.name, "messages": _messages(source), "max_tokens": 24}


def _greedy_ollama(source: random.Random, model: SoakModel) -> Made:
    prompt = words(source, 20)
    return "/api/generate", {"model": model.name, "prompt": prompt, "raw": True, "options": {"num_predict": 40}}


_Maker = Callable[[random.Random, SoakModel], Made]
_MAKERS: tuple[_Maker, ...] = (
    *(_completion, _completion, _chat, _chat, _chat, _response, _response, _message, _message),
    *(_ollama_generate, _ollama_chat, _embedding, _rerank, _tokenize),
)
_GREEDY_MAKERS: tuple[_Maker, ...] = (_greedy_completion, _greedy_chat, _greedy_message, _greedy_ollama)
_WITHOUT_TOKENS = ("/v1/embeddings", "/v1/rerank", "/tokenize")
"""Endpoints that answer with one piece, so that there is no early to leave."""
