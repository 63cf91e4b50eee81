"""A batch on its page, and the retry of its failed lines."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from inference.access.accounts import principal_of_staff
from inference.jobs import hints
from inference.models import Batch, BatchLine, BatchResult, StoredFile
from tests.accounts import account
from tests.inference.batches.fakes import EchoManager, line, make_batch, make_runner, store_file, work
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path, monkeypatch) -> None:
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(account("edwin", "operator"))
    return client


def ended_batch(*more: Any) -> Batch:
    model = make_checkpoint()
    lines = [line("good", "one"), line(HOSTILE, HOSTILE, temperature=77), *more]
    return work(make_batch(lines, metadata={"label": HOSTILE}), make_runner(EchoManager(str(model.pk))))


def text_of(client: Client, batch: Batch, query: str = "", **headers: str) -> str:
    response = client.get(f"/batches/{batch.batch_id}/{query}", headers=headers)
    assert response.status_code == 200
    return response.content.decode()


def retry_token(client: Client, batch: Batch) -> str:
    return str(client.get(f"/batches/{batch.batch_id}/").context["retry_token"])


def test_a_batch_shows_its_progress_its_lines_and_its_errors(operator: Client) -> None:
    batch = ended_batch()
    text = text_of(operator, batch)
    for piece in ("All lines have run.", "2 of 2, 1 failed", "eno", "temperature", "errors</a>", "output</a>",
                  "input</a>", "A retry makes a new batch, which is yours, of the 1 failed line alone"):  # fmt: skip
        assert piece in text, piece
    assert HOSTILE not in text and "&lt;script&gt;" in text
    assert f'href="/batches/{batch.batch_id}/"' in operator.get("/jobs/").content.decode()


def test_lines_are_filtered_searched_and_opened(operator: Client) -> None:
    batch = ended_batch(*(line(f"more-{number}") for number in range(60)))
    first = operator.get(f"/batches/{batch.batch_id}/")
    assert len(first.context["lines"]) == 50 and first.context["later"] == "?after=50"
    assert len(operator.get(f"/batches/{batch.batch_id}/?after=50").context["lines"]) == 12
    found = operator.get(f"/batches/{batch.batch_id}/?state=failed&q=script").context["lines"]
    assert [item["custom_id"] for item in found] == [HOSTILE]
    opened = text_of(operator, batch, "?line=1")
    assert 'aria-label="Answer">eno</pre>' in opened and 'aria-label="Prompt">one</pre>' in opened
    # It stays open while the list is drawn again, which ends with the batch.
    assert '<details id="json-1" hx-preserve>' in opened and '<div id="batch-lines">' in opened
    beyond = text_of(operator, batch, "?line=60")
    assert "more-57 <span" in beyond and 'aria-label="Prompt"' in beyond
    assert 'aria-label="Prompt"' not in text_of(operator, batch, "?line=999")
    assert operator.get(f"/batches/{batch.batch_id}/?state=odd").status_code == 400


def test_a_region_that_is_drawn_anew_reads_its_own_part_alone(operator: Client) -> None:
    batch = ended_batch()
    head = text_of(operator, batch, **{"HX-Target": "batch-head"})
    lines = text_of(operator, batch, **{"HX-Target": "batch-lines"})
    assert "All lines have run." in head and "open-1" not in head
    assert "All lines have run." not in lines and "open-1" in lines


def test_states_in_words(operator: Client) -> None:
    batch = make_batch([line("a")])
    assert "waits for being checked" in text_of(operator, batch) and 'id="cancel"' in text_of(operator, batch)
    refused = work(make_batch([b"{"]), make_runner(EchoManager()))
    text = text_of(operator, refused)
    assert "Its file was refused" in text and "Why it was refused" in text and "invalid_json_line" in text
    for state, ending, words in (
        ("in_progress", "", "0 of its lines run, 3 wait."),
        ("cancelling", "cancelled", "are being stopped"),
        ("finalizing", "", "files are being written"),
        ("expired", "expired", "window ended before"),
        ("cancelled", "cancelled", "It was cancelled"),
        ("failed", "failed", "couldn&#x27;t go on"),
    ):
        ended_at = None if state in ("in_progress", "cancelling", "finalizing") else timezone.now()
        values = {"state": state, "ending": ending, "ended_at": ended_at, "in_progress_at": timezone.now()}
        Batch.objects.filter(pk=batch.pk).update(**values, num_total=3, num_failed=0)
        assert words in text_of(operator, batch), state


def test_lines_that_are_gone(operator: Client) -> None:
    batch = ended_batch()
    BatchLine.objects.filter(batch=batch).delete()
    Batch.objects.filter(pk=batch.pk).update(input_file_id="file-gone", ended_at=timezone.now() - timedelta(days=2))
    text = text_of(operator, batch)
    assert "for a day after the end" in text and "input: removed" in text and "temperature" in text
    assert 'href="?line=2#line-2"' in text and "stored any more" not in text
    text = text_of(operator, batch, "?line=2")
    assert 'id="line-2">Line 2 isn\'t stored any more; the files have it.</p>' in text


def test_a_line_that_was_never_there(operator: Client) -> None:
    batch = ended_batch()
    assert "There is no line 1,999." in text_of(operator, batch, "?line=1999")
    BatchLine.objects.filter(batch=batch, number=1).delete()
    text = text_of(operator, batch, "?line=1")
    assert "Line 1 isn't stored any more" in text and 'id="open-2"' in text


def test_an_example_without_a_number_is_no_link(operator: Client) -> None:
    batch = ended_batch()
    row = BatchResult.objects.get(batch=batch, is_error=True)
    row.payload = json.dumps({**json.loads(row.payload), "id": "odd"})
    row.save()
    text = text_of(operator, batch)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;</div></td>" in text
    assert "line=0" not in text and 'id="example-1"' not in text


def test_a_retry_leads_to_the_new_batch(operator: Client) -> None:
    batch = ended_batch()
    token = retry_token(operator, batch)
    response = operator.post(f"/batches/{batch.batch_id}/retry/", {"token": token})
    new = Batch.objects.exclude(pk=batch.pk).get()
    assert response["Location"] == f"/batches/{new.batch_id}/" and new.tenant.startswith("user:")
    assert batch.batch_id in text_of(operator, new)
    assert "were run again" in text_of(operator, batch)
    refused = operator.post(f"/batches/{new.batch_id}/retry/", {"token": token})
    assert refused.status_code == 409 and "when it has ended" in refused.content.decode()
    assert operator.get(f"/batches/{batch.batch_id}/retry/").status_code == 405


def test_a_page_makes_one_retry_and_a_later_one_another(operator: Client) -> None:
    batch = ended_batch()
    first = retry_token(operator, batch)
    second = retry_token(operator, batch)
    found = [
        operator.post(f"/batches/{batch.batch_id}/retry/", {"token": token})["Location"]
        for token in (first, first, second, first)
    ]
    assert found[0] == found[1] == found[3] != found[2]
    refused = operator.post(f"/batches/{batch.batch_id}/retry/", {"token": "x"})
    assert refused.status_code == 400 and "16 hexadecimal digits" in refused.content.decode()
    assert Batch.objects.count() == 3


def test_members_see_their_own_batches_alone(client: Client) -> None:
    batch = ended_batch()
    client.force_login(account("maria", "member"))
    assert client.get(f"/batches/{batch.batch_id}/").status_code == 404
    assert client.post(f"/batches/{batch.batch_id}/retry/").status_code == 404
    client.force_login(account("victor", "viewer"))
    assert client.get(f"/batches/{batch.batch_id}/").status_code == 403


def queued(client: Client, **values: str) -> Any:
    file = store_file([line("a")])
    form = {"file": file.file_id, "endpoint": "/v1/completions", "window": "3d", "priority": "0", **values}
    return client.post("/batches/new/", form)


def test_a_checked_file_is_queued_and_kept(client: Client) -> None:
    client.force_login(account("sonja", "superuser"))
    file = store_file([line("a")])
    StoredFile.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    more = {"label": " first ", "metadata": "team = a\n\nrun=1=2", "priority": "-5"}
    response = client.post(
        "/batches/new/", {"file": file.file_id, "endpoint": "/v1/completions", "window": "3d", **more}
    )
    again = client.post("/batches/new/", {"file": file.file_id, "endpoint": "/v1/completions", "window": "3d"})
    assert again["Location"] == response["Location"]
    batch = Batch.objects.get()
    assert response["Location"] == f"/batches/{batch.batch_id}/"
    assert (batch.completion_window, batch.priority) == ("3d", -5)
    assert json.loads(batch.metadata) == {"label": "first", "team": "a", "run": "1=2"}
    file.refresh_from_db()
    assert file.expires_at is not None and file.expires_at > timezone.now() + timedelta(days=1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"window": "1s"}, "a time from 1m to 14d"),
        ({"endpoint": "/v1/images"}, "endpoint is"),
        ({"priority": "1.5"}, "a whole number"),
        ({"priority": "101"}, "a whole number"),
        ({"metadata": "=x"}, "name=value"),
        ({"metadata": "x"}, "name=value"),
    ],
)
def test_a_form_that_is_wrong_says_what(client: Client, values: dict[str, str], words: str) -> None:
    client.force_login(account("sonja", "superuser"))
    response = queued(client, **values)
    assert response.status_code == 400 and words in response.content.decode()
    assert Batch.objects.count() == 0


def test_no_batch_is_made_without_its_kept_file(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the two leaves neither."""

    class Died(Exception):
        pass

    def die(**_: object) -> None:
        raise Died

    monkeypatch.setattr("inference.pages.batches.file_expiry_renew", die)
    client.force_login(account("sonja", "superuser"))
    with pytest.raises(Died):
        queued(client)
    assert Batch.objects.count() == 0


