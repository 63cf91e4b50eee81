"""What the page of the OpenAPI document says of operations, and its words for types."""

from __future__ import annotations

from typing import Any

from blazr_site.api_docs import Field, Response, operations

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/v1/things": {
            "post": {
                "operationId": "thing_create",
                "tags": ["v1"],
                "summary": "Make a thing.",
                "security": [{"key": []}],
                "parameters": [
                    {"name": "dry", "schema": {"type": "boolean"}, "required": True, "description": "Don't."}
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                    "204": {"description": "Nothing."},
                    "400": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                },
            },
            "get": {
                "operationId": "thing_list",
                "security": [{"key": []}, {}],
                "responses": {},
                "description": "List things.\n\nAll of them.",
            },
            "x-other": {},
        }
    },
    "components": {
        "schemas": {
            "Kind": {"enum": ["a", "b"], "description": "Which one."},
            "Null": {"enum": [None]},
            "Part": {"type": "object", "description": "A part."},
            "Thing": {
                "required": ["kind"],
                "properties": {
                    "kind": {"$ref": "#/components/schemas/Kind"},
                    "part": {"allOf": [{"$ref": "#/components/schemas/Part"}]},
                    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
                    "n": {"type": "integer", "minimum": 1, "description": "How many."},
                    "name": {"type": "string", "maxLength": 9},
                    "stop": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
                    "mode": {"oneOf": [{"$ref": "#/components/schemas/Kind"}, {"$ref": "#/components/schemas/Null"}]},
                    "free": {},
                },
            },
        }
    },
}


def test_operations_come_with_their_members_and_kinds():
    listed, made = operations(DOCUMENT)
    assert (listed.method, listed.tag, listed.needs_key, listed.body) == ("GET", "other", False, ())
    assert (listed.summary, listed.text) == ("List things", "All of them.")
    assert (made.method, made.path, made.tag, made.anchor) == ("POST", "/v1/things", "v1", "thing_create")
    assert (made.needs_key, made.summary) == (True, "Make a thing.")
    assert made.parameters == (Field("dry", "boolean", True, "Don't."),)
    assert made.body == (
        Field("kind", "a | b", True, "Which one."),
        Field("part", "object", False, "A part."),
        Field("top_p", "number, 0 to 1", False, ""),
        Field("n", "integer, at least 1", False, "How many."),
        Field("name", "string, at most 9 characters", False, ""),
        Field("stop", "string or list of string", False, ""),
        Field("mode", "a | b", False, ""),
        Field("free", "any", False, ""),
    )


def test_members_of_an_error_are_not_repeated():
    _, made = operations(DOCUMENT)
    found, empty, refused = made.responses
    assert (found.status, found.media_type, found.fields) == ("200", "application/json", made.body)
    assert empty == Response("204", "", "Nothing.", ())
    assert (refused.status, refused.fields) == ("400", ())
