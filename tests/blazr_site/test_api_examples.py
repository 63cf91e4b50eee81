"""Examples of the reference."""

from __future__ import annotations

import shlex

import pytest

from blazr_site.api_docs import openapi_document, operations
from blazr_site.api_examples import EXAMPLES, example_of
from inference.dialects.openai.requests import plan_from_body


def test_each_json_body_has_an_example() -> None:
    missing = []
    for path, methods in openapi_document()["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None and "example" not in content and "examples" not in content:
                missing.append(f"{method} {path}")
    assert missing == []


def test_each_line_is_one_command_for_the_shell() -> None:
    found = list(operations(openapi_document()))
    assert {operation.anchor for operation in found} >= set(EXAMPLES)
    for operation in found:
        parts = shlex.split(operation.example.replace("\\\n", " "))
        assert parts[0] == "curl" and any(part.endswith(operation.path) for part in parts), operation.example


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_examples_are_taken_by_the_endpoints(kind: str) -> None:
    name = {"chat": "chat_completions_create", "completion": "completions_create"}[kind]
    assert plan_from_body(kind, EXAMPLES[name]).model == "demo"


def test_other_bodies_get_their_required_members() -> None:
    document = {"components": {"schemas": {"Kind": {"enum": ["a", "b"]}}}}
    schema = {
        "type": "object",
        "required": ["name", "kind", "sizes", "on"],
        "properties": {
            "name": {"type": "string"},
            "kind": {"$ref": "#/components/schemas/Kind"},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 3}},
            "on": {"type": "boolean"},
            "note": {"type": "string"},
        },
    }
    assert example_of(document, schema) == {"name": "text", "kind": "a", "sizes": [3], "on": True}
