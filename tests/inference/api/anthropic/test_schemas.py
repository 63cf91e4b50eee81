"""Shapes of Anthropic's endpoints in the OpenAPI document have the members of the real responses."""

from __future__ import annotations

from inference.api.anthropic.schemas import (
    ContentBlockSerializer,
    MessageErrorSerializer,
    MessageResponseSerializer,
    MessageUsageSerializer,
    TokenCountSerializer,
)
from tests.inference.api.openai.test_views import documented_answer

BODY = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}


def test_a_message_has_exactly_the_documented_members(http):
    body = http.post("/v1/messages", json=BODY).json()
    assert set(body) == set(MessageResponseSerializer().fields)
    assert set(body["usage"]) == set(MessageUsageSerializer().fields)
    assert all(set(block) <= set(ContentBlockSerializer().fields) for block in body["content"])
    assert MessageResponseSerializer(data=body).is_valid()
    assert not MessageResponseSerializer(data={**body, "stop_reason": "done"}).is_valid()


def test_a_count_has_exactly_the_documented_members(http):
    body = {name: BODY[name] for name in ("model", "messages")}
    found = http.post("/v1/messages/count_tokens", json=body).json()
    assert set(found) == set(TokenCountSerializer().fields)
    assert TokenCountSerializer(data=found).is_valid()


def test_every_documented_error_has_anthropics_shape(document, http):
    unknown = {**BODY, "model": "missing"}
    counted = {name: unknown[name] for name in ("model", "messages")}
    for path, body in (("/v1/messages", unknown), ("/v1/messages/count_tokens", counted)):
        responses = document["paths"][path]["post"]["responses"]
        errors = [found for status, found in responses.items() if status[0] in "45"]
        assert len(errors) > 5
        for found in errors:
            assert found["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/MessageError"}
        refused = http.post(path, json=body)
        assert refused.status_code == 404
        assert MessageErrorSerializer(data=refused.json()).is_valid()
        documented_answer(document, path, "post", refused)
