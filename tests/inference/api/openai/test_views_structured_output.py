"""Structured output at the API's edge: every spelling becomes one grammar, and a wrong one is a 400 that says what."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.inference.api.scripted_worker import ScriptedWorker, say

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "Hi"}
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["b"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


class Payload(BaseModel):
    b: int
    a: str


def test_the_client_parses_what_the_grammar_gave(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    worker.script = say('{"b": 3,', ' "a": "x"}')
    found = client.chat.completions.parse(**CHAT, response_format=Payload)
    assert found.choices[0].message.parsed == Payload(b=3, a="x")
    sent = worker.messages[-1]["params"]["grammar"]
    assert sent["kind"] == "json_schema"
    assert list(sent["value"]["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
        ({"guided_grammar": "start: foo"}, "guided_grammar", 'unknown name: "foo"'),
        ({"grammar": 'root ::= "a" thing'}, "grammar", "line 1: there is no rule named 'thing'"),
        ({"grammar": 'root ::= "a'}, "grammar", "does not end"),
        ({"guided_json": {"type": "strin"}}, "guided_json", "strin"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
        ({"guided_json": {"$ref": "#/$defs/nothing"}}, "guided_json", "$defs/nothing"),
        ({"guided_json": {"$ref": "http://127.0.0.1:1/x.json"}}, "guided_json", "127.0.0.1"),
        ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json", "at most 262,144"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 1}}}},
            "response_format.json_schema.schema",
            "can't be compiled",
        ),
    ],
)
def test_one_that_cannot_be_compiled_never_reaches_a_worker(
    client: openai.OpenAI, worker: ScriptedWorker, fields: Any, param: str, words: str
) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**CHAT, extra_body=fields)
        assert caught.value.body["param"] == param  # type: ignore[index]
        assert words in caught.value.message
        assert "Traceback" not in caught.value.message
    assert worker.messages == []


def test_a_stream_is_refused_before_it_begins(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(**COMPLETION, stream=True, extra_body={"guided_regex": "(a"})
    assert worker.messages == []
