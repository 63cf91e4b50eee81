"""Checking a chat template over HTTP, and setting it as the override that it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client

from models_registry import services
from models_registry.models import Checkpoint

pytestmark = pytest.mark.django_db

GOOD = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}> {% endif %}"


@pytest.fixture
def base(hybrid: Path) -> str:
    return f"/registry/checkpoints/{services.checkpoint_register(path=hybrid).pk}"


def send(browser: Client, path: str, body: object):
    return browser.post(path, body, content_type="application/json")


def test_a_preview_shows_problems_and_conversation_and_sets_nothing(browser: Client, base: str) -> None:
    answer = send(browser, f"{base}/chat-template/preview", {"template": GOOD})
    assert answer.status_code == 200
    assert answer.json()["problems"] == []
    assert answer.json()["preview"].startswith("[system] You are a ship's navigator.")
    answer = send(browser, f"{base}/chat-template/preview", {"template": "{% if %}"}).json()
    assert (answer["preview"], answer["problems"][0]["level"]) == (None, "error")
    assert Checkpoint.objects.get().inspection["tokenizer"]["chat_template"] is None


@pytest.mark.parametrize(
    "body", [{}, {"template": ""}, {"template": 5, "x": 1}, [], {"template": "x" * (256 * 1024 + 1)}]
)
def test_wrong_bodies_are_refused(browser: Client, base: str, body: object) -> None:
    answer = send(browser, f"{base}/chat-template/preview", body)
    assert answer.status_code == 400 or answer.json()["preview"] is not None


def test_an_override_is_shown_short_in_the_history(browser: Client, base: str) -> None:
    answer = send(browser, f"{base}/overrides", {"fact": "chat_template", "value": GOOD + "{# " + "x" * 500 + " #}"})
    assert answer.status_code == 200
    (row,) = answer.json()["overrides"]
    assert row["author_name"] == "vera"
    assert len(row["value"]) < 250 and row["value"].endswith("characters)")
    wrong = send(browser, f"{base}/overrides", {"fact": "chat_template", "value": "{{ lipsum() }}"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "chat_template")
    assert "lipsum() isn't given" in wrong.json()["error"]["message"]
    assert browser.delete(f"{base}/overrides/chat_template").status_code == 200
    assert Checkpoint.objects.get().inspection["tokenizer"]["chat_template"] is None


def test_an_upload_with_a_broken_template_is_refused_before_its_bytes(browser: Client, storage_dirs: Path) -> None:
    body = {"label": "a", "files": [{"name": "model.safetensors", "size_bytes": 100}]}
    wrong = send(browser, "/registry/uploads", body | {"overrides": {"chat_template": "{% if %}"}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "chat_template")
    right = send(browser, "/registry/uploads", body | {"overrides": {"chat_template": GOOD}})
    assert right.status_code == 201
