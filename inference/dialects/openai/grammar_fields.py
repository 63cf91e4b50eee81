"""Read the structured output fields of request bodies.

These are OpenAI's ``response_format``, vLLM's ``guided_*`` and ``structured_outputs``, and llama.cpp's ``grammar``.
https://platform.openai.com/docs/api-reference/chat/create#chat-create-response_format and
https://docs.vllm.ai/en/latest/features/structured_outputs.html.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.fields import JSONObjectField, RequestField, StrictCharField, optional
from inference.dialects.members import check_members
from inference.errors import InvalidRequest, InvalidSamplingParams, shown
from inference.host.client_json import parse_json
from inference.values.grammar import MAX_CHOICES, Grammar, GrammarKind, check_size

_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_FORMATS = ("text", "json_object", "json_schema")


@extend_schema_field(
    {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "enum": list(_FORMATS)},
            "json_schema": {
                "type": "object",
                "required": ["name", "schema"],
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                    "description": {"type": "string"},
                    "schema": {"type": "object", "additionalProperties": {}},
                    "strict": {"type": "boolean", "nullable": True},
                },
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    }
)
class ResponseFormatField(JSONObjectField):
    """OpenAI's ``response_format``."""


@extend_schema_field(
    {"oneOf": [{"type": "object", "additionalProperties": {}}, {"type": "boolean"}, {"type": "string"}]}
)
class SchemaField(RequestField):
    """A JSON schema, as an object or as text."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict | bool | str):
            raise serializers.ValidationError(f"must be a JSON schema, or the text of one, got {shown(data)}.")
        return data


@extend_schema_field(
    {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MAX_CHOICES}
)
class ChoicesField(RequestField):
    """A list of texts."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise serializers.ValidationError(f"must be a list of strings, got {shown(data)}.")
        return data


@extend_schema_field(
    {
        "type": "object",
        "properties": {
            "json": {"oneOf": [{"type": "object", "additionalProperties": {}}, {"type": "string"}]},
            "regex": {"type": "string"},
            "choice": {"type": "array", "items": {"type": "string"}},
            "grammar": {"type": "string"},
            "json_object": {"type": "boolean"},
        },
        "additionalProperties": False,
    }
)
class StructuredOutputsField(JSONObjectField):
    """vLLM's ``structured_outputs``: an object with exactly one kind of output."""


class GrammarFieldsMixin(serializers.Serializer[Any]):
    """The structured output fields of all generation endpoints."""

    response_format = optional(ResponseFormatField, "json_schema: the output is JSON that is valid under the schema.")
    guided_json = optional(SchemaField, "As json_schema.")
    guided_regex = optional(StrictCharField, "A regular expression that the whole output matches.")
    guided_grammar = optional(StrictCharField, "A Lark grammar with the rule start.")
    grammar = optional(StrictCharField, "A grammar in llama.cpp's notation (GBNF) with the rule root.")
    guided_choice = optional(ChoicesField, "The output is one of these texts.")
    structured_outputs = optional(StructuredOutputsField, "One of json, regex, choice, grammar, json_object.")


def grammar_of(values: Mapping[str, Any]) -> Grammar | None:
    """Return the grammar that the validated members request; None: free text.

    Raises:
        InvalidRequest: A member is wrong, or two contradict each other.
    """
    read = [reader(name, values[name]) for name, reader in _READERS.items() if name in values]
    found = [grammar for grammar in read if grammar]
    for other in found[1:]:
        if other != found[0]:
            raise InvalidRequest(
                f"{found[0].param} and {other.param} ask for different outputs; give one of them.", param=other.param
            )
    if not found:
        return None
    value = found[0].value
    # The event loop writes a grammar's text for its digest. Large bodies are read elsewhere, so it is limited here.
    text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else orjson.dumps(value)
    check_size(len(text), found[0].param)
    return found[0]


def _response_format(name: str, value: dict[str, Any]) -> Grammar | None:
    kind = value.get("type")
    if kind not in _FORMATS:
        raise InvalidRequest(f"{name}.type is {shown(kind)}; known are {', '.join(_FORMATS)}.", param=f"{name}.type")
    check_members(name, value, {"type", "json_schema"} if kind == "json_schema" else {"type"})
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_object", param=name)
    inner, path = value.get("json_schema"), f"{name}.json_schema"
    if not isinstance(inner, dict):
        raise InvalidRequest(f"{path} must be an object with name and schema, got {shown(inner)}.", param=path)
    check_members(path, inner, {"name", "description", "schema", "strict"})
    label = inner.get("name")
    if not isinstance(label, str) or not _SCHEMA_NAME.match(label):
        raise InvalidRequest(
            f"{path}.name is {shown(label)}; it must have 1 to 64 letters, digits, _ or -.", param=f"{path}.name"
        )
    if not isinstance(inner.get("description"), str | None):
        raise InvalidRequest(f"{path}.description must be a string.", param=f"{path}.description")
    if not isinstance(inner.get("strict"), bool | None):
        raise InvalidRequest(f"{path}.strict must be true or false.", param=f"{path}.strict")
    if not isinstance(inner.get("schema"), dict):
        raise InvalidRequest(
            f"{path}.schema must be a JSON schema (an object), got {shown(inner.get('schema'))}.",
            param=f"{path}.schema",
        )
    return Grammar("json_schema", inner["schema"], param=f"{path}.schema")


def _schema(name: str, value: Any) -> Grammar:
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        check_size(len(text), name)
        try:
            value = parse_json(text, noun=name)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=name) from None
    return Grammar("json_schema", value, param=name)


def _reader(kind: GrammarKind) -> Callable[[str, Any], Grammar]:
    return lambda name, value: Grammar(kind, value, param=name)


def _choice(name: str, value: list[Any]) -> Grammar:
    return Grammar("choice", tuple(value), param=name)


def _structured_outputs(name: str, value: dict[str, Any]) -> Grammar | None:
    given = {key: item for key, item in value.items() if item is not None and item is not False}
    check_members(name, given, {"json", "regex", "choice", "grammar", "json_object"})
    if len(given) != 1:
        raise InvalidRequest(
            f"{name} must have exactly one of json, regex, choice, grammar and json_object, got {len(given)} of them.",
            param=name,
        )
    ((key, item),) = given.items()
    path = f"{name}.{key}"
    if key == "json_object":
        if item is not True:
            raise InvalidRequest(f"{path} must be true or false, got {shown(item)}.", param=path)
        return Grammar("json_object", param=path)
    if key == "choice":
        if not isinstance(item, list):
            raise InvalidSamplingParams(f"{path} must be a list of strings, got {shown(item)}.", param=path)
        return _choice(path, item)
    readers: Mapping[str, Callable[[str, Any], Grammar]] = {
        "json": _schema,
        "regex": _reader("regex"),
        "grammar": _reader("lark"),
    }
    return readers[key](path, item)


_READERS: Mapping[str, Callable[[str, Any], Grammar | None]] = {
    "response_format": _response_format,
    "guided_json": _schema,
    "guided_regex": _reader("regex"),
    "guided_grammar": _reader("lark"),
    "grammar": _reader("gbnf"),
    "guided_choice": _choice,
    "structured_outputs": _structured_outputs,
}
