"""Any schema that compiles: what comes out is valid under it. Hypothesis writes the schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from inference.errors import InvalidSamplingParams
from inference.llm.llm import LLM
from tests.inference.llm.harness import run, text_of
from tests.inference.text.grammars.test_constraint_generation import ask, finish_of, grammar

NAMES = st.sampled_from(["a", "b", "name", "ü", 'q"', "with space"])
SCALARS = st.one_of(
    st.integers(-1000, 1000), st.booleans(), st.none(), st.text(alphabet='abcü🙂 "\\\n\t/<', max_size=6)
)
PATTERNS = st.sampled_from(["^[a-z]{2,4}$", "^(ab|cd)+$", "x", r"^\d{3}-\d{2}$", '^[^"]?$', "ü{2}"])


@st.composite
def bounds(draw: st.DrawFn, low: int, high: int, least: str, most: str) -> dict[str, int]:
    first, second = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    return {name: value for name, value in ((least, first), (most, second)) if draw(st.booleans()) or name == most}


LEAVES = st.one_of(
    st.builds(lambda limits: {"type": "integer", **limits}, bounds(-50, 5000, "minimum", "maximum")),
    st.builds(lambda limits: {"type": "number", **limits}, bounds(-5, 50, "exclusiveMinimum", "maximum")),
    st.builds(lambda limits: {"type": "string", **limits}, bounds(0, 8, "minLength", "maxLength")),
    st.builds(lambda pattern: {"type": "string", "pattern": pattern}, PATTERNS),
    st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=5)),
    st.builds(lambda value: {"const": value}, SCALARS),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}, {"$ref": "#/$defs/leaf"}]),
    st.sampled_from([{"type": "string", "format": name} for name in ("date", "time", "uuid", "ipv4")]),
)


def extended(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda items, limits: {"type": "array", "items": items, **limits},
            children,
            bounds(0, 3, "minItems", "maxItems"),
        ),
        st.builds(
            lambda items: {"type": "array", "prefixItems": items, "items": False}, st.lists(children, max_size=3)
        ),
        st.builds(
            lambda properties, required, others: {
                "type": "object",
                "properties": properties,
                "required": [name for name in properties if name in required],
                "additionalProperties": others,
            },
            st.dictionaries(NAMES, children, max_size=4),
            st.sets(NAMES),
            st.just(False),
        ),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(children, min_size=1, max_size=3)),
    )


SCHEMAS = st.recursive(LEAVES, extended, max_leaves=6).map(
    lambda schema: {**schema, "$defs": {"leaf": {"enum": ["leaf", 1]}}}
)


def check(schema: Any, text: str) -> None:
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(
        json.loads(text)
    )


@pytest.mark.parametrize("name", ["llm", "demo"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
@given(schema=SCHEMAS, temperature=st.sampled_from([0.0, 1.0, 2.0]), seed=st.integers(0, 1000))
def test_output_is_valid(
    request: pytest.FixtureRequest, name: str, schema: dict[str, Any], temperature: float, seed: int
) -> None:
    found: LLM = request.getfixturevalue(name)
    asked = ask(grammar=grammar("json_schema", schema), temperature=temperature, seed=seed, n=2)
    try:
        events = run(found, asked)["r"]
    except InvalidSamplingParams as error:
        event(f"refused: {error.message[:60]}")
        assume(False)
        return
    for choice in range(2):
        finish = finish_of(events, choice)
        event(finish)
        if finish == "stop":
            check(schema, text_of(events, choice))
        else:
            assert finish == "length"


def test_keywords_beyond_the_strategies(llm: LLM) -> None:
    """Further keywords, one by one: followed, or refused by name."""
    followed = [
        {"type": "object", "additionalProperties": {"type": "integer", "maximum": 9}, "maxProperties": 2},
        {"type": "object", "patternProperties": {"^x[ab]$": {"type": "null"}}, "additionalProperties": False},
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
        {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 50},
        {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5},
        {"oneOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "null"}]},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "email", "maxLength": 30},
        {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 1, "additionalProperties": False},
    ]
    ending = [token_id for mark in '"}' for token_id in llm.tokenizer.encode(mark, add_special_tokens=False)]
    bias = {str(token_id): 8.0 for token_id in ending}
    for schema in followed:
        bias = {
            str(token_id): 8.0 for mark in '"}' for token_id in llm.tokenizer.encode(mark, add_special_tokens=False)
        }
        for seed in range(6):
            asked = ask(grammar=grammar("json_schema", schema), seed=seed, temperature=1.5, logit_bias=bias)
            events = run(llm, asked)["r"]
            if finish_of(events) == "stop":
                check(schema, text_of(events))
    for schema, word in (
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {"type": "null"}}, "if"),
        ({"type": "array", "contains": {"type": "null"}}, "contains"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"propertyNames": {"maxLength": 3}, "type": "object"}, "propertyNames"),
        ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}, "oneOf"),
        ({"type": "string", "format": "nothing-known"}, "nothing-known"),
    ):
        with pytest.raises(InvalidSamplingParams, match=word):
            llm.prepare(ask(grammar=grammar("json_schema", schema)))
