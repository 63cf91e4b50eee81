"""Probes, metrics, tokenizers, jobs over HTTP, and the OpenAPI document against real answers."""

from __future__ import annotations

import re
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from inference.jobs.claims import job_finish, jobs_claim
from inference.models import JobState

# --- probes ------------------------------------------------------------------------------------


def samples(http: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = http.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# --- tokenizers --------------------------------------------------------------------------------


# --- jobs --------------------------------------------------------------------------------------


def finish(result: dict[str, Any]) -> None:
    (job,) = jobs_claim(owner="w", limit=1)
    assert job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result=result)


# --- the document ------------------------------------------------------------------------------


def test_schema_has_no_warnings(capsys):
    from django.core.management import call_command

    call_command("spectacular", "--validate", "--fail-on-warn", "--file", "/dev/null", urlconf="inference.api.urls")


def test_document_names_every_endpoint(document, http):
    assert http.get("/schema").json() == http.get("/openapi.json").json() == document
    paths = document["paths"]
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/api/jobs", "/readyz"):
        assert path in paths
    assert paths["/v1/completions"]["post"]["security"] == [{"ApiKey": []}]
    body = document["components"]["schemas"]["ChatRequestRequest"]["properties"]
    assert body["temperature"]["maximum"] == 2
    assert "min_p" in body


def test_docs_page_needs_nothing_from_elsewhere(http):
    page = http.get("/docs")
    assert page.status_code == 200
    assert "/v1/chat/completions" in page.text
    assert "/v1/stream" in page.text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page.text)
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page.text, re.DOTALL)
    assert scripts and all('src="/static/' in attributes and not content for attributes, content in scripts)


def matches(document: dict[str, Any], schema: dict[str, Any], value: Any, where: str = "answer") -> None:
    """Check a value against the subset of OpenAPI 3.0 that the document uses; objects have no extra members."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return matches(document, schema, value, where)
    if value is None and schema.get("nullable"):
        return None
    if "allOf" in schema:
        return [matches(document, item, value, where) for item in schema["allOf"]] and None
    if "oneOf" in schema:
        errors = []
        for item in schema["oneOf"]:
            try:
                return matches(document, item, value, where)
            except AssertionError as error:
                errors.append(error)
        raise AssertionError(f"{where}: {errors}")
    if "enum" in schema:
        assert value in schema["enum"], where
        return None
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), where
    kind = schema.get("type")
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    if kind is not None:
        assert isinstance(value, types[kind]), f"{where} is {value!r}, not {kind}"
        assert kind == "boolean" or not isinstance(value, bool), where
    if kind == "array":
        for number, item in enumerate(value):
            matches(document, schema["items"], item, f"{where}[{number}]")
    if kind == "object" and "properties" in schema:
        missing = set(schema.get("required", ())) - set(value)
        assert not missing, f"{where} lacks {missing}"
        for name, item in value.items():
            assert name in schema["properties"], f"{where}.{name} is not documented"
            matches(document, schema["properties"][name], item, f"{where}.{name}")
    elif kind == "object":
        for name, item in value.items():
            matches(document, schema.get("additionalProperties") or {}, item, f"{where}.{name}")
    return None


def documented_answer(document: dict[str, Any], path: str, method: str, response: httpx.Response) -> None:
    operation = document["paths"][path][method]
    assert str(response.status_code) in operation["responses"], f"{method} {path}: {response.status_code}"
    schema = operation["responses"][str(response.status_code)]["content"]["application/json"]["schema"]
    matches(document, schema, response.json(), f"{method} {path}")
