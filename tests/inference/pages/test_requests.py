"""Ended requests."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from inference.models import UsageRecord
from inference.pages.requests import BAR_WIDTH, phases
from tests.accounts import account

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


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
    assert "chatcmpl-54" in text and "chatcmpl-3<" not in text and "?before=" in text
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


def test_phases_fill_the_bar() -> None:
    found = phases(record("a", queue_s=1.0, ttft_s=2.0))
    assert [(item["x"], item["width"]) for item in found] == [(0, 250), (250, 250), (500, 500)]
    assert sum(item["width"] for item in phases(record("b", queue_s=9.0))) <= BAR_WIDTH + 2


def test_others_stay_outside(client: Client) -> None:
    client.force_login(account("maria", "member"))
    assert client.get("/requests/").status_code == 403
