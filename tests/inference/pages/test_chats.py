"""Chats that accounts keep of the playground."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.test import Client

from inference.models import SavedChat
from inference.pages import chats
from tests.accounts import account

pytestmark = pytest.mark.django_db
CHAT = {
    "model": "demo",
    "mode": "chat",
    "system": "Be brief.",
    "params": {"temperature": 0.2},
    "texts": {"tools": "[]"},
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
    monkeypatch.setattr(chats, "MAX_CHATS", 1)
    assert put(member, uuid.uuid4(), CHAT).status_code == 200
    assert put(member, uuid.uuid4(), CHAT).status_code == 429
    large = {**CHAT, "turns": [{"role": "user", "content": "x" * chats.MAX_CHAT_BYTES}]}
    assert "at most 1048576 are kept" in put(member, SavedChat.objects.get().chat_id, large).json()["error"]["message"]
    assert put(member, uuid.uuid4(), {**CHAT, "mode": "song"}).status_code == 400


@pytest.mark.parametrize("wanted", ["nonsense", "00000000-0000-4000-8000-000000000000"])
def test_an_unknown_chat_is_not_found(member: Client, wanted: str) -> None:
    assert member.get(f"/playground/?chat={wanted}").status_code == 404


TREE = [
    {"role": "user", "content": "First", "parent": None},
    {"role": "assistant", "content": "One", "parent": 0, "model": "demo", "figures": {"ttft": 0.1}, "reason": "stop"},
    {"role": "user", "content": "Changed", "parent": None, "images": [{"name": "a.png"}]},
    {
        "role": "assistant",
        "content": "",
        "parent": 2,
        "reasoning": "Hm.",
        "tool_calls": [{"id": "c", "name": "look_up", "arguments": "{}"}],
    },
    {"role": "tool", "content": "found", "parent": 3, "tool_call_id": "c"},
]


def test_branches_and_a_second_column_are_kept(member: Client) -> None:
    key = uuid.uuid4()
    second = {"model": "other", "turns": TREE[:2]}
    assert put(member, key, {**CHAT, "turns": TREE, "leaf": 4, "second": second}).status_code == 200
    context = member.get(f"/playground/?chat={key}").context
    assert context["chat"]["turns"] == TREE
    assert context["chat"]["second"] == second
    assert [turn["content"] for turn in context["turns"]] == ["Changed", "", "found"]
    assert put(member, key, {**CHAT, "turns": TREE, "leaf": 1}).status_code == 200
    page = member.get(f"/playground/?chat={key}")
    assert [turn["content"] for turn in page.context["turns"]] == ["First", "One"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"turns": [{**TREE[0], "parent": 0}]}, "turn 0 has the parent 0"),
        ({"leaf": 2}, "there is no turn 2"),
        ({"second": {"model": "other", "turns": TREE[:2], "leaf": 7}}, "there is no turn 7"),
        ({"turns": [{**TREE[0], "images": [{"name": "a", "url": "data:image/svg+xml;base64,AA=="}]}]}, "url"),
        ({"turns": [{**TREE[0], "images": [{"name": "a", "url": "https://example.org/a.png"}]}]}, "url"),
        ({"turns": [{**TREE[0], "figures": {"ttft": "soon"}}]}, "ttft"),
    ],
)
def test_what_is_no_conversation_is_refused(member: Client, change: dict[str, Any], words: str) -> None:
    response = put(member, uuid.uuid4(), {**CHAT, **change})
    assert response.status_code == 400
    assert words in response.content.decode()
    assert not SavedChat.objects.exists()


@pytest.mark.parametrize("leaf", [None, 1, 9, "x"])
@pytest.mark.parametrize("parent", [None, 0, 1, 5, "x"])
def test_damaged_numbers_of_turns_end(leaf: Any, parent: Any) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "parent": parent}]
    assert len(chats.shown_turns({"turns": turns, "leaf": leaf})) <= 2