def test_a_file_is_discarded(client: Client) -> None:
    client.force_login(account("sonja", "superuser"))
    assert queued(client, discard="1")["Location"] == "/jobs/"
    assert StoredFile.objects.count() == Batch.objects.count() == 0


def test_another_accounts_file_is_not_queued(client: Client) -> None:
    client.force_login(account("maria", "member"))
    assert queued(client).status_code == queued(client, discard="1").status_code == 404
    assert StoredFile.objects.count() == 2


def test_a_paused_batch_says_so(operator: Client) -> None:
    batch = make_batch([line("a")])
    assert 'id="pause"' in text_of(operator, batch)
    assert operator.post(f"/api/batches/{batch.batch_id}/pause").json()["progress"]["is_paused"] is True
    assert "Its file waits for being checked, or is being checked. It is paused" in text_of(operator, batch)
    Batch.objects.filter(pk=batch.pk).update(state="in_progress", in_progress_at=timezone.now(), num_total=3)
    text = text_of(operator, batch)
    assert "It is paused: no line starts." in text and 'id="resume"' in text and 'id="pause"' not in text
    assert "paused" in operator.get("/jobs/").content.decode()
    assert operator.post(f"/api/batches/{batch.batch_id}/resume").json()["progress"]["is_paused"] is False
    assert 'id="pause"' in text_of(operator, batch)


