"""Measurements over HTTP: who may start, cancel, read and delete them, shapes, files, errors in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from blazr_site.api_docs import openapi_document
from inference.demo.paths import PREBUILT_DIRECTORY
from models_registry import services
from models_registry.models import Checkpoint, SpanMeasurement
from models_registry.span_measurements import MAX_TEXT_BYTES
from tests.accounts import account
from tests.live.conftest import wait_until
from tests.models_registry.api.test_views import SOME_ID, error_of
from tests.models_registry.test_span_measurements import ANSWER

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]

HOSTILE = '"><script>alert(1)</script>{{ 7 }}'


@pytest.fixture
def source() -> Checkpoint:
    return services.checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="tiny")


def list_path(source: Checkpoint) -> str:
    return f"/registry/checkpoints/{source.pk}/span-measurements"


def start(client: Client, source: Checkpoint, **body: object):
    return client.post(list_path(source), json.dumps(body), content_type="application/json")


def cancel(client: Client, measurement_id: object):
    return client.post(f"/registry/span-measurements/{measurement_id}/cancel", "{}", content_type="application/json")


def row_of(source: Checkpoint, **values: object) -> SpanMeasurement:
    defaults = {"source_name": "tiny", "max_tokens": 2, "max_seconds": 1, "active_at": timezone.now()}
    return SpanMeasurement.objects.create(source=source, **(defaults | values))


def done(source: Checkpoint) -> SpanMeasurement:
    mixer = {"layer": "0", "kind": HOSTILE, "what": "half-life", "heads": "4", "least": "1", "median": "2"}
    return row_of(
        source, state="done", num_tokens=7, text=HOSTILE, figures='{"tokens": 7}', picture="<svg/>",
        table=[mixer | {"most": "1,234", "state_norm": "0.5"}],
    )  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_a_measurement_over_http(browser: Client, source: Checkpoint, child_script: Callable[[str], Path]) -> None:
    child_script(ANSWER)
    begun = start(browser, source, text="some words", max_tokens=50, max_seconds=60)
    assert begun.status_code == 201
    body = begun.json()
    assert (body["source"], body["source_name"]) == (str(source.pk), "tiny")
    assert (body["max_tokens"], body["max_seconds"]) == (50, 60)
    assert not {"text", "figures", "picture"} & set(body)
    path = f"/registry/span-measurements/{body['id']}"
    wait_until(lambda: browser.get(path).json()["state"] != "running", 60, "the end")
    found = browser.get(path).json()
    assert (found["state"], found["reason"], found["progress"], found["num_tokens"]) == ("done", "", 1.0, 7)
    assert browser.get(list_path(source)).json() == [found]
    assert browser.delete(path).status_code == 204
    assert browser.get(path).status_code == 404


def test_files_are_downloads(browser: Client, source: Checkpoint) -> None:
    row = done(source)
    for kind, media_type, content, name in (
        ("figures", "application/json", b'{"tokens": 7}', "tiny-memory.json"),
        ("picture", "image/svg+xml", b"<svg/>", "tiny-memory.svg"),
    ):
        for accepted in ("*/*", media_type, "image/avif,image/*"):
            response = browser.get(f"/registry/span-measurements/{row.pk}/{kind}", headers={"accept": accepted})
            assert (response.status_code, response.content) == (200, content)
            assert response.headers["Content-Type"].startswith(media_type)
            assert response.headers["Content-Disposition"] == f'attachment; filename="{name}"'
            assert response.headers["X-Content-Type-Options"] == "nosniff"
    failed = row_of(source, state="failed", reason="no")
    missing = browser.get(f"/registry/span-measurements/{failed.pk}/picture")
    assert (missing.status_code, error_of(missing)["message"]) == (404, "the measurement is failed and has no result.")


def test_cancelling_and_deleting_over_http(browser: Client, source: Checkpoint) -> None:
    row = row_of(source)
    assert start(browser, source).status_code == 429
    path = f"/registry/span-measurements/{row.pk}"
    refused = browser.delete(path)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict")
    cancelled = cancel(browser, row.pk).json()
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled by vera")
    assert cancel(browser, row.pk).json()["reason"] == "cancelled by vera"
    assert browser.delete(path).status_code == 204
    ended = done(source)
    assert cancel(browser, ended.pk).json()["state"] == "done"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"text": ""}, "text", "blank"), ({"text": "  "}, "text", "text is empty"),
        ({"text": {"a": 1}}, "text", "string"), ({"text": ["a"]}, "text", "string"),
        ({"text": "a" * (MAX_TEXT_BYTES + 1)}, "text", "at most 32768 are read"),
        ({"text": "a\0"}, "text", "ull character"), ({"text": "\ud800"}, "text", ""),
        ({"max_tokens": 1}, "max_tokens", "2 to 4096"), ({"max_tokens": "many"}, "max_tokens", "integer"),
        ({"max_tokens": 10**40}, "max_tokens", "2 to 4096"), ({"max_seconds": 0}, "max_seconds", "1 to 3600"),
        ({"max_seconds": None}, "max_seconds", "null"),
    ],
)  # fmt: skip
def test_bad_bodies(browser: Client, source: Checkpoint, body: dict, param: str, message: str) -> None:
    wrong = start(browser, source, **body)
    assert wrong.status_code == 400, wrong.content
    error = error_of(wrong)
    assert message in error["message"]
    assert error["param"] in (param, None)
    assert not SpanMeasurement.objects.exists()


def test_what_is_not_there(browser: Client) -> None:
    one = f"span-measurements/{SOME_ID}"
    for method, path in (
        ("get", f"checkpoints/{SOME_ID}/span-measurements"), ("get", one), ("delete", one),
        ("get", f"{one}/figures"), ("get", f"{one}/picture"),
    ):  # fmt: skip
        assert getattr(browser, method)(f"/registry/{path}").status_code == 404, path
    assert cancel(browser, SOME_ID).status_code == 404


def test_viewers_follow_and_operators_act(client: Client, source: Checkpoint) -> None:
    running, ended = row_of(source), done(source)
    client.force_login(account("walt", "viewer"))
    assert len(client.get(list_path(source)).json()) == 2
    assert client.get(f"/registry/span-measurements/{running.pk}").json()["state"] == "running"
    assert client.get(f"/registry/span-measurements/{ended.pk}/picture").status_code == 200
    for refused in (
        start(client, source), cancel(client, running.pk),
        client.delete(f"/registry/span-measurements/{ended.pk}"),
    ):  # fmt: skip
        assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")


def test_the_document_has_the_routes() -> None:
    paths = openapi_document()["paths"]
    create = paths["/registry/checkpoints/{checkpoint_id}/span-measurements"]["post"]
    assert create["responses"].keys() == {"201", "401", "4XX", "503"}
    assert set(paths["/registry/span-measurements/{measurement_id}"]) == {"get", "delete"}
    picture = paths["/registry/span-measurements/{measurement_id}/picture"]["get"]["responses"]["200"]
    assert set(picture["content"]) == {"image/svg+xml"}


# --- the model's page ----------------------------------------------------------------------------


def test_the_page_has_picture_and_table_without_scripts(browser: Client, client: Client, source: Checkpoint) -> None:
    row = done(source)
    path = f"/models/{source.pk}/?tab=memory"
    page = browser.get(path).content.decode()
    for part in (
        f'src="/registry/span-measurements/{row.pk}/picture"', f'href="/registry/span-measurements/{row.pk}/figures"',
        "<td class=\"num\">1,234</td>", "7 tokens,", 'id="inspect"', "At most 32,768 bytes", f'data-delete="{row.pk}"',
    ):  # fmt: skip
        assert part in page, part
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    client.force_login(account("walt", "viewer"))
    theirs = client.get(path).content.decode()
    assert f"{row.pk}/picture" in theirs
    assert 'id="inspect"' not in theirs and "data-delete" not in theirs
    Checkpoint.objects.update(state="missing")
    assert 'id="inspect"' not in browser.get(path).content.decode()


def test_the_page_shows_what_runs_and_what_failed(browser: Client, source: Checkpoint) -> None:
    done(source)
    row_of(source, state="failed", reason="<b>too long</b>")
    row_of(source, progress=0.25, stage="layer 3")
    page = browser.get(f"/models/{source.pk}/?tab=memory").content.decode()
    assert 'value="0.25"' in page and "25 %" in page and "layer 3" in page
    assert page.count("<details open>") == 1  # the newest result, though it isn't the newest row
    assert "&lt;b&gt;too long&lt;/b&gt;" in page


def test_a_damaged_row_does_not_take_the_page_away(browser: Client, source: Checkpoint) -> None:
    row_of(source, state="done", table={"no": "list"})
    page = browser.get(f"/models/{source.pk}/?tab=memory")
    assert page.status_code == 200
    assert "Nothing was measured yet" in page.content.decode()


def test_a_model_without_a_tokenizer_has_no_field_for_a_text(browser: Client, hybrid: Path) -> None:
    bare = services.checkpoint_register(path=hybrid, served_model_name="bare")
    page = browser.get(f"/models/{bare.pk}/?tab=memory").content.decode()
    assert 'id="span-text"' not in page
    assert "random tokens are read" in page
