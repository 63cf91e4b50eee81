"""Example bodies for the OpenAPI document, so that each endpoint with a JSON body can be tried as it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL = "demo"
_CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is a module?"}], "max_tokens": 64}
EXAMPLES: dict[str, Any] = {
    "chat_completions_create": _CHAT,
    "completions_create": {"model": MODEL, "prompt": "The statement", "max_tokens": 32},
    "embeddings_create": {"model": MODEL, "input": ["first text", "second text"]},
    "responses_create": {"model": MODEL, "input": "What is a module?", "max_output_tokens": 64},
    "responses_input_tokens": {"model": MODEL, "input": "What is a module?"},
    "messages_create": {
        "model": MODEL,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "What is a module?"}],
    },
    "messages_count_tokens": {"model": MODEL, "messages": [{"role": "user", "content": "What is a module?"}]},
    "rerank": {"model": MODEL, "query": "modules", "documents": ["A module is a file.", "Rain falls."]},
    "jobs_submit": {"endpoint": "completion", "body": {"model": MODEL, "prompt": "The statement", "max_tokens": 32}},
    "batches_create": {"input_file_id": "file-…", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    "batch_schedules_create": {
        "cron": "0 3 * * *",
        "request": {"input_file_id": "file-…", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    },
    "keys_create": {"name": "my program", "scopes": ["generate", "models"], "requests_per_minute": 60},
    "tokenize": {"model": MODEL, "prompt": "What is a module?"},
    "detokenize": {"model": MODEL, "tokens": [1, 2, 3]},
    "apply_template": {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]},
    "infill": {"model": MODEL, "input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "n_predict": 16},
    "states_create": {"model": MODEL, "name": "my-state", "prompt": "A long text that later requests go on from"},
    "ollama_chat": {"model": MODEL, "messages": [{"role": "user", "content": "What is a module?"}], "stream": False},
    "ollama_generate": {"model": MODEL, "prompt": "The statement", "stream": False},
    "ollama_embed": {"model": MODEL, "input": "a text"},
    "ollama_embeddings": {"model": MODEL, "prompt": "a text"},
    "ollama_show": {"model": MODEL},
    "ollama_pull": {"model": "owner/name"},
    "ollama_copy": {"source": MODEL, "destination": "copy"},
    "models_pin": {"pinned": True},
    "alias_promote": {"checkpoint": MODEL},
}
"""By operationId; other operations get one of their required members."""
_METHODS = ("post", "put", "patch", "delete")


def add_examples(document: dict[str, Any]) -> None:
    """Write an example into each JSON body of an OpenAPI document."""
    for methods in document["paths"].values():
        for method in _METHODS:
            operation = methods.get(method)
            content = (operation or {}).get("requestBody", {}).get("content", {}).get("application/json")
            if operation is None or content is None or "example" in content or "examples" in content:
                continue
            found = EXAMPLES.get(operation["operationId"])
            content["example"] = found if found is not None else example_of(document, content.get("schema", {}))


def example_of(document: Mapping[str, Any], schema: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a value that has a schema's required members, each as small as its kind allows."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for key in ("allOf", "oneOf", "anyOf"):
        if schema.get(key):
            return example_of(document, schema[key][0], depth)
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "array":
        return [example_of(document, schema.get("items", {}), depth + 1)] if depth < 3 else []
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    if kind == "boolean":
        return True
    if kind == "string":
        return "text"
    members = schema.get("properties", {})
    required = schema.get("required", ())
    return {name: example_of(document, members[name], depth + 1) for name in required if name in members}
