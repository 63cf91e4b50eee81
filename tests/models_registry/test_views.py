"""Pages: the door, what they show, and that text of others stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client

from models_registry import services
from models_registry.model_page import TABS
from models_registry.models import Checkpoint, PullJob
from tests.accounts import account

pytestmark = pytest.mark.django_db

PAGES = ["/", "/models/", "/models/upload/", "/playground/", "/jobs/"]
CHANGES = ("load", "quantise", "override", "template-form", "settings", "rename", "refresh", "delete")
"""Elements of a model's page, by their ids."""
HOSTILE = "<script>alert(1)</script>{{1234*1234}}{% now %}'\"&"


@pytest.mark.parametrize("path", [*PAGES, "/models/00000000-0000-4000-8000-000000000000/"])
def test_pages_lead_strangers_to_the_door(path: str, client: Client) -> None:
    response = client.get(path)
    assert (response.status_code, response["Location"]) == (302, f"/login/?next={path}")
    client.force_login(User.objects.create_user("reader", password="x"))
    assert client.get(path)["Location"].startswith("/login/")


def test_signing_in_and_out(staff: User) -> None:
    client = Client(enforce_csrf_checks=True)
    page = client.get("/login/?next=/models/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.content.decode()).group(1)
    form = {"username": "vera", "password": "rotation-curve", "next": "/models/", "csrfmiddlewaretoken": token}
    wrong = client.post("/login/", form | {"password": "dark"})
    assert (wrong.status_code, b'role="alert"' in wrong.content) == (200, True)
    assert client.post("/login/", {**form, "csrfmiddlewaretoken": "x" * 32}).status_code == 403
    assert client.post("/login/", form)["Location"] == "/models/"
    assert client.get("/models/").status_code == 200
    assert client.get("/logout/").status_code == 405
    token = client.cookies["csrftoken"].value
    assert client.post("/logout/", {"csrfmiddlewaretoken": token})["Location"] == "/login/"
    assert client.get("/models/").status_code == 302


def test_signing_in_leads_nowhere_else(staff: User, client: Client) -> None:
    form = {"username": "vera", "password": "rotation-curve", "next": "https://elsewhere.example/"}
    assert client.post("/login/", form)["Location"] == "/"


def test_accounts_that_are_not_staff_stay_outside(client: Client) -> None:
    User.objects.create_user("reader", password="spectrum")
    assert client.post("/login/", {"username": "reader", "password": "spectrum"}).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_pages_answer_and_load_nothing_from_elsewhere(path: str, browser: Client) -> None:
    response = browser.get(path)
    text = response.content.decode()
    assert response.status_code == 200
    policy = response["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", text)
    assert not re.search(r"\son\w+=", text)
    assert not re.search(r"<style|\sstyle=", text)
    for asset in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
        assert browser.get(asset).status_code == 200, asset


def test_the_model_page_shows_what_is_known(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_override_set(checkpoint=row, fact="max_seq_len", value=96)
    text = "".join(browser.get(f"/models/{row.pk}/?tab={tab}").content.decode() for tab in TABS)
    for piece in (
        "1 × mamba2, 1 × mla+moe, 1 × attention+mlp",
        'data-level="override"',
        "Clear the override of",
        "96 tokens",
    ):
        assert piece in text, piece


def test_errors_have_pages_with_a_way_back(browser: Client) -> None:
    for path in ("/models/00000000-0000-4000-8000-000000000000/", "/nowhere"):
        response = browser.get(path)
        assert response.status_code == 404
        assert "Nothing is here" in response.content.decode()
        assert 'href="/"' in response.content.decode()
    for name, words in (("400.html", "was refused"), ("500.html", "went wrong")):  # rendered without a request
        assert words in render_to_string(name)


def test_jobs_and_playground_say_that_there_is_no_model(browser: Client) -> None:
    assert "no model yet that could run a job" in browser.get("/jobs/").content.decode()
    assert "There is no model to try yet" in browser.get("/playground/").content.decode()


def test_text_of_others_is_escaped(browser: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid)
    inspection = Checkpoint.objects.get().inspection
    inspection["warnings"] = [HOSTILE]
    inspection["facts"][0] |= {"value": HOSTILE, "evidence": HOSTILE}
    Checkpoint.objects.update(
        inspection=inspection, architecture=HOSTILE, path=HOSTILE, origin=HOSTILE, state="refused", state_reason=HOSTILE
    )
    for path in (*(f"/models/{row.pk}/?tab={tab}" for tab in TABS), "/models/", "/"):
        text = browser.get(path).content.decode()
        assert "<script>alert" not in text, path
        assert "1522756" not in text, path
    assert "&lt;script&gt;alert(1)" in browser.get(f"/models/{row.pk}/").content.decode()


def test_the_playground_knows_what_each_model_can_do(browser: Client, hybrid: Path) -> None:
    services.checkpoint_register(path=hybrid)
    text = browser.get("/playground/").content.decode()
    models = json.loads(re.search(r'id="models" type="application/json">(.*?)</script>', text).group(1))
    names = ("has_text", "has_chat", "has_vision", "has_effort")
    abilities = dict.fromkeys(names, False)
    assert models == [
        {"name": "tiny-hybrid", "kind": "Models", "base": "tiny-hybrid", "context": 128, "sampling": {}, **abilities}
    ]


def test_the_admin_lists_and_never_writes(hybrid: Path, admin_client: Client) -> None:
    row = services.checkpoint_register(path=hybrid)
    services.checkpoint_override_set(checkpoint=row, fact="max_seq_len", value=96)
    base = "/admin/models_registry/checkpoint/"
    assert b"tiny-hybrid" in admin_client.get(base).content
    assert b"blazr admin" in admin_client.get(base).content
    assert admin_client.get(f"{base}{row.pk}/change/").status_code == 200
    assert admin_client.get(f"{base}add/").status_code == 403
    assert admin_client.post(f"{base}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Checkpoint.objects.exists()


@pytest.mark.parametrize(
    ("role", "shown", "hidden"),
    [
        ("viewer", (), (*CHANGES, "playground", "jobs", "upload")),
        ("member", ("playground", "jobs"), (*CHANGES, "upload")),
        ("operator", (*CHANGES, "playground", "jobs", "upload"), ()),
    ],
)
def test_pages_show_what_a_role_may_do(
    role: str, shown: tuple[str, ...], hidden: tuple[str, ...], hybrid, client
) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="tiny")
    client.force_login(account(role, role))
    pages = ["/", "/models/", *(f"/models/{row.pk}/?tab={tab}" for tab in TABS)]
    text = "".join(client.get(path).content.decode() for path in pages)
    marks = {name: f'href="/{name}/"' for name in ("playground", "jobs")} | {"upload": 'href="/models/upload/"'}
    for name in (*shown, *hidden):
        assert (marks.get(name, f'id="{name}"') in text) is (name in shown), name


def test_an_account_without_a_role_is_told_whom_to_ask(client: Client) -> None:
    client.force_login(account("nobody"))
    response = client.get("/")
    assert response.status_code == 403
    assert "The owner of this server gives accounts the role" in response.content.decode()


def test_an_account_without_a_role_deletes_no_model(client: Client, hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="tiny")
    client.force_login(account("nobody"))
    assert client.delete(f"/registry/checkpoints/{row.pk}").status_code == 403
    assert Checkpoint.objects.filter(pk=row.pk).exists()


def test_the_page_of_pulls_says_what_is_allowed_and_what_runs(client: Client, staff: User, settings) -> None:
    client.force_login(staff)
    rows = {
        "running": {"fetched_bytes": 1 << 20, "size_bytes": 4 << 20, "bytes_per_s": 1 << 19, "file": HOSTILE},
        "failed": {"state": "failed", "reason": HOSTILE},
        "done": {"state": "done"},
        "cancelled": {"state": "cancelled", "size_bytes": 10},
    }
    for name, values in rows.items():
        PullJob.objects.create(origin=f"org/{name}", active_at="2026-01-01T00:00:00Z", **values)
    settings.BLAZR_MAX_PULLS = 0
    text = client.get("/models/upload/").content.decode()
    assert "BLAZR_MAX_PULLS" in text and 'id="hub-form"' not in text and "data-go-on" not in text
    settings.BLAZR_MAX_PULLS = 2
    text = client.get("/models/upload/").content.decode()
    assert 'id="hub-form"' in text and text.count("data-go-on") == 2 and text.count("data-delete-url") == 1
    for words in ("1.0 MiB of 4.0 MiB", "512.0 KiB/s", "6.0 s left", "0 B of 10 B had come"):
        assert words in text
    assert "<script>alert" not in text
    part = client.get("/models/upload/", headers={"HX-Target": "pulls"}).content.decode()
    assert "org/running" in part and "models--" not in part
