"""GET /v1/usage on the wire: what a key sees of itself, what an operator sees, files; the log's contents."""

from __future__ import annotations

import csv
import io

import httpx
import pytest
from django.urls import reverse

from inference.access.api_keys import api_key_create
from inference.models import UsageDay, UsageRecord
from inference.records.usage import usage_writer
from tests.inference.api.test_base import CHAT, is_error


@pytest.fixture
def http(live_url, worker):
    usage_writer().flush()
    UsageRecord.objects.all().delete()
    UsageDay.objects.all().delete()
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def test_a_key_sees_itself_and_an_admin_all(http):
    (one, key_one), (two, key_two) = (api_key_create(name=f"=key{number}") for number in (1, 2))
    _, key_admin = api_key_create(name="boss", scopes=["admin"])
    first, second, admin = ({"Authorization": f"Bearer {key}"} for key in (key_one, key_two, key_admin))
    answers = [http.post("/v1/chat/completions", json=CHAT, headers=headers) for headers in (first, first, second)]
    assert all(answer.status_code == 200 for answer in answers)
    usage_writer().flush()

    mine = http.get("/v1/usage", headers=first).json()
    assert mine["object"] == "list"
    (row,) = mine["data"]
    assert (row["key"], row["key_name"], row["model"], row["requests"]) == (one.prefix, "=key1", "tiny", 2)
    assert (row["prompt_tokens"], row["completion_tokens"], row["total_tokens"]) == (10, 4, 14)
    assert row["engine_seconds"] >= 0
    is_error(http.get("/v1/usage", params={"key": two.prefix}, headers=first), 403, "permission_denied")
    assert http.get("/v1/usage", params={"key": one.prefix}, headers=first).json()["data"] == [row]

    found = http.get("/v1/usage", params={"group_by": "key"}, headers=admin).json()
    assert {item["key"]: item["requests"] for item in found["data"]} == {one.prefix: 2, two.prefix: 1}
    assert http.get("/v1/usage", params={"group_by": "key"}).json()["data"] == [], "without a key: its own"
    page = http.get("/v1/usage", params={"group_by": "key", "limit": 1, "offset": 1}, headers=admin).json()
    assert len(page["data"]) == 1
    assert page["has_more"] is False

    file = http.get("/v1/usage", params={"group_by": "key,model", "format": "csv"}, headers=admin)
    assert file.headers["content-type"].startswith("text/csv")
    assert "usage-" in file.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(file.text)))
    assert [(item["key_name"], item["requests"]) for item in rows] == [("'=key1", "2"), ("'=key2", "1")]


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"from": "soon"}, "from"),
        ({"group_by": "x"}, "group_by"),
        ({"format": "xml"}, "format"),
        ({"limit": "0"}, "limit"),
        ({"limit": "10001"}, "limit"),
        ({"offset": "-1"}, "offset"),
        ({"format": "csv", "limit": "5"}, "format"),
        ({"model": "a\0"}, "model"),
        ({"since": "2026-01-01"}, "since"),
    ],
)
def test_wrong_parameters_are_refused_by_name(http, parameters, param):
    assert is_error(http.get("/v1/usage", params=parameters), 400)["param"] == param


def test_contents_of_streams_are_in_the_log_only_when_it_is_switched_on(http, settings):
    body = {**CHAT, "stream": True}
    for is_on in (False, True):
        settings.BLAZR_REQUEST_LOG_CONTENTS = is_on
        assert "Hello" in http.post("/v1/chat/completions", json=body).text
        usage_writer().flush()
        record = UsageRecord.objects.latest("created_at")
        assert ("Hi" in record.prompt) is is_on
        assert ("Hello, world" in record.output) is is_on
        assert record.queue_s + record.engine_s == pytest.approx(record.duration_s)


def test_the_admin_shows_log_and_sums_and_exports_them(http, admin_client):
    http.post("/v1/chat/completions", json=CHAT)
    usage_writer().flush()
    record = UsageRecord.objects.get()
    assert record.request_id in admin_client.get(reverse("admin:inference_usagerecord_changelist")).content.decode()
    page = reverse("admin:inference_usageday_changelist")
    assert "tiny" in admin_client.get(page).content.decode()
    chosen = {"action": "export", "_selected_action": [UsageDay.objects.get().pk]}
    lines = b"".join(admin_client.post(page, chosen).streaming_content).decode().splitlines()
    assert lines[0] == "day,tenant,model,requests,prompt_tokens,cached_tokens,completion_tokens,engine_s,queue_s,joules"
    assert lines[1].split(",")[1:4] == ["local", "tiny", "1"]


def test_requests_are_logged_with_their_figures_when_asked_for(http, settings, caplog):
    caplog.set_level("INFO", logger="inference.records.request_log")
    http.post("/v1/chat/completions", json=CHAT)
    assert not caplog.records
    settings.BLAZR_LOG_REQUESTS = True
    answer = http.post("/v1/chat/completions", json=CHAT)
    (record,) = caplog.records
    assert record.facts["request_id"] == answer.json()["id"]
    assert (record.facts["model"], record.facts["outcome"], record.facts["completion_tokens"]) == (
        "tiny",
        "completed",
        2,
    )
    assert "Hi" not in record.getMessage()


def test_metrics_tell_classes_of_callers_apart(http):
    def tokens(key_class: str) -> float:
        text = http.get("/metrics").text
        start = f'blazr_key_tokens_total{{key_class="{key_class}",kind="generated",model="tiny"}} '
        return sum(float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start))

    before = tokens("local"), tokens("key")
    _, key = api_key_create(name="one")
    http.post("/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {key}"})
    assert (tokens("local"), tokens("key")) == (before[0], before[1] + 2)
    http.post("/v1/chat/completions", json=CHAT)
    assert (tokens("local"), tokens("key")) == (before[0] + 2, before[1] + 2)
