"""Hostile tokenizer.json files and side files beside harmless weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, NamedTuple

from tests.faults.artefacts.case import Case, beside_weights
from tests.inference.text.tokenisation.vocabularies import byte_level

Outcome = Literal["load", "request", "works"]


class TokenizerCase(NamedTuple):
    """A tokenizer.json, and where it is stopped.

    Attributes:
        outcome: ``load``: refused when the model is loaded; ``request``: a text fails; ``works``.
        message: A pattern in the error.
    """

    name: str
    content: bytes
    outcome: Outcome
    message: str = ""


@cache
def _state() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(byte_level().to_str())
    return state


def _with(**changes: Any) -> bytes:
    return json.dumps(_state() | changes).encode()


def _model(**changes: Any) -> bytes:
    return _with(model=_state()["model"] | changes)


def _token(number: int, content: str, **changes: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": 600 + number, "content": content, **flags, **changes}


def _split(pattern: str) -> bytes:
    return _with(
        pre_tokenizer={"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": pattern}}
    )


def _normalizers(*steps: dict[str, Any]) -> bytes:
    return _with(normalizer={"type": "Sequence", "normalizers": list(steps)})


def _decoders(*steps: dict[str, Any]) -> bytes:
    return _with(decoder={"type": "Sequence", "decoders": list(steps)})


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _nested(kind: str, member: str, depth: int) -> bytes:
    inner = '{"type":"Fuse"}' if kind == "decoder" else '{"type":"NFC"}'
    text = json.dumps(_state() | {kind: "HERE"})
    nested = f'{{"type":"Sequence","{member}":[' * depth + inner + "]}" * depth
    return text.replace('"HERE"', nested).encode()


ROWS = 1024
"""Of the embedding."""
PROBE = "a" * 40 + "!" + "Q" * 40
"""What each tokenizer has to encode."""


def tokenizer_cases() -> Iterable[TokenizerCase]:
    """Each goes through the load of a tokenizer and, if that succeeds, through ``PROBE``."""
    for name, pattern in {
        "(a+)+$": "(a+)+$", "(a|aa)+$": "(a|aa)+$", "(a|a?)+$": "(a|a?)+$", "(.*a){25}$": "(.*a){25}$",
        "([a-zA-Z]+)*$": "([a-zA-Z]+)*$", "back-reference": "(a+)+\\1+$",
    }.items():  # fmt: skip
        yield TokenizerCase(f"split by {name}", _split(pattern), "request", "failed on this text")
    yield TokenizerCase("split by a broken pattern", _split("(a"), "load", "can't be used")
    yield TokenizerCase("split by 10^5 groups", _split("(" * 100_000 + ")" * 100_000), "load", "can't be used")
    yield TokenizerCase("split by a repeat of 10^9", _split("(a{1,1000}){1,1000000}"), "load", "can't be used")
    yield TokenizerCase("split by nested repeats", _split("((a{1,99}){1,99}){1,99}$"), "request", "failed on this text")
    bomb = _normalizers(*[_replace("Q", "Q" * 300)] * 4)
    yield TokenizerCase("normaliser: times 300, four times", bomb, "request", "failed on this text")
    prepended = _normalizers({"type": "Prepend", "prepend": "x" * (16 << 20)})
    yield TokenizerCase("normaliser: 16 MiB before each text", prepended, "load", "can't be used")
    by_pattern = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    yield TokenizerCase(
        "normaliser: a catastrophic pattern", _normalizers(by_pattern), "request", "failed on this text"
    )
    yield TokenizerCase(
        "normaliser: unknown", _with(normalizer={"type": "Shell", "command": "id"}), "load", "can't be used"
    )
    yield TokenizerCase("normaliser: 120 levels", _nested("normalizer", "normalizers", 120), "load", "can't be used")
    yield TokenizerCase(
        "normaliser: 10^5 levels", _nested("normalizer", "normalizers", 100_000), "load", "can't be used"
    )
    yield TokenizerCase("decoder: 120 levels", _nested("decoder", "decoders", 120), "load", "can't be used")
    grows = _decoders(*[_replace("a", "a" * 300)] * 5)
    yield TokenizerCase("decoder: times 300, five times", grows, "load", "times longer")
    yield TokenizerCase("decoder: 10^6 letters for one", _decoders(_replace("a", "a" * 10**6)), "load", "times longer")
    strip = {"type": "Strip", "content": "a", "start": 10**12, "stop": 0}
    yield TokenizerCase("decoder: strip 10^12 letters", _decoders(strip, {"type": "Fuse"}), "load", "at most 64")
    yield TokenizerCase(
        "decoder: strip 10^12 letters of the text", _decoders({"type": "Fuse"}, strip), "load", "at most 64"
    )
    behind = strip | {"start": 0, "stop": 10**12}
    yield TokenizerCase("decoder: strip 10^12 letters behind", _decoders(behind), "load", "at most 64")
    yield TokenizerCase("decoder: 10^4 steps", _decoders(*[_replace("a", "b")] * 10_000), "load", "64 steps")
    yield TokenizerCase(
        "decoder: a pattern", _decoders({**_replace("", ""), "pattern": {"Regex": "(a+)+$"}}), "load", "spans tokens"
    )
    yield TokenizerCase(
        "decoder: none that can be streamed",
        _with(decoder={"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True}),
        "load",
        "CTC",
    )
    many = [_token(number, f"<{number}>") for number in range(20_000)]
    yield TokenizerCase("20,000 control tokens", _with(added_tokens=many), "works")
    empty = [_token(0, "")]
    yield TokenizerCase("an empty control token", _with(added_tokens=empty), "works")
    long = [_token(0, "<" + "x" * (1 << 20) + ">")]
    yield TokenizerCase("a control token of 1 MiB", _with(added_tokens=long), "works")
    same = [_token(0, "<a>"), _token(1, "<a>")]
    yield TokenizerCase("one control token twice", _with(added_tokens=same), "works")
    everything = [_token(number, letter) for number, letter in enumerate("aQ!")]
    yield TokenizerCase("letters as control tokens", _with(added_tokens=everything), "works")
    swallowing = [_token(0, "!", lstrip=True, rstrip=True, special=False)]
    yield TokenizerCase("an added token that takes the white space around", _with(added_tokens=swallowing), "works")
    yield TokenizerCase("an id of 2^31", _with(added_tokens=[_token(2**31 - 600, "<a>")]), "works")
    yield TokenizerCase("an id of 2^40", _with(added_tokens=[_token(2**40, "<a>")]), "load", "can't be used")
    yield TokenizerCase("a negative id", _with(added_tokens=[_token(-700, "<a>")]), "load", "can't be used")
    yield TokenizerCase("merges of tokens that aren't there", _model(merges=[["x" * 50, "y"]]), "load", "can't be used")
    yield TokenizerCase("merges as numbers", _model(merges=[1, 2]), "load", "can't be used")
    merges = [[first, second] for first in "abcdefgh" for second in "abcdefgh"] * 2_000
    yield TokenizerCase("128,000 merges", _model(merges=merges), "load", "can't be used")
    yield TokenizerCase("vocabulary: a list", _model(vocab=["a"]), "load", "can't be used")
    yield TokenizerCase("vocabulary: empty", _model(vocab={}, merges=[]), "works")
    yield TokenizerCase("vocabulary: texts as ids", _model(vocab={"a": "0"}, merges=[]), "load", "can't be used")
    yield TokenizerCase("vocabulary: an id of 2^31", _model(vocab={"a": 2**31}, merges=[]), "request", "2147483648")
    yield TokenizerCase("vocabulary: all with one id", _model(vocab=dict.fromkeys("abc", 0), merges=[]), "works")
    yield TokenizerCase("model: unknown", _with(model={"type": "Pickle", "path": "/tmp/evil"}), "load", "can't be used")
    yield TokenizerCase("model: a number", _with(model=3), "load", "can't be used")
    yield TokenizerCase("post-processor: unknown", _with(post_processor={"type": "Exec"}), "load", "can't be used")
    yield TokenizerCase(
        "truncation to nothing",
        _with(truncation={"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0}),
        "works",
    )
    yield TokenizerCase(
        "padding to 10^9",
        _with(
            padding={
                "strategy": {"Fixed": 10**9},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "a",
            }
        ),
        "works",
    )
    for name, content in {
        "empty": b"",
        "an empty object": b"{}",
        "an array": b"[]",
        "truncated": _with()[:-100],
        "a pickle": b"\x80\x04\x95.",
        "NUL bytes": bytes(1000),
        "10^5 levels": b"[" * 100_000,
        "another version": _with(version="9.0"),
        "invalid UTF-8": b'{"a":"\xff"}',
        "half a pair": b'{"version":"1.0","model":{"type":"BPE","vocab":{"\\ud800":0},"merges":[]}}',
    }.items():
        yield TokenizerCase(name, content, "load", "can't be used")


_SIDE = "tokenizer_config.json"
INSPECTED = [
    Case("tokenizer.json: 33 MiB", beside_weights("tokenizer.json", b" " * (33 << 20)), "limit"),
    Case("tokenizer.json: an array", beside_weights("tokenizer.json", b"[]"), r"tokenizer\.json"),
    Case("tokenizer.json: deep", beside_weights("tokenizer.json", b'{"a":' * 100_000), r"tokenizer\.json"),
    Case(
        "tokenizer.json: 33 levels",
        beside_weights("tokenizer.json", b'{"a":' + b"[" * 33 + b"]" * 33 + b"}"),
        "32 levels",
    ),
    Case(
        "tokenizer.json: wrong types",
        beside_weights("tokenizer.json", b'{"added_tokens":{"a":1},"model":[1],"post_processor":7}'),
        None,
    ),
    Case(
        "tokenizer.json: wrong types inside",
        beside_weights(
            "tokenizer.json",
            b'{"added_tokens":[1,null,{"content":1,"id":"x"},{"id":true,"content":"a"}],"model":{"vocab":[1]},"post_processor":{"type":"TemplateProcessing","single":[1],"special_tokens":[1]}}',
        ),
        None,
    ),
    Case("tokenizer_config: 9 MiB", beside_weights(_SIDE, b" " * (9 << 20)), "limit"),
    Case(
        "tokenizer_config: code to import",
        beside_weights(_SIDE, b'{"auto_map":{"AutoTokenizer":["evil.py","x"]},"tokenizer_class":"evil.Tokenizer"}'),
        None,
        "CVE-2026-22807",
    ),
    Case(
        "tokenizer_config: wrong types",
        beside_weights(
            _SIDE, b'{"bos_token":[1],"eos_token":{"content":7},"added_tokens_decoder":[1],"add_bos_token":"x"}'
        ),
        None,
    ),
    Case(
        "tokenizer_config: ids as words",
        beside_weights(
            _SIDE,
            json.dumps(
                {"added_tokens_decoder": {"x": {"content": "a"}, "²": {"content": "b"}, "9" * 5000: {"content": "c"}}}
            ).encode(),
        ),
        None,
    ),
    Case("tokenizer_config: half a pair", beside_weights(_SIDE, b'{"eos_token":"\\ud800"}'), "surrogate pair"),
    Case(
        "tokenizer_config: template of 1 MiB",
        beside_weights(_SIDE, json.dumps({"chat_template": "x" * (1 << 20)}).encode()),
        "limit",
    ),
    Case("tokenizer_config: template is an object", beside_weights(_SIDE, b'{"chat_template":{"a":1}}'), None),
    Case(
        "tokenizer_config: named template with escapes",
        beside_weights(_SIDE, json.dumps({"chat_template": [{"name": "\x1b[2J\ud800", "template": "x"}]}).encode()),
        None,
    ),
    Case(
        "special_tokens_map: an array", beside_weights("special_tokens_map.json", b"[1]"), r"special_tokens_map\.json"
    ),
    Case(
        "chat_template.jinja: 1 MiB",
        beside_weights("chat_template.jinja", b"x" * (1 << 20)),
        "limit",
        "CVE-2026-115911",
    ),
    Case("chat_template.jinja: not UTF-8", beside_weights("chat_template.jinja", b"\xff\xfe"), "UTF-8"),
    Case("chat_template.json: an array", beside_weights("chat_template.json", b"[]"), r"chat_template\.json"),
    Case("tokenizer.model: a pickle", beside_weights("tokenizer.model", b"\x80\x04\x95."), "no SentencePiece"),
    Case("tokenizer.model: 33 MiB", beside_weights("tokenizer.model", bytes(33 << 20)), "limit"),
    Case(".tiktoken: a pickle", beside_weights("evil.tiktoken", b"\x80\x04\x95."), None),
]

CASES = INSPECTED
