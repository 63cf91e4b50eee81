"""Requests and responses of lines in words."""

from __future__ import annotations

from typing import Any

import pytest

from inference.pages.batch_lines import (
    output_of_payload,
    params_of_body,
    preview,
    prompt_preview,
    prompts_of_body,
)


@pytest.mark.parametrize(
    ("body", "prompts", "shown"),
    [
        ({"prompt": "Once  upon\na time"}, ["Once  upon\na time"], "Once upon a time"),
        ({"prompt": ["a", "b"]}, ["a", "b"], "a"),
        ({"prompt": [1, 2]}, ["1, 2"], "1, 2"),
        ({"prompt": [[1, 2], [3]]}, ["1, 2", "3"], "1, 2"),
        ({"prompt": {"a": 1}}, ['{\n  "a": 1\n}'], '{ "a": 1 }'),
        ({"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}]},
         ["[system]\nBe short.\n\n[user]\nWhy?"], "Why?"),
        ({"messages": "Why?"}, ["Why?"], "Why?"),
        ({"messages": [1]}, ["[\n  1\n]"], "[ 1 ]"),
        ({"input": "x"}, ["x"], "x"),
        ({"input": ["x", "y"]}, ["x", "y"], "x"),
        ({"instructions": "Be short.", "input": [{"type": "message", "role": "user", "content": "Why?"}]},
         ["[instructions]\nBe short.", "[user]\nWhy?"], "[user] Why?"),
        ({}, ["null"], "null"),
    ],
)  # fmt: skip
def test_prompts_of_every_endpoint(body: dict[str, Any], prompts: list[str], shown: str) -> None:
    assert prompts_of_body(body, 9) == prompts
    assert prompt_preview(body) == shown


def test_calls_of_tools_are_part_of_a_conversation() -> None:
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}
    assert '"tool_calls"' in prompts_of_body(body, 9)[0]


def test_what_else_is_asked_for() -> None:
    assert params_of_body({"model": "m", "prompt": "x", "max_tokens": 4}) == {"max_tokens": 4}


def output(body: Any) -> Any:
    return output_of_payload({"response": {"status_code": 200, "body": body}}, is_error=False)


def test_answers_of_every_endpoint() -> None:
    assert output({"choices": [{"text": "a"}, {"message": {"content": "b"}}]}).texts == ("a", "b")
    usage = {"total_tokens": 3, "details": {}}
    assert output({"choices": [{"text": "a"}], "usage": usage}).usage == {"total_tokens": 3}
    parts = [{"type": "output_text", "text": "so"}, {"type": "refusal", "refusal": " no"}]
    assert output({"output": [{"type": "message", "content": parts}]}).texts == ("so no",)
    assert output({"output": [{"type": "function_call", "name": "f"}]}).texts[0].startswith("{")
    assert output({"data": [{"embedding": [0.5, 1.0]}, {"embedding": [1.0, 1.0]}]}).texts == ("2 vectors of 2 values",)
    assert output({"data": [{"embedding": "AAA="}]}).texts == ("1 vector",)
    assert output({}).texts == output(None).texts == output_of_payload({}, is_error=False).texts == ()


def test_errors_of_lines_that_ran_and_of_those_that_did_not() -> None:
    ran = {"response": {"status_code": 400, "body": {"error": {"code": "wrong", "message": "No."}}}}
    assert output_of_payload(ran, is_error=True).error == ("wrong", "No.")
    unrun = {"response": None, "error": {"code": "batch_expired", "message": "Too late."}}
    assert output_of_payload(unrun, is_error=True).error == ("batch_expired", "Too late.")


def test_previews_are_one_short_line() -> None:
    assert preview(["", " \n", "a\n b"]) == "a b" and preview([]) == ""
    assert len(preview(["word " * 100])) == 160
