"""Shapes of /v1/responses in the OpenAPI document have the members of the real responses."""

from __future__ import annotations

from inference.api.responses.schemas import (
    InputTokensSerializer,
    ResponseDeletedSerializer,
    ResponseItemListSerializer,
    ResponseItemSerializer,
    ResponseSerializer,
    ResponseTokensDetailsSerializer,
    ResponseUsageSerializer,
)

BODY = {"model": "tiny", "input": "Hi"}


def test_a_response_has_exactly_the_documented_members(http):
    body = http.post("/v1/responses", json=BODY).json()
    assert set(body) | {"state"} == set(ResponseSerializer().fields), "state: of a conversation behind a saved state"
    assert set(body["usage"]) == set(ResponseUsageSerializer().fields)
    details = set(ResponseTokensDetailsSerializer().fields)
    assert set(body["usage"]["input_tokens_details"]) | {"cache_miss_reason"} == details
    assert all(set(item) <= set(ResponseItemSerializer().fields) for item in body["output"])
    found = ResponseSerializer(data=body)
    assert found.is_valid(), found.errors
    assert not ResponseSerializer(data={**body, "status": "done"}).is_valid()


def test_items_of_other_kinds_need_no_role():
    call = {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
    }
    assert ResponseItemSerializer(data=call).is_valid()
    assert not ResponseItemSerializer(data={**call, "type": "picture"}).is_valid()
    assert not ResponseItemSerializer(data={**call, "role": "tool"}).is_valid()


def test_pages_counts_and_deletions_have_exactly_the_documented_members(http):
    path = f"/v1/responses/{http.post('/v1/responses', json=BODY).json()['id']}"
    for found, serializer in (
        (http.get(f"{path}/input_items"), ResponseItemListSerializer),
        (http.post("/v1/responses/input_tokens", json=BODY), InputTokensSerializer),
        (http.delete(path), ResponseDeletedSerializer),
    ):
        assert set(found.json()) == set(serializer().fields)
        assert serializer(data=found.json()).is_valid()
