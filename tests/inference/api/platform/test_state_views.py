"""States over HTTP without a model: whose they are, forms that are refused. ``tests/live/test_states.py`` computes."""

from __future__ import annotations

import httpx
import pytest

from inference.access.api_keys import api_key_create
from inference.files.store import FileWriter
from inference.states.services import StateFacts, state_create
from inference.values.messages import StateOrder


@pytest.fixture(autouse=True)
def store(transactional_db, settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


def stored(tenant: str, name: str) -> None:
    writer = FileWriter()
    writer.write(b"content")
    order = StateOrder(name=name, tenant=tenant, model="demo", is_pinned=False, expires_s=None, replaces=False)
    state_create(writer=writer, facts=StateFacts("demo", "a" * 64, 7, has_conversation=True), order=order)


def test_nobody_sees_the_states_of_others(http: httpx.Client):
    _, secret = api_key_create(name="other", scopes=["files"])
    stored("local", "mine")
    assert [state["name"] for state in http.get("/v1/states").json()["data"]] == ["mine"]
    assert http.get("/v1/states/mine/content").content == b"content"
    headers = {"Authorization": f"Bearer {secret}"}
    assert http.get("/v1/states", headers=headers).json()["data"] == []
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        assert http.request(method, f"/v1/states/mine{path}", headers=headers).status_code == 404
    assert http.post("/v1/states/mine", json={"pinned": True}, headers=headers).status_code == 404
    assert http.get("/v1/states/mine").json()["pinned"] is False


def test_a_list_has_pages(http: httpx.Client):
    for name in "abc":
        stored("local", name)
    first = http.get("/v1/states", params={"limit": 2}).json()
    assert [state["name"] for state in first["data"]] == ["c", "b"] and first["has_more"]
    rest = http.get("/v1/states", params={"after": first["last_id"]}).json()
    assert [state["name"] for state in rest["data"]] == ["a"] and not rest["has_more"]
    assert http.get("/v1/states", params={"after": "none"}).status_code == 404


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"files": {"other": ("a", b"x")}}, "other"),
        ({"files": {"file": ("a", b"")}}, "file"),
        ({"files": {"file": ("a", b"x")}, "data": {"pinned": "1"}}, "pinned"),
        ({"files": {"file": ("a", b"x" * 100)}}, "state"),
    ],
)
def test_forms_that_are_refused(http: httpx.Client, tmp_path, form, param):
    refused = http.post("/v1/states/a/content", **form)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_a_file_is_not_called_by_the_name_that_it_has_here(http: httpx.Client):
    refused = http.post("/v1/states/a/content", files={"file": ("a", b"x" * 100)})
    assert refused.json()["error"]["message"].startswith("the file states a header of ")


def test_a_name_that_is_taken_is_refused_before_the_file_is_received(http: httpx.Client):
    stored("local", "a")
    refused = http.post("/v1/states/a/content", files={"file": ("a", b"no state")})
    assert refused.status_code == 409 and "There is a state 'a' already" in refused.json()["error"]["message"]


def test_a_change_says_what_it_changes(http: httpx.Client):
    stored("local", "a")
    for body in ({}, {"pinned": 1}, {"pinned": True, "name": "b"}):
        assert http.post("/v1/states/a", json=body).status_code == 400


def test_a_pinned_state_does_not_expire(http: httpx.Client):
    expiry = {"anchor": "created_at", "seconds": 3600}
    body = {"name": "a", "model": "demo", "prompt": "a b", "pinned": True, "expires_after": expiry}
    refused = http.post("/v1/states", json=body)
    assert refused.status_code == 400 and "leave out pinned or expires_after" in refused.json()["error"]["message"]
