"""Jobs over HTTP: their life, lists, and submissions that are wrong."""

from __future__ import annotations

import pytest

from inference.jobs.claims import job_finish, jobs_claim
from inference.models import GenerationJob, JobState
from tests.inference.api.openai.test_views import finish
from tests.inference.api.test_base import CHAT, is_error
from tests.inference.rows import damage


def test_a_job_s_life_over_http(http):
    response = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT, "idempotency_key": "k"})
    assert response.status_code == 202
    (job,) = response.json()["data"]
    assert (job["state"], job["model"], job["endpoint"], job["error"]) == ("queued", "tiny", "chat", None)
    again = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT, "idempotency_key": "k"}).json()
    assert again["data"][0]["id"] == job["id"]
    other = {**CHAT, "max_tokens": 3}
    is_error(http.post("/api/jobs", json={"endpoint": "chat", "body": other, "idempotency_key": "k"}), 409, "conflict")
    is_error(http.get(f"/api/jobs/{job['id']}/result"), 409)
    finish({"id": "x"})
    assert http.get(f"/api/jobs/{job['id']}").json()["state"] == "succeeded"
    assert http.get(f"/api/jobs/{job['id']}/result").json() == {"id": "x"}
    assert http.post(f"/api/jobs/{job['id']}/cancel").json()["state"] == "succeeded"


def test_a_batch_over_http(http):
    items = [{"endpoint": "completion", "body": {"model": "tiny", "prompt": str(number)}} for number in range(4)]
    answer = http.post("/api/jobs", json={"jobs": items, "batch_label": "night"}).json()
    assert len(answer["data"]) == 4
    listed = http.get("/api/jobs", params={"batch_label": "night", "limit": 3}).json()
    assert [item["id"] for item in listed["data"]] == [item["id"] for item in answer["data"][:0:-1]]
    assert listed["has_more"] is True
    assert listed["counts"]["queued"] == 4
    rest = http.get("/api/jobs", params={"batch_label": "night", "after": listed["data"][-1]["id"]}).json()
    assert [item["id"] for item in rest["data"]] == [answer["data"][0]["id"]]
    assert rest["has_more"] is False
    cancelled = http.post(f"/api/jobs/{answer['data'][0]['id']}/cancel").json()
    assert cancelled["state"] == "cancelled"
    assert http.get("/api/jobs", params={"state": "cancelled"}).json()["data"] == [cancelled]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "endpoint"),
        ({"endpoint": "chat"}, "body"),
        ({"endpoint": "embedding", "body": {}}, "endpoint"),
        ({"endpoint": "chat", "body": {**CHAT, "temperature": 9}}, "temperature"),
        ({"endpoint": "chat", "body": {**CHAT, "stream": True}}, "stream"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [1]}, "jobs.0."),
        ({"jobs": [{"endpoint": "chat", "body": CHAT}, {"endpoint": "chat", "body": {}}]}, "jobs.1.model"),
        ({"jobs": [{"endpoint": "chat", "body": CHAT}], "endpoint": "chat"}, "endpoint"),
        ({"endpoint": "chat", "body": CHAT, "batch_label": "x" * 101}, "batch_label"),
        ({"endpoint": "chat", "body": CHAT, "idempotency_key": "a\0"}, "idempotency_key"),
        ({"endpoint": "chat", "body": CHAT, "webhook": "http://x"}, "webhook"),
    ],
)
def test_submissions_that_are_wrong(http, body, param):
    assert is_error(http.post("/api/jobs", json=body), 400)["param"] == param
    assert http.get("/api/jobs").json()["data"] == []


@pytest.mark.parametrize(
    ("query", "status"),
    [("state=x", 400), ("limit=0", 400), ("limit=501", 400), ("limit=٣", 400), ("x=1", 400), ("after=x", 404)],
)
def test_job_lists_refuse_wrong_queries(http, query, status):
    is_error(http.get(f"/api/jobs?{query}"), status)


def test_a_failed_job_gives_its_error(http):
    from inference.errors import PromptTooLong

    (job,) = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT}).json()["data"]
    (claimed,) = jobs_claim(owner="w", limit=1)
    error = PromptTooLong.of(8, 9, noun="messages")
    job_finish(key=claimed.key, fence=claimed.fence, state=JobState.FAILED, error=error)
    assert http.get(f"/api/jobs/{job['id']}").json()["error"]["code"] == "context_length_exceeded"
    is_error(http.get(f"/api/jobs/{job['id']}/result"), 400, "context_length_exceeded")


@pytest.mark.parametrize("column", ["job_id", "checkpoint_id", "created_at"])
def test_a_damaged_row_is_left_out_of_lists(http, column):
    ids = [http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT}).json()["data"][0]["id"] for _ in range(3)]
    damage(GenerationJob.objects.get(job_id=ids[1]), column, "2026-13-45 00:00:00")
    page = http.get("/api/jobs", params={"limit": 2})
    assert page.status_code == 200, page.text
    assert [job["id"] for job in page.json()["data"]] == [ids[2], ids[0]]
    assert page.json()["has_more"] is False
    is_error(http.get(f"/api/jobs/{ids[1]}"), 404)
