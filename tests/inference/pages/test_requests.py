"""Requests that run, and those that have ended."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.errors import Unavailable
from inference.models import UsageRecord
from inference.pages import requests
from inference.records.request_log import CUT_MARK
from inference.serving.running_requests import RunningRequest
from inference.values.queue_place import QueuePlace
from tests.accounts import account
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"
ELSEWHERE = str(uuid.UUID(int=1))
"""A model that is gone."""


def record(name: str, **values: object) -> UsageRecord:
    fixed = {"tenant": "local", "endpoint": "chat", "model": "demo", "outcome": "completed", "duration_s": 4.0}
    return UsageRecord.objects.create(request_id=name, created_at=timezone.now(), **{**fixed, **values})


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(account("edwin", "operator"))
    return client


def test_the_list_is_searched_filtered_and_paged(operator: Client) -> None:
    for number in range(55):
        record(f"chatcmpl-{number}", outcome="prompt_too_long" if number == 3 else "completed")
    text = operator.get("/requests/").content.decode()
    assert "chatcmpl-54" in text and "chatcmpl-3<" not in text and "?before=" in text and "Prompt tokens</th>" in text
    assert "chatcmpl-3<" in operator.get("/requests/?outcome=failed").content.decode()
    assert operator.get("/requests/?q=chatcmpl-7").content.decode().count("chatcmpl-") >= 1
    assert "No request matches" in operator.get("/requests/?q=nothing%00").content.decode()


def test_one_request_says_where_its_time_went(operator: Client) -> None:
    record("chatcmpl-1", queue_s=1.0, ttft_s=2.0, prompt_tokens=10, cached_tokens=5, completion_tokens=21,
           prompt=HOSTILE, output="fine")  # fmt: skip
    text = operator.get("/requests/chatcmpl-1/").content.decode()
    for piece in ("1.0 s", "2.0 s", "10.0 a second", "50 %", "&lt;script&gt;"):
        assert piece in text, piece
    assert HOSTILE not in text
    assert operator.get("/requests/unknown/").status_code == 404


def test_contents_are_shown_as_texts(operator: Client) -> None:
    prompts = [
        {"messages": [{"role": "user", "content": "Why?\nAnd how?"}]}, {"text": "Once\ud800"}, {"token_ids": [7, 9]}
    ]  # fmt: skip
    record("chatcmpl-1", prompt=json.dumps(prompts), output=json.dumps(["So.\nThus.\udfff", ""]))
    response = operator.get("/requests/chatcmpl-1/")
    assert response.context["prompts"] == ["[user]\nWhy?\nAnd how?", "Once?", "7, 9"]
    text = response.content.decode()
    for piece in ("Prompt 3", "And how?</pre>", "Output 2", "So.\nThus.?</pre>", "(empty)</pre>"):
        assert piece in text, piece


@pytest.mark.parametrize("text", ["not JSON", '["a text"]', '{"a": 1}', "[1]", f'[{{"text": "Onc{CUT_MARK}'])
def test_contents_that_were_cut_or_damaged_are_shown_as_they_were_kept(operator: Client, text: str) -> None:
    record("chatcmpl-1", prompt=text, output=text)
    assert operator.get("/requests/chatcmpl-1/").context["prompts"] == [text]


@pytest.mark.parametrize("duration_s", [0.5, 4.0])
def test_one_request_says_why_the_cache_missed(operator: Client, duration_s: float) -> None:
    record("chatcmpl-1", cache_outcome="evicted", prompt_tokens=10, duration_s=duration_s)
    text = operator.get("/requests/chatcmpl-1/").content.decode()
    assert "had to make room. A larger BLAZR_CACHE_BYTES keeps more." in text
    assert ("That took" in text) == (duration_s > 1)
    record("chatcmpl-2", duration_s=0.5)
    other = operator.get("/requests/chatcmpl-2/").content.decode()
    assert '<p class="note">' not in other and '<p class="note warn">' not in other


def waiting(**values: Any) -> RunningRequest:
    return RunningRequest("chatcmpl-9", ELSEWHERE, "local", "waiting", parts=("chatcmpl-9",), **values)


@pytest.fixture
def unended(monkeypatch: pytest.MonkeyPatch) -> list[RunningRequest]:
    """What runs and waits, as the page finds it."""
    found: list[RunningRequest] = []

    async def unended_requests() -> list[RunningRequest]:
        return found

    monkeypatch.setattr(requests, "unended_requests", unended_requests)
    return found


def test_running_and_waiting_requests_are_shown_with_their_place(
    operator: Client, unended: list[RunningRequest]
) -> None:
    unended += [
        RunningRequest("chatcmpl-1", str(make_checkpoint("tiny").pk), "local", "running", tokens=7, received_at=1.0),
        waiting(place=QueuePlace(3, "capacity", 4.2)),
        RunningRequest("job-abc", ELSEWHERE, "local", "waiting", received_at=1.0),
    ]
    text = operator.get("/requests/").content.decode()
    for piece in ("number 3 in the queue, about 4 s", "chatcmpl-1", "tiny", "not yet"):
        assert piece in text, piece
    assert text.count("/cancel/") == 2  # a job's attempt would be tried again


def test_a_region_is_drawn_without_what_the_others_need(
    operator: Client, unended: list[RunningRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    record("chatcmpl-ended")
    unended.append(waiting())
    whole = operator.get("/requests/", headers={"hx-target": "elsewhere"}).content.decode()
    assert all(piece in whole for piece in ("chatcmpl-ended", "chatcmpl-9", "Replays", '<option value="demo">'))

    def unread(*args: Any, **values: Any) -> None:
        raise AssertionError("not needed")

    for name in ("replay_list", "replay_targets"):
        monkeypatch.setattr(requests, name, unread)
    with CaptureQueriesContext(connection) as queries:
        text = operator.get("/requests/", headers={"hx-target": "running-region"}).content.decode()
    assert "chatcmpl-9" in text and 'id="running-region"' in text and "chatcmpl-ended" not in text
    assert UsageRecord._meta.db_table not in "".join(query["sql"] for query in queries)
    monkeypatch.setattr(requests, "unended_requests", unread)
    text = operator.get("/requests/?q=demo", headers={"hx-target": "ended-region"}).content.decode()
    assert "chatcmpl-ended" in text and 'id="ended-region"' in text and "chatcmpl-9" not in text


def test_without_workers_the_page_says_why(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unended_requests() -> list[RunningRequest]:
        raise Unavailable("Redis is away.")

    monkeypatch.setattr(requests, "unended_requests", unended_requests)
    assert "Redis is away." in operator.get("/requests/").content.decode()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (QueuePlace(1, "worker"), "waits for a worker"),
        (QueuePlace(1, "load", 0.2, 0.2), "waits for the load of its model, about 1 s"),
        (QueuePlace(1, "swap", None, None, "other"), "waits until other is unloaded"),
        (QueuePlace(2, "capacity"), "number 2 in the queue"),
    ],
)
def test_a_place_is_put_into_words(place: QueuePlace, words: str) -> None:
    assert requests.place_words(place) == words


def test_a_request_is_cancelled_by_those_who_may(
    client: Client, operator: Client, unended: list[RunningRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []

    async def request_cancel(request: RunningRequest) -> None:
        cancelled.append(request.request_id)

    monkeypatch.setattr(requests, "request_cancel", request_cancel)
    unended.append(waiting())
    assert operator.post("/requests/chatcmpl-9/cancel/").status_code == 302
    assert operator.post("/requests/unknown/cancel/").status_code == 302
    assert cancelled == ["chatcmpl-9"]
    viewer = account("vera")
    viewer.user_permissions.add(Permission.objects.get(codename="view_usagerecord"))
    client.force_login(viewer)
    text = client.get("/requests/").content.decode()
    assert "chatcmpl-9" in text and "/cancel/" not in text and "Replays" not in text
    assert client.post("/requests/chatcmpl-9/cancel/").status_code == 403


def test_others_stay_outside(client: Client) -> None:
    client.force_login(account("maria", "member"))
    assert client.get("/requests/").status_code == 403
