"""Fields that ask for a grammar: every spelling, and what is wrong with one."""

from __future__ import annotations

from typing import Any

import pytest

from inference.dialects.openai import grammar_fields
from inference.dialects.openai.requests import plan_from_body
from inference.errors import InvalidRequest
from inference.values.grammar import Grammar
from tests.inference.api.openai.test_views_structured_output import CHAT, COMPLETION, FORMAT, SCHEMA

LONG = "a" * (1 << 20)
LONG_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1] * 200_000}}}


@pytest.mark.parametrize(("endpoint", "body"), [("chat", CHAT), ("completion", COMPLETION)])
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_regex": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        ({"response_format": FORMAT}, Grammar("json_schema", SCHEMA)),
        ({"guided_json": SCHEMA}, Grammar("json_schema", SCHEMA)),
        ({"guided_json": '{"type": "null"}'}, Grammar("json_schema", {"type": "null"})),
        ({"guided_json": True}, Grammar("json_schema", True)),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"grammar": 'root ::= "a"'}, Grammar("gbnf", 'root ::= "a"')),
        ({"guided_choice": ["a", "b"]}, Grammar("choice", ("a", "b"))),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", SCHEMA)),
        ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": False}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar("choice", ("a",))),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar("lark", 'start: "a"')),
        ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
        ({"response_format": FORMAT, "guided_json": SCHEMA}, Grammar("json_schema", SCHEMA)),
    ],
)
def test_every_spelling_becomes_a_grammar(endpoint: Any, body: dict[str, Any], fields: Any, grammar: Any) -> None:
    plan = plan_from_body(endpoint, {**body, **fields})
    assert plan.params.grammar == grammar
    assert type(plan).from_dict(plan.to_dict()).params.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "json"}, "response_format", "must be an object"),
        ({"response_format": {}}, "response_format.type", "known are text"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "not supported"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "name and schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
            "64 letters",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "must be a JSON schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}}},
            "response_format.json_schema.strict",
            "true or false",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "more": 1}}},
            "response_format.json_schema.more",
            "not supported",
        ),
        ({"guided_json": 3}, "guided_json", "JSON schema"),
        ({"guided_json": "{"}, "guided_json", "isn't valid JSON"),
        ({"guided_json": "[" * 100_000}, "guided_json", "levels"),
        ({"guided_json": "[" + "[]," * 100_000 + "[]]"}, "guided_json", "300,004 bytes, at most 262,144"),
        ({"structured_outputs": {"json": f'"{LONG}"'}}, "structured_outputs.json", "1,048,578 bytes"),
        ({"guided_json": {"description": LONG}}, "guided_json", "at most 262,144"),
        ({"response_format": LONG_FORMAT}, "response_format.json_schema.schema", "at most 262,144"),
        ({"guided_choice": [LONG]}, "guided_choice", "at most 262,144"),
        ({"guided_regex": LONG}, "guided_regex", "1,048,576 bytes"),
        ({"guided_json": "[]"}, "guided_json", "object or a boolean"),
        ({"guided_json": False}, "guided_json", "matches no text"),
        ({"guided_regex": ""}, "guided_regex", "blank"),
        ({"guided_regex": 3}, "guided_regex", "must be a string"),
        ({"guided_grammar": ["a"]}, "guided_grammar", "must be a string"),
        ({"guided_choice": "ab"}, "guided_choice", "list of strings"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_choice": [1]}, "guided_choice", "one string"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice", "list of strings"),
        ({"structured_outputs": {"regex": ["a"]}}, "structured_outputs.regex", "non-empty string"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "different outputs"),
        ({"response_format": FORMAT, "guided_choice": ["a"]}, "guided_choice", "different outputs"),
        ({"grammar": ["a"]}, "grammar", "must be a string"),
        ({"grammar": 'root ::= "a"', "guided_grammar": 'start: "a"'}, "grammar", "different outputs"),
    ],
)
def test_a_wrong_one_is_named(fields: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plan_from_body("chat", {**CHAT, **fields})
    assert caught.value.param == param
    assert words in caught.value.message


def test_the_text_of_a_schema_that_is_too_long_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_fields, "parse_json", None)
    with pytest.raises(InvalidRequest, match="at most 262,144 are compiled"):
        plan_from_body("chat", {**CHAT, "guided_json": "[" + "[]," * 100_000 + "[]]"})
