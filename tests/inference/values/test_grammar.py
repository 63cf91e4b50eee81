"""Grammar as a value: its checks and its way through a queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidSamplingParams
from inference.values.grammar import MAX_BYTES, MAX_CHOICES, MAX_DEPTH, Grammar, check_size
from inference.values.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", {"type": "object", "properties": {"b": {}, "a": {}}}),
        Grammar("json_schema", True),
        Grammar("json_object"),
        Grammar("regex", "a|ü"),
        Grammar("lark", 'start: "a"'),
        Grammar("choice", ("a", "b")),
    ],
)
def test_it_survives_the_queue(grammar: Grammar) -> None:
    params = SamplingParams(grammar=grammar, grammar_after="</think>", stop=("x",), logit_bias={3: 1.0})
    again = SamplingParams.from_dict(json.loads(json.dumps(params.to_dict())))
    assert again == params
    assert again.grammar is not None and again.grammar.digest == grammar.digest
    assert Grammar.from_dict(grammar) is grammar


def test_the_order_of_properties_is_kept_and_counts() -> None:
    left = Grammar("json_schema", {"properties": {"a": {}, "b": {}}})
    right = Grammar("json_schema", {"properties": {"b": {}, "a": {}}})
    assert left.digest != right.digest
    assert Grammar("regex", "a").digest != Grammar("lark", "a").digest


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"kind": "xml", "value": "a"}, "known are json_schema"),
        ({"kind": "regex"}, "non-empty string"),
        ({"kind": "regex", "value": ""}, "non-empty string"),
        ({"kind": "lark", "value": 3}, "Lark grammar"),
        ({"kind": "choice", "value": []}, "at least one"),
        ({"kind": "choice", "value": ["a", 1]}, "at least one string"),
        ({"kind": "choice", "value": ["a", ""]}, "empty string"),
        ({"kind": "choice", "value": "ab"}, "at least one string"),
        ({"kind": "choice", "value": ["a"] * (MAX_CHOICES + 1)}, "at most 10,000"),
        ({"kind": "json_schema", "value": "{}"}, "object or a boolean"),
        ({"kind": "json_schema", "value": [1] * 99}, r"got \[1, 1, 1.*\.\.\."),
        ({"kind": "json_schema", "value": False}, "matches no text"),
        ({"kind": "json_schema", "value": nested(MAX_DEPTH)}, "nests deeper"),
        ({"kind": "json_schema", "value": nested(100_000)}, "nests deeper"),
        ({"kind": "json_object", "value": {}}, "takes no value"),
        ({"kind": "regex", "value": "a", "flags": "i"}, "kind and value"),
        ("a", "kind and value"),
    ],
)
def test_what_is_no_grammar_is_refused(payload: Any, words: str) -> None:
    with pytest.raises(InvalidSamplingParams, match=words):
        SamplingParams.from_dict({"grammar": payload})


def test_a_text_over_the_limit_is_refused_by_its_field() -> None:
    check_size(MAX_BYTES, "grammar")
    with pytest.raises(InvalidSamplingParams, match=r"grammar has 262,145 bytes, at most 262,144") as caught:
        check_size(MAX_BYTES + 1, "grammar")
    assert caught.value.param == "grammar"
    with pytest.raises(InvalidSamplingParams, match="at most 9"):
        check_size(10, "grammar", most=9)


def test_the_text_before_a_grammar_is_checked() -> None:
    Grammar("json_schema", nested(MAX_DEPTH - 1))
    for values, words in (
        ({"grammar_after": "x"}, "needs a grammar"),
        ({"grammar_after": "", "grammar": Grammar("json_object")}, "1 to 256"),
        ({"grammar_after": "x" * 257, "grammar": Grammar("json_object")}, "1 to 256"),
    ):
        with pytest.raises(InvalidSamplingParams, match=words):
            SamplingParams(**values)
