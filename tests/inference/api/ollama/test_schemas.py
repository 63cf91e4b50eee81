"""Ollama's routes in the OpenAPI document: every error has Ollama's shape."""

from __future__ import annotations

import re

from blazr_site.api_docs import openapi_document
from inference.api.ollama.urls import urlpatterns

OLLAMA_ERROR = {"$ref": "#/components/schemas/OllamaError"}


def test_every_error_of_every_ollama_route_has_ollama_s_shape():
    document = openapi_document()
    paths = {re.sub(r"<\w+:(\w+)>", r"{\1}", f"/{pattern.pattern}") for pattern in urlpatterns}
    checked = 0
    for path in paths:
        for operation in document["paths"][path].values():
            errors = {status: found for status, found in operation["responses"].items() if status[0] in "45"}
            assert "401" in errors, path
            for status, found in errors.items():
                assert found["content"] == {"application/json": {"schema": OLLAMA_ERROR}}, (path, status)
                checked += 1
    assert checked > 60
    shape = document["components"]["schemas"]["OllamaError"]
    assert shape["properties"]["error"]["type"] == "string"
    assert shape["required"] == ["error"]


def test_errors_of_other_routes_keep_openai_s_shape():
    for path in ("/v1/chat/completions", "/api/jobs"):
        for status, found in openapi_document()["paths"][path]["post"]["responses"].items():
            if status[0] in "45":
                assert found["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}, path
