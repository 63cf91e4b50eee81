"""The form of a path on the server: its report, its refusals, and who may use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client

from models_registry.models import Checkpoint
from tests.accounts import account

pytestmark = pytest.mark.django_db


@pytest.fixture
def allowed(hybrid: Path, settings) -> Path:
    settings.BLAZR_MODELS = []
    settings.BLAZR_WATCHED_DIRECTORIES = [str(hybrid.parent)]
    return hybrid


def test_a_path_is_inspected_and_then_registered(browser: Client, allowed: Path) -> None:
    assert str(allowed.parent) in browser.get("/models/upload/").content.decode()
    response = browser.post("/models/path/", {"path": str(allowed), "fact": "max_position_embeddings", "value": "96"})
    text = response.content.decode()
    for piece in ("It can be served:", "context of 96 tokens", "max_position_embeddings = 96", "facts with their evi"):
        assert piece in text, piece
    assert Checkpoint.objects.count() == 0
    fields = dict(re.findall(r'name="(path|set)" value="([^"]*)"', text[text.index("by-path-register") :]))
    fields = {name: value.replace("&quot;", '"') for name, value in fields.items()}
    response = browser.post("/models/path/", {**fields, "name": "found", "register": "1"})
    row = Checkpoint.objects.get()
    assert (row.served_model_name, row.path, row.max_position_embeddings) == ("found", str(allowed), 96)
    assert row.overrides.get().author_name == "vera"
    assert response["Location"] == f"/models/{row.pk}/"
    text = browser.post("/models/path/", {"path": str(allowed)}).content.decode()
    assert "is registered already, as" in text
    assert "by-path-register" not in text
    assert browser.post("/models/path/", {"path": str(allowed), "register": "1"}).status_code == 409


def test_refusals_stand_in_the_form(browser: Client, allowed: Path, settings) -> None:
    (allowed / "model.safetensors").unlink()
    response = browser.post("/models/path/", {"path": str(allowed), "name": "a"})
    assert response.status_code == 422
    assert 'id="by-path-problem"' in response.content.decode()
    for values, status, words in (
        ({"path": "/etc"}, 403, "is in no directory of the server&#x27;s settings; name one in blazr.toml"),
        ({"path": ""}, 400, "is no path of a directory or file"),
        ({"path": "<b>\0"}, 400, "&lt;b&gt;"),
        ({"path": str(allowed), "fact": "norm.eps", "value": "small"}, 400, "norm.eps can&#x27;t be"),
    ):
        response = browser.post("/models/path/", values)
        assert (response.status_code, words in response.content.decode()) == (status, True), values
    assert Checkpoint.objects.count() == 0
    settings.BLAZR_WATCHED_DIRECTORIES = []
    text = browser.get("/models/upload/").content.decode()
    assert "The server's settings name no directory. Add one to <code>blazr.toml</code>" in text
    assert "by-path-path" not in text


def test_who_may_register_by_path(allowed: Path, client: Client) -> None:
    client.force_login(account("reader", "member"))
    assert client.post("/models/path/", {"path": str(allowed), "register": "1"}).status_code == 403
    assert Checkpoint.objects.count() == 0
    assert client.get("/models/path/").status_code == 403
    client.force_login(account("op", "operator"))
    assert client.get("/models/path/")["Location"] == "/models/upload/#by-path"
