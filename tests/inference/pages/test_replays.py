"""Replays on their pages: who may, what is compared, and the alias that follows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from inference.access.accounts import principal_of_staff
from inference.batches.replays import Replay, replay_batch_create, replay_submit
from inference.dialects.openai.requests import plan_from_body
from inference.jobs import hints
from inference.models import BatchLine, BatchResult, GenerationJob, LineState, UsageRecord
from inference.pages.replay_targets import replay_targets
from inference.pages.replays import compared_texts
from models_registry.aliases import alias_get, alias_promote
from models_registry.models import Adapter, Checkpoint
from tests.accounts import account
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"
CHAT = {"model": "prod", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8}


@pytest.fixture(autouse=True)
def quiet(monkeypatch, data_dir):
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


@pytest.fixture
def models() -> list[Checkpoint]:
    found = [make_checkpoint("tiny"), make_checkpoint("other")]
    alias_promote(name="prod", checkpoint=found[0])
    return found


@pytest.fixture
def operator(client: Client, models: list[Checkpoint]) -> Client:
    client.force_login(account("edwin", "operator"))
    return client


def logged(name: str, **values: Any) -> UsageRecord:
    plan = plan_from_body("chat", CHAT)
    kept = {"prompt": json.dumps(list(plan.prompts)), "plan": json.dumps({**plan.to_dict(), "prompts": []})}
    fixed = {"tenant": "key:1", "endpoint": "chat", "model": "tiny", "outcome": "completed", "duration_s": 1.0,
             "engine_s": 1.0, "completion_tokens": 10, "output": '["one two"]',
             "created_at": timezone.now()}  # fmt: skip
    return UsageRecord.objects.create(request_id=name, **{**fixed, **kept, **values})


def made_replay(user: Any, *, error: str = "", text: str = f"one {HOSTILE}") -> Replay:
    """A batch with one result."""
    row = logged("chatcmpl-1")
    replay = replay_batch_create(source="tiny", candidate="other", principal=principal_of_staff(user))
    body = {"error": {"message": error}} if error else {"choices": [{"message": {"content": text}}]}
    line = BatchLine.objects.create(
        batch=replay.batch, number=1, custom_id=row.request_id, body="{}", state=LineState.COMPLETED,
        checkpoint_id=Checkpoint.objects.get(served_model_name="other").pk,
    )  # fmt: skip
    BatchResult.objects.create(
        line=line, batch=replay.batch, is_error=bool(error), engine_s=0.5, completion_tokens=4,
        payload=orjson.dumps({"response": {"status_code": 200, "body": body}}).decode(), finished_at=timezone.now(),
    )  # fmt: skip
    return replay


def test_targets_are_models_aliases_and_revisions(models: list[Checkpoint]) -> None:
    Adapter.objects.create(base=models[1], name="sql", path="/sql", rank=1, num_values=1, size_bytes=1)
    alias_promote(name="prod", checkpoint=models[1])
    assert replay_targets() == ["other", "tiny", "other:sql", "prod", "prod@2", "prod@1"]


def test_a_request_is_replayed_as_a_job_and_compared(operator: Client) -> None:
    logged("chatcmpl-1")
    page = operator.get("/requests/chatcmpl-1/").content.decode()
    assert "/requests/chatcmpl-1/replay/" in page and '<option value="prod@1">' in page
    answer = operator.post("/requests/chatcmpl-1/replay/", {"model": "other"})
    job = GenerationJob.objects.get()
    assert answer["Location"] == f"/requests/chatcmpl-1/replays/{job.job_id}/"
    assert "this page follows it" in operator.get(answer["Location"]).content.decode()
    result = {"choices": [{"message": {"content": f"one {HOSTILE}"}}]}
    GenerationJob.objects.update(state="succeeded", result=json.dumps(result), finished_at=timezone.now())
    text = operator.get(answer["Location"]).content.decode()
    assert "<mark>&lt;script&gt;" in text and HOSTILE not in text and "<mark>two</mark>" in text
    assert "as it was answered</span></h3>" in text and "replayed</span></h3>" in text
    assert operator.post("/requests/chatcmpl-1/replay/", {"model": "none"}).status_code == 404


def test_a_failed_replay_shows_its_error(operator: Client) -> None:
    row = logged("chatcmpl-1")
    user = operator.get("/requests/").wsgi_request.user
    job = replay_submit(row=row, model="other", principal=principal_of_staff(user))
    error = {"class": "PromptTooLong", "message": "<b>too long</b>"}
    GenerationJob.objects.update(state="failed", error=json.dumps(error), finished_at=timezone.now())
    text = operator.get(f"/requests/chatcmpl-1/replays/{job.job_id}/").content.decode()
    assert "&lt;b&gt;too long" in text


def test_what_was_not_kept_is_said_in_place_of_the_form(operator: Client) -> None:
    logged("chatcmpl-1", plan="")
    text = operator.get("/requests/chatcmpl-1/").content.decode()
    assert "weren&#x27;t kept" in text and "/replay/" not in text
    assert operator.post("/requests/chatcmpl-1/replay/", {"model": "other"}).status_code == 409


def test_those_of_a_day_are_compared_in_a_table(operator: Client) -> None:
    logged("chatcmpl-0", output='["same"]')
    answer = operator.post("/replays/new/", {"source": "tiny", "candidate": "other"})
    assert "No result yet" in operator.get(answer["Location"]).content.decode()
    assert operator.post("/replays/new/", {"source": "tiny", "candidate": "none"}).status_code == 404
    replay = made_replay(operator.get("/requests/").wsgi_request.user)
    address = f"/replays/{replay.batch.batch_id}/"
    text = operator.get(address).content.decode()
    for piece in ("50 %", "0 of 1", "1.0 s before, 500 ms now", "10 tokens before, 4 now"):
        assert piece in text, piece
    text = operator.get(f"{address}chatcmpl-1/").content.decode()
    assert "<mark>&lt;script&gt;" in text and HOSTILE not in text
    assert operator.get(f"{address}chatcmpl-none/").status_code == 404
    assert f'href="{address}"' in operator.get("/requests/").content.decode()


def test_an_error_of_a_line_is_shown(operator: Client) -> None:
    replay = made_replay(operator.get("/requests/").wsgi_request.user, error="<i>no</i>")
    text = operator.get(f"/replays/{replay.batch.batch_id}/").content.decode()
    assert "&lt;i&gt;no" in text
    assert "&lt;i&gt;no" in operator.get(f"/replays/{replay.batch.batch_id}/chatcmpl-1/").content.decode()


def test_the_alias_follows_and_goes_back(operator: Client) -> None:
    replay = made_replay(operator.get("/requests/").wsgi_request.user)
    address = f"/replays/{replay.batch.batch_id}/"
    text = operator.get(address).content.decode()
    # What is typed stays while the page follows the batch: another alias would be promoted.
    assert 'value="prod"' in text and 'id="promote-form" hx-preserve>' in text
    assert operator.post(f"{address}promote/", {"alias": "prod"})["Location"] == address
    assert alias_get("prod").current.checkpoint_name == "other"
    assert "Roll back to tiny" in operator.get(address).content.decode()
    assert operator.post(f"{address}promote/", {"alias": "prod"}).status_code == 409
    assert '<input type="hidden" name="number" value="1">' in operator.get(address).content.decode()
    for number in ("", "x", "7"):
        assert operator.post(f"{address}rollback/", {"alias": "prod", "number": number}).status_code == 404
    button = {"alias": "prod", "number": "1"}
    assert operator.post(f"{address}rollback/", button)["Location"] == address
    assert alias_get("prod").current.checkpoint_name == "tiny"
    for name in ("none", "prod\0"):
        assert operator.post(f"{address}rollback/", {**button, "alias": name}).status_code == 404


def test_a_button_to_roll_back_does_it_once(operator: Client, models: list[Checkpoint]) -> None:
    replay = made_replay(operator.get("/requests/").wsgi_request.user)
    address, button = f"/replays/{replay.batch.batch_id}/rollback/", {"alias": "prod", "number": "2"}
    alias_promote(name="prod", checkpoint=make_checkpoint("third"))
    alias_promote(name="prod", checkpoint=models[1])
    assert operator.post(address, button).status_code == 302
    second = operator.post(address, button)
    assert second.status_code == 409 and "no longer means" in second.content.decode()
    assert alias_get("prod").current.meaning == "third"
    alias_promote(name="staging", checkpoint=models[1])
    alias_promote(name="staging", checkpoint=models[0])  # by somebody else, while the button was on a page
    assert operator.post(address, {"alias": "staging", "number": "1"}).status_code == 409
    assert alias_get("staging").current.meaning == "tiny"


def test_a_name_with_nul_is_read_without_it(operator: Client) -> None:
    logged("chatcmpl-1")
    assert operator.post("/replays/new/", {"source": "tiny\0", "candidate": "other\0"}).status_code == 302
    assert operator.post("/requests/chatcmpl-1/replay/", {"model": "other\0"}).status_code == 302


def test_a_damaged_row_says_that_it_can_not_be_replayed(operator: Client) -> None:
    logged("chatcmpl-1", prompt='["text"]')
    assert "can&#x27;t be read" in operator.get("/requests/chatcmpl-1/").content.decode()
    assert operator.post("/requests/chatcmpl-1/replay/", {"model": "other"}).status_code == 409


def test_a_candidate_is_what_its_name_means_when_the_replay_is_made(operator: Client, models: list[Checkpoint]) -> None:
    logged("chatcmpl-1", model="other")
    answer = operator.post("/replays/new/", {"source": "other", "candidate": "prod"})
    alias_promote(name="prod", checkpoint=models[1])
    assert "other replayed on tiny" in operator.get(answer["Location"]).content.decode()
    assert operator.post("/replays/new/", {"source": "other", "candidate": "prod"}).status_code == 400


def test_an_alias_may_mean_an_adapter_that_was_replayed_on(operator: Client, models: list[Checkpoint]) -> None:
    Adapter.objects.create(base=models[1], name="sql", path="/sql", rank=1, num_values=1, size_bytes=1)
    logged("chatcmpl-1")
    address = operator.post("/replays/new/", {"source": "tiny", "candidate": "other:sql"})["Location"]
    assert operator.post(f"{address}promote/", {"alias": "prod"})["Location"] == address
    assert alias_get("prod").current.meaning == "other:sql"
    assert "Roll back to tiny" in operator.get(address).content.decode()


def test_an_account_sees_what_it_may_do(client: Client, models: list[Checkpoint]) -> None:

    user = account("vera", "member")
    user.user_permissions.add(Permission.objects.get(codename="view_usagerecord"))
    client.force_login(user)
    replay = made_replay(user)
    text = client.get(f"/replays/{replay.batch.batch_id}/").content.decode()
    assert "Requests" in text and "Promote" not in text
    for action in ("promote", "rollback"):
        assert client.post(f"/replays/{replay.batch.batch_id}/{action}/", {"alias": "prod"}).status_code == 403
    client.force_login(account("maria", "member"))  # without the log
    for path in (f"/replays/{replay.batch.batch_id}/", f"/replays/{replay.batch.batch_id}/chatcmpl-1/"):
        assert client.get(path).status_code == 403
    assert client.post("/replays/new/", {"source": "tiny", "candidate": "other"}).status_code == 403


def test_missing_choices_are_empty_texts() -> None:
    (first, second) = compared_texts(("a", "b"), ("a",))
    assert first["is_same"] and first["percent"] == 100
    assert not second["is_same"] and second["percent"] == 0 and second["right"] == ()


def test_one_other_word_of_many_is_not_the_same(operator: Client) -> None:
    words = "w " * 400
    replay = made_replay(operator.get("/requests/").wsgi_request.user, text=f"{words}other")
    UsageRecord.objects.update(output=json.dumps([f"{words}one"]))
    address = f"/replays/{replay.batch.batch_id}/"
    text = operator.get(address).content.decode()
    assert "0 of 1" in text and text.count("99 %") == 2
    assert "99 % the same" in operator.get(f"{address}chatcmpl-1/").content.decode()


def test_an_output_that_was_cut_is_not_judged(operator: Client) -> None:
    replay = made_replay(operator.get("/requests/").wsgi_request.user)
    UsageRecord.objects.update(output='["one two…')
    address = f"/replays/{replay.batch.batch_id}/"
    text = operator.get(address).content.decode()
    assert 'data-label="Same words">cut</td>' in text and "Same texts" not in text
    text = operator.get(f"{address}chatcmpl-1/").content.decode()
    assert "not compared" in text and "one two…" in text and "<mark>" not in text
    UsageRecord.objects.all().delete()
    assert 'data-label="Same words">–</td>' in operator.get(address).content.decode()


def test_forms_that_make_something_are_sent_once() -> None:
    """A second press would queue a job, or a batch of hundreds of requests, again."""
    forms = [
        form
        for file in (Path(settings.BASE_DIR) / "templates").rglob("*.html")
        for form in re.findall(r'<form[^>]*method="post"[^>]*>', file.read_text())
        if re.search(r"-(create|retry|replay)'", form) or "by-path-register" in form
    ]
    assert len(forms) == 8 and [form for form in forms if "data-once" not in form] == []
