"""Requests are replayed as jobs and as batches, with what was kept of them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.utils import timezone

from inference.batches import services
from inference.batches.replays import (
    replay_batch_create,
    replay_get,
    replay_list,
    replay_plan,
    replay_submit,
    replayed_requests,
    texts_of_log,
    texts_of_response,
    why_not_replayable,
)
from inference.dialects.openai.outputs.chat import ChatFormat
from inference.dialects.openai.requests import plan_from_body
from inference.errors import Conflict, InvalidRequest, NotFound, QueueFull
from inference.files.store import open_file
from inference.jobs import hints
from inference.models import Batch, BatchLine, BatchResult, LineState, StoredFile, UsageRecord
from inference.records.request_log import logged_contents
from inference.values.output_builder import OutputBuilder
from inference.values.output_format import OutputFormat
from inference.values.principal import LOCAL, SCOPES, Principal
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db
CHAT = {"model": "alias", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8, "seed": 3}
OPERATOR = Principal("user", "user:1", "edwin", scopes=frozenset(SCOPES))


@pytest.fixture(autouse=True)
def quiet(monkeypatch, data_dir):
    monkeypatch.setattr(hints, "wake_workers", lambda: None)


def logged(name: str, body: dict[str, Any] = CHAT, *, endpoint: Any = "chat", **values: Any) -> UsageRecord:
    plan = plan_from_body(endpoint, body)
    kept = {"prompt": json.dumps(list(plan.prompts)), "plan": json.dumps({**plan.to_dict(), "prompts": []})}
    fixed = {"tenant": "key:1", "endpoint": endpoint, "model": "tiny", "outcome": "completed", "duration_s": 1.0,
             "output": '["Because."]', "created_at": timezone.now()}  # fmt: skip
    return UsageRecord.objects.create(request_id=name, **{**fixed, **kept, **values})


def test_a_replay_asks_the_same_of_another_model() -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "cache_salt": "x"}
    plan = replay_plan(logged("a", body), "other")
    assert plan == replace(plan_from_body("chat", CHAT), model="other")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"plan": ""}, "weren't kept"),
        ({"endpoint": "job"}, "the page of jobs runs a job again"),
        ({"prompt": '[{"text": "cut…'}, "too long for the request log"),
        ({"prompt": "[]"}, "can't be read"),
        ({"prompt": '["text"]'}, "can't be read"),
        ({"prompt": '{"text": "a"}'}, "can't be read"),
        ({"prompt": '[{"messages": ["a"]}]'}, "can't be read"),
        ({"prompt": '[{"messages": 5}]'}, "can't be read"),
        ({"plan": '{"params": []}'}, "can't be read"),
        ({"prompt": json.dumps([{"messages": [{"role": "user", "content": [{"type": "image"}]}]}])}, "pictures"),
    ],
)
def test_what_was_not_kept_can_not_be_replayed(values: dict[str, str], reason: str) -> None:
    row = logged("a")
    UsageRecord.objects.update(**values)
    row.refresh_from_db()
    assert reason in why_not_replayable(row)
    with pytest.raises(Conflict, match=reason):
        replay_plan(row, "other")
    state = logged("b", {**CHAT, "state": "mine"})
    assert "saved state" in why_not_replayable(state)


def test_one_request_is_a_job_of_the_account_that_replays_it() -> None:
    make_checkpoint("other")
    job = replay_submit(row=logged("chatcmpl-1"), model="other", principal=OPERATOR)
    assert (job.tenant, job.model, job.batch_label) == ("user:1", "other", "replay of chatcmpl-1")
    assert orjson.loads(job.plan)["params"] == {"max_tokens": 8, "seed": 3}


def test_those_of_a_day_are_a_batch_of_one_endpoint() -> None:
    make_checkpoint("other")
    for number in range(3):
        logged(f"chatcmpl-{number}")
    logged("cmpl-1", {"model": "tiny", "prompt": "Once"}, endpoint="completion")
    logged("chatcmpl-other", model="another")
    logged("chatcmpl-failed", outcome="prompt_too_long")
    logged("chatcmpl-old", created_at=timezone.now() - timedelta(days=2))
    logged("chatcmpl-bare", plan="")
    found = replay_batch_create(source="tiny", candidate="other", principal=OPERATOR)
    assert (found.source, found.candidate, found.num_left_out) == ("tiny", "other", 2)
    file = StoredFile.objects.get(file_id=found.batch.input_file_id)
    with open_file(file.sha256) as opened:
        lines = [orjson.loads(line) for line in opened]
    assert [line["custom_id"] for line in lines] == ["chatcmpl-2", "chatcmpl-1", "chatcmpl-0"]
    assert all(line["body"]["model"] == "other" and line["url"] == "/v1/chat/completions" for line in lines)
    assert [item.batch.pk for item in replay_list(principal=OPERATOR, limit=5)] == [found.batch.pk]
    assert replay_get(batch_id=found.batch.batch_id, principal=OPERATOR).candidate == "other"
    for batch_id in ("batch_none", "\0"):
        with pytest.raises(NotFound):
            replay_get(batch_id=batch_id, principal=OPERATOR)
    with pytest.raises(NotFound):
        replay_get(batch_id=found.batch.batch_id, principal=LOCAL)


def test_a_damaged_row_is_left_out() -> None:
    make_checkpoint("other")
    logged("chatcmpl-1")
    for number, prompt in enumerate(('["text"]', '[{"messages": [{}]}]', '[{"messages": [{"content": [5]}]}]')):
        logged(f"damaged-{number}", prompt=prompt)
    assert replay_batch_create(source="tiny", candidate="other", principal=OPERATOR).num_left_out == 3


def test_only_an_account_makes_replays() -> None:
    make_checkpoint("other")
    logged("chatcmpl-1")
    batch = replay_batch_create(source="tiny", candidate="other", principal=OPERATOR).batch
    Batch.objects.update(tenant="key:1")  # whose metadata are a client's
    assert OPERATOR.sees_everything and replay_list(principal=OPERATOR, limit=5) == []
    with pytest.raises(NotFound):
        replay_get(batch_id=batch.batch_id, principal=OPERATOR)


def test_copied_prompts_are_deleted_after_two_days(settings) -> None:
    settings.BLAZR_FILE_EXPIRE_DAYS = 0
    make_checkpoint("other")
    logged("chatcmpl-1")
    replay_batch_create(source="tiny", candidate="other", principal=OPERATOR)
    file = StoredFile.objects.get()
    assert file.expires_at is not None and file.expires_at - file.created_at == timedelta(days=2)


def test_what_is_refused_leaves_nothing_behind(monkeypatch) -> None:
    with pytest.raises(InvalidRequest, match="the model that answered"):
        replay_batch_create(source="tiny", candidate="tiny", principal=OPERATOR)
    with pytest.raises(Conflict, match="none completed within the last day"):
        replay_batch_create(source="tiny", candidate="other", principal=OPERATOR)
    logged("a", plan="")
    with pytest.raises(Conflict, match="weren't kept"):
        replay_batch_create(source="tiny", candidate="other", principal=OPERATOR)
    logged("b")
    monkeypatch.setattr(services, "MAX_OPEN", 0)
    with pytest.raises(QueueFull, match="are unfinished"):
        replay_batch_create(source="tiny", candidate="other", principal=OPERATOR)
    assert not StoredFile.objects.exists()


def test_results_are_beside_their_requests() -> None:
    make_checkpoint("other")
    rows = [logged("chatcmpl-1"), logged("chatcmpl-2")]
    replay = replay_batch_create(source="tiny", candidate="other", principal=OPERATOR)
    body = {"choices": [{"message": {"content": "So.", "reasoning_content": "Hm."}}]}
    payloads = [
        ({"response": {"status_code": 200, "body": body}, "error": None}, False),
        ({"response": {"status_code": 400, "body": {"error": {"message": "no."}}}, "error": None}, True),
    ]
    for number, (row, (payload, is_error)) in enumerate(zip(rows, payloads, strict=True)):
        line = BatchLine.objects.create(
            batch=replay.batch, number=number + 1, custom_id=row.request_id, body="{}", state=LineState.COMPLETED,
            checkpoint_id=make_checkpoint(f"m{number}").pk,
        )  # fmt: skip
        BatchResult.objects.create(
            line=line, batch=replay.batch, is_error=is_error, payload=orjson.dumps(payload).decode(), engine_s=0.5,
            completion_tokens=4, finished_at=timezone.now(),
        )  # fmt: skip
    rows[1].delete()
    first, second = replayed_requests(replay)
    assert (first.request_id, first.texts, first.error, first.engine_s) == ("chatcmpl-1", ("Hm.\nSo.",), "", 0.5)
    assert first.row == rows[0]
    assert (second.row, second.texts, second.error) == (None, (), "no.")


def test_texts_of_a_log_and_of_a_response() -> None:
    row = logged("a")
    assert texts_of_log(row) == ("Because.",)
    row.output = '["cut…'
    assert texts_of_log(row) == ('["cut…',)
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    message = {"reasoning_content": "Hm.", "content": None, "tool_calls": [call]}
    assert texts_of_response({"choices": [{"text": "a"}, {"message": message}]}) == ("a", 'Hm.\nlook({"at": 1})')


def test_the_same_output_is_the_same_text_in_log_and_response(settings) -> None:
    settings.BLAZR_REQUEST_LOG_CONTENTS = True
    output = OutputFormat(tools="hermes", reasoning="think", tool_names=("look",))
    plan = replace(plan_from_body("chat", CHAT), output=output)
    builder = OutputBuilder(plan)
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    builder.add(0, {"type": "delta", "text": f"<think>Hm.</think>So.{call}{call}", "finish_reason": "stop"})
    row = logged("a", output=logged_contents(builder)["output"])
    assert texts_of_log(row) == texts_of_response(ChatFormat(plan, builder, "a", 0, "tiny").whole())