def test_the_priority_is_shown_and_changed(operator: Client) -> None:
    batch = make_batch([line("a")])
    assert '<dd id="batch-priority">0 ' in text_of(operator, batch)
    response = operator.post(f"/batches/{batch.batch_id}/priority/", {"priority": "-4"})
    assert (response.status_code, response["Location"]) == (302, f"/batches/{batch.batch_id}/")
    assert '<dd id="batch-priority">-4 ' in text_of(operator, batch)
    wrong = operator.post(f"/batches/{batch.batch_id}/priority/", {"priority": "101"})
    assert (wrong.status_code, "from -100 to 100" in wrong.content.decode()) == (400, True)
    ended = ended_batch()
    assert '<dd id="batch-priority">0 ' in text_of(operator, ended)
    assert 'id="priority-form"' not in text_of(operator, ended)
    assert operator.post(f"/batches/{ended.batch_id}/priority/", {"priority": "1"}).status_code == 409


def test_a_priority_below_zero_needs_its_scope(client: Client) -> None:
    client.force_login(account("maria", "member"))
    batch = make_batch([line("a")])
    Batch.objects.update(tenant=principal_of_staff(User.objects.get(username="maria")).tenant)
    assert ' min="0" max="100"' in text_of(client, batch)
    refused = client.post(f"/batches/{batch.batch_id}/priority/", {"priority": "-1"})
    assert refused.status_code == 403
    assert "needs an account with the scope" in refused.content.decode()
    assert client.post(f"/batches/{batch.batch_id}/priority/", {"priority": "1"}).status_code == 302


def test_any_metadata_is_shown_as_text(operator: Client) -> None:
    batch = make_batch([line("a")], metadata={"retry_of": "a/b", HOSTILE: HOSTILE})
    text = text_of(operator, batch)
    assert "<dd>a/b</dd>" in text and HOSTILE not in text


def test_names_of_methods_are_no_methods(operator: Client) -> None:
    model = make_checkpoint()
    lines = [{**line("a"), "body": {"model": "tiny", "prompt": "x", "items": 5, "keys": "k"}}]
    batch = work(make_batch(lines, metadata={"items": "nightly"}), make_runner(EchoManager(str(model.pk))))
    text = text_of(operator, batch, "?line=1")
    assert "<dd>nightly</dd>" in text
    assert 'text-break">items</dt><dd class="font-monospace">5</dd>' in text


def test_a_line_with_many_prompts_is_shown_in_part(operator: Client) -> None:
    make_checkpoint()
    batch = make_batch([line("many", [f"p{number}" for number in range(3000)])])
    work(batch, make_runner(EchoManager("nobody")))
    text = text_of(operator, batch, "?line=1")
    assert text.count('aria-label="Prompt"') == 20 and "The first 20 of 3,000 prompts." in text


def test_an_ending_batch_has_no_buttons(operator: Client) -> None:
    batch = ended_batch()
    Batch.objects.filter(pk=batch.pk).update(state="in_progress", ended_at=None, ending="expired")
    text = text_of(operator, batch)
    assert "Its files are being written." in text
    assert 'id="pause"' not in text and 'id="cancel"' not in text
