"""The rules of keys at every endpoint that computes: models, scopes, limits, usage, idempotency."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
import redis

from inference.access.api_keys import api_key_create
from inference.models import ApiKey, Batch, StoredFile, UsageRecord
from inference.records.usage import usage_writer
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from tests.inference.api.openai.test_embeddings import embed
from tests.inference.rows import make_checkpoint

MESSAGES = [{"role": "user", "content": "Hi"}]
GENERATING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "tiny", "prompt": "a"},
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES},
    "/v1/responses": {"model": "tiny", "input": "Hi"},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 9},
    "/v1/embeddings": {"model": "tiny", "input": "a"},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "a", "stream": False},
}


@pytest.fixture
def http(live_url, worker, redis_server):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found
    client = redis.Redis.from_url(redis_server.client)
    for pattern in ("limit", "open", "lines", "idem"):
        for key in client.scan_iter(f"{redis_keys.PREFIX}{pattern}:*"):
            client.delete(key)
    client.close()


def bearer(**rules: Any) -> dict[str, str]:
    _, key = api_key_create(name="test", **rules)
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", GENERATING)
def test_keys_are_held_to_their_rules_at_every_endpoint(http, worker, path):
    body = GENERATING[path]
    if path == "/v1/embeddings":
        worker.script = embed
    make_checkpoint("other")
    for rules in ({"models": ["other"]}, {"scopes": ["files", "models"]}):
        refused = http.post(path, json=body, headers=bearer(**rules))
        assert refused.status_code == 403, refused.text
        assert "API key" in refused.text

    headers = bearer(limits=KeyLimits(requests=2), models=["tiny"])
    key = ApiKey.objects.latest("pk")
    first = http.post(path, json=body, headers={**headers, "Idempotency-Key": "a"})
    assert first.status_code == 200, first.text
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    again = http.post(path, json=body, headers={**headers, "Idempotency-Key": "a"})
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert http.post(path, json=body, headers=headers).status_code == 200
    refused = http.post(path, json=body, headers=headers)
    assert refused.status_code == 429, refused.text
    assert int(refused.headers["retry-after"]) >= 1
    assert len(worker.messages) == 2
    usage_writer().flush()
    assert UsageRecord.objects.filter(tenant=f"key:{key.pk}", model="tiny").count() == 2


def test_a_file_is_uploaded_once_whatever_the_boundary_of_its_form(http, settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"

    def upload(content: bytes, boundary: str) -> httpx.Response:
        headers = {"Idempotency-Key": "f", "Content-Type": f"multipart/form-data; boundary={boundary}"}
        file = {"file": ("in.jsonl", io.BytesIO(content))}
        return http.post("/v1/files", files=file, data={"purpose": "batch"}, headers=headers)

    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "a"}}\n'
    large = line * 20_000  # beyond what stays in memory
    first = upload(large, "one")
    assert first.status_code == 200, first.text
    again = upload(large, "another-one")
    assert again.json() == first.json()
    assert StoredFile.objects.count() == 1
    assert http.get(f"/v1/files/{first.json()['id']}/content").content == large
    assert upload(line, "one").status_code == 422

    body = {"input_file_id": first.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    made = [http.post("/v1/batches", json=body, headers={"Idempotency-Key": "b"}).json()["id"] for _ in range(2)]
    assert made[0] == made[1]
    assert Batch.objects.count() == 1
    Batch.objects.all().delete()
    assert http.delete(f"/v1/files/{first.json()['id']}").status_code == 200
