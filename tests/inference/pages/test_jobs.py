"""Jobs on their pages."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inference.models import GenerationJob, StoredFile
from inference.pages.jobs import NUM_BATCHES, output_text, prompt_text
from tests.accounts import account
from tests.inference.batches.fakes import line, make_batch

pytestmark = pytest.mark.django_db
PLAN = {"endpoint": "chat", "model": "demo", "prompts": [{"messages": [{"role": "user", "content": "Why?"}]}],
        "params": {"max_tokens": 4, "temperature": 0.5, "stop": []}}  # fmt: skip


def make_job(tenant: str = "local", **values: Any) -> GenerationJob:
    fixed = {
        "digest": "x",
        "endpoint": "chat",
        "model": "demo",
        "plan": json.dumps(PLAN),
        "checkpoint_id": uuid.uuid4(),
    }
    return GenerationJob.objects.create(tenant=tenant, created_at=timezone.now(), **{**fixed, **values})


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(account("edwin", "operator"))
    return client


def test_the_list_is_filtered_and_paged(operator: Client) -> None:
    for number in range(55):
        make_job(batch_label="odd" if number % 2 else "even")
    text = operator.get("/jobs/?label=odd").content.decode()
    assert "27 queued" in text and text.count('data-label="State"') == 27
    first = operator.get("/jobs/")
    assert first.context["older"].startswith("?after=")
    assert operator.get(f"/jobs/{first.context['older']}").content.decode().count('data-label="State"') == 5
    filtered = operator.get(f"/jobs/{first.context['older']}&state=queued&batch=x")
    assert filtered.context["newest"] == "?state=queued&batch=x"
    assert operator.get("/jobs/?state=odd").status_code == 400
    assert operator.get(f"/jobs/?after={uuid.uuid4()}").status_code == 404


def test_a_failed_job_shows_prompt_parameters_and_error(operator: Client) -> None:
    error = {"code": "prompt_too_long", "message": "<b>too long</b>"}
    row = make_job(state="failed", error=json.dumps(error), finished_at=timezone.now())
    text = operator.get(f"/jobs/{row.job_id}/").content.decode()
    for piece in ("[user]\nWhy?", "&lt;b&gt;too long", "temperature", "0.5", "Try again"):
        assert piece in text, piece
    assert "<dt>stop</dt>" not in text


def test_a_finished_job_shows_its_output(operator: Client) -> None:
    result = {"choices": [{"message": {"content": "Because."}, "finish_reason": "stop"}]}
    row = make_job(state="succeeded", result=json.dumps(result), finished_at=timezone.now())
    text = operator.get(f"/jobs/{row.job_id}/").content.decode()
    assert "Because." in text and "ended by stop" in text
    # What other jobs do draws nothing again, so that a text can be selected, nor closes what was opened.
    assert '<div class="stack" id="job">' in text and '<details id="result-json" hx-preserve>' in text


def test_an_open_job_is_not_queued_again(operator: Client) -> None:
    row = make_job()
    assert 'id="job" hx-get=' in operator.get(f"/jobs/{row.job_id}/").content.decode()
    response = operator.post(f"/jobs/{row.job_id}/retry/")
    assert response.status_code == 409 and "only a finished one" in response.content.decode()
    assert operator.get(f"/jobs/{row.job_id}/retry/").status_code == 405


def test_members_see_their_own_jobs_alone(client: Client) -> None:
    row = make_job()
    client.force_login(account("maria", "member"))
    assert str(row.job_id) not in client.get("/jobs/").content.decode()
    assert client.get(f"/jobs/{row.job_id}/").status_code == 404
    assert client.post(f"/jobs/{row.job_id}/retry/").status_code == 404


def test_prompts_and_outputs_as_text() -> None:
    assert prompt_text({"token_ids": [1, 2]}) == "1, 2"
    assert prompt_text({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}).startswith(
        "[user]"
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    text = prompt_text({"messages": [call]})
    assert text.startswith("[assistant]\n{") and '"tool_calls"' in text and "null" not in text
    assert output_text({"text": "so", "finish_reason": "length"})["text"] == "so"


def test_batches_are_paged_and_searched(operator: Client, data_dir: Path) -> None:
    first = make_batch([line("a")], metadata={"name": "Nightly run"})
    for number in range(NUM_BATCHES + 1):
        make_batch([line(f"b{number}")], metadata={"number": str(number)})
    page = operator.get("/jobs/?state=queued")
    assert len(page.context["batches"]) == NUM_BATCHES and page.context["newest_batches"] == ""
    assert page.content.decode().count('data-label="Created"') == NUM_BATCHES
    assert "state=queued" in page.context["older_batches"]
    older = operator.get(f"/jobs/{page.context['older_batches']}")
    assert [batch["id"] for batch in older.context["batches"]][-1] == first.batch_id
    assert older.context["older_batches"] == "" and older.context["newest_batches"] == "?state=queued"
    for text in (first.batch_id, first.batch_id[8:20].upper(), "nightly"):
        found = operator.get("/jobs/", {"batch": text}).context["batches"]
        assert [batch["id"] for batch in found] == [first.batch_id], text
    StoredFile.objects.filter(file_id=first.input_file_id).update(filename="<b>questions.jsonl")
    text = operator.get("/jobs/?batch=QUESTIONS").content.decode()
    assert "&lt;b&gt;questions.jsonl" in text and text.count('id="batch-batch_') == 1
    for odd in ("%", "_", "\0", "nowhere"):
        assert "No batch matches." in operator.get("/jobs/", {"batch": odd * 3}).content.decode()
    assert operator.get("/jobs/?batch_after=batch_0").status_code == 404


def test_members_search_their_own_batches_alone(client: Client, data_dir: Path) -> None:
    make_batch([line("a")], metadata={"name": "secret"})
    client.force_login(account("maria", "member"))
    assert "No batch matches." in client.get("/jobs/?batch=secret").content.decode()
