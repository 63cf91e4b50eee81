"""Build the OpenAPI document, and a page that shows it and loads nothing from other hosts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.template.loader import render_to_string

from blazr_site.api_examples import add_examples
from inference import consumers

_TAGS_FIRST = ("v1", "tokens", "batches", "jobs", "probes")
_METHODS = ("get", "post", "put", "patch", "delete")


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document, built once per process, because routes don't change at run time."""
    from drf_spectacular.generators import SchemaGenerator

    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    document: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    add_examples(document)
    return document


def docs_page() -> str:
    """Return the OpenAPI document as an HTML page."""
    document = openapi_document()
    groups: dict[str, list[Operation]] = {tag: [] for tag in _TAGS_FIRST}
    for operation in operations(document):
        groups.setdefault(operation.tag, []).append(operation)
    return render_to_string(
        "inference/api_docs.html",
        {"info": document["info"], "groups": groups, "websocket": inspect.cleandoc(consumers.__doc__ or "")},
    )


# --- the document as the page shows it ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a request or a response."""

    name: str
    kind: str
    is_required: bool
    text: str


@dataclass(frozen=True, slots=True)
class Response:
    """One possible response."""

    status: str
    media_type: str
    text: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    tag: str
    anchor: str
    summary: str
    text: str
    needs_key: bool
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    responses: tuple[Response, ...]
    example: str = ""


def operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    """Yield all operations of an OpenAPI document, by path."""
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method not in methods:
                continue
            found = methods[method]
            content = found.get("requestBody", {}).get("content", {})
            body: Mapping[str, Any] = next((item.get("schema", {}) for item in content.values()), {})
            summary, text = _words(found)
            yield Operation(
                method=method.upper(),
                path=path,
                tag=(found.get("tags") or ["other"])[0],
                anchor=found["operationId"],
                summary=summary,
                text=text,
                needs_key=bool(found.get("security")) and {} not in found["security"],
                parameters=tuple(_parameter(document, item) for item in found.get("parameters", ())),
                body=tuple(_fields(document, body)),
                responses=tuple(_responses(document, found.get("responses", {}))),
                example=_curl(method.upper(), path, content.get("application/json", {}).get("example")),
            )


def _words(found: Mapping[str, Any]) -> tuple[str, str]:
    """Return an operation's summary and its description, whose first line is the summary where there is none."""
    summary, text = found.get("summary", ""), found.get("description", "")
    if summary:
        return summary, text
    first, _, rest = text.partition("\n")
    return first.removesuffix("."), rest.strip()


def _curl(method: str, path: str, body: Any) -> str:
    """Return a line for the shell; ``$BLAZR`` is the server's address."""
    parts = [f"curl $BLAZR{path}" if method == "GET" else f"curl -X {method} $BLAZR{path}"]
    parts.append('-H "Authorization: Bearer $BLAZR_API_KEY"')
    if body is not None:
        text = orjson.dumps(body, option=orjson.OPT_INDENT_2).decode().replace("'", "'\\''")
        parts += ["-H 'Content-Type: application/json'", f"-d '{text}'"]
    return " \\\n  ".join(parts)


def _parameter(document: Mapping[str, Any], item: Mapping[str, Any]) -> Field:
    return Field(
        item["name"], _kind(document, item.get("schema", {})), bool(item.get("required")), item.get("description", "")
    )


def _responses(document: Mapping[str, Any], responses: Mapping[str, Any]) -> Iterator[Response]:
    for status, response in responses.items():
        content = response.get("content") or {"": {}}
        for media_type, found in content.items():
            fields = () if status[:1] in "45" else tuple(_fields(document, found.get("schema", {})))
            yield Response(status, media_type, response.get("description", ""), fields)


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Field]:
    found = _resolved(document, schema)
    required = set(found.get("required", ()))
    for name, item in found.get("properties", {}).items():
        text = " ".join(
            part for part in (item.get("description") or _resolved(document, item).get("description", ""),) if part
        )
        yield Field(name, _kind(document, item), name in required, text)


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        found: Mapping[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return _resolved(document, found)
    if len(schema.get("allOf", ())) == 1:
        return _resolved(document, schema["allOf"][0])
    return schema


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return a short description of a type, with its range."""
    if "$ref" in schema or "allOf" in schema:
        found = _resolved(document, schema)
        return _kind(document, found) if "enum" in found else "object"
    if "oneOf" in schema:
        kinds = [_kind(document, item) for item in schema["oneOf"] if "$ref" not in item or _is_shown(document, item)]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " | ".join(str(item) for item in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if low is not None:
        return f"{kind}, at least {low}"
    if "maxLength" in schema:
        return f"{kind}, at most {schema['maxLength']} characters"
    return kind


def _is_shown(document: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether a schema is shown; helper components for null and the empty string are not."""
    return _resolved(document, schema).get("enum") not in ([None], [""])
