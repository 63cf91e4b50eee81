"""Chats that accounts keep."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.test import Client

from inference.models import SavedChat
from inference.pages import playground
from tests.accounts import account

pytestmark = pytest.mark.django_db
CHAT = {
    "model": "demo",
    "mode": "chat",
    "system": "Be brief.",
    "params": {"temperature": 0.2},
    "turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello </script> "}],
}


@pytest.fixture
def member(client: Client) -> Client:
    client.force_login(account("maria", "member"))
    return client


def put(client: Client, key: uuid.UUID, body: dict[str, Any]) -> Any:
    return client.put(f"/registry/chats/{key}", json.dumps(body), content_type="application/json")


def test_a_chat_is_kept_shown_changed_and_forgotten(member: Client) -> None:
    key = uuid.uuid4()
    assert put(member, key, CHAT).json() == {"id": str(key), "title": "Hi"}
    page = member.get(f"/playground/?chat={key}")
    assert page.context["chat"]["turns"] == CHAT["turns"]
    assert "</script> " not in page.content.decode().partition('id="chat"')[2].partition("</script>")[0]
    longer = {**CHAT, "turns": [*CHAT["turns"], {"role": "user", "content": "More"}]}
    assert put(member, key, longer).status_code == 200
    assert len(member.get(f"/playground/?chat={key}").context["chat"]["turns"]) == 3
    assert member.delete(f"/registry/chats/{key}").status_code == 204
    assert not SavedChat.objects.exists()


def test_a_chat_is_its_accounts_alone(member: Client) -> None:
    key = uuid.uuid4()
    put(member, key, CHAT)
    other = Client()
    other.force_login(account("mark", "member"))
    assert other.get(f"/playground/?chat={key}").status_code == 404
    assert put(other, key, CHAT).status_code == 404
    other.delete(f"/registry/chats/{key}")
    assert SavedChat.objects.count() == 1
    assert str(key) not in other.get("/playground/").content.decode()


def test_limits(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playground, "MAX_CHATS", 1)
    assert put(member, uuid.uuid4(), CHAT).status_code == 200
    assert put(member, uuid.uuid4(), CHAT).status_code == 429
    large = {**CHAT, "turns": [{"role": "user", "content": "x" * playground.MAX_CHAT_BYTES}]}
    assert "at most 1048576 are kept" in put(member, SavedChat.objects.get().chat_id, large).json()["error"]["message"]
    assert put(member, uuid.uuid4(), {**CHAT, "mode": "song"}).status_code == 400


@pytest.mark.parametrize("wanted", ["nonsense", "00000000-0000-4000-8000-000000000000"])
def test_an_unknown_chat_is_not_found(member: Client, wanted: str) -> None:
    assert member.get(f"/playground/?chat={wanted}").status_code == 404
