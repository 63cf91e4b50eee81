"""Background responses: jobs whose events are told again, from any point, by whoever asks; the runner is scripted."""

from __future__ import annotations

import threading
import time

import httpx
import openai
import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext

from inference.access.api_keys import api_key_create
from inference.api.responses import following
from inference.api.responses.background import BackgroundResponse
from inference.api.responses.reading import BYTES_READ
from inference.errors import InvalidRequest, PromptTooLong
from inference.jobs import runner as job_runner
from inference.jobs.runner import JobRunner
from inference.models import GenerationJob, JobChunk, JobState, StoredResponse
from inference.records import stored_responses
from inference.records.stored_responses import responses_sweep
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.rows import damage
from tests.inference.worker.scripted_manager import ScriptedManager


@pytest.fixture
def manager(checkpoint) -> ScriptedManager:
    return ScriptedManager(str(checkpoint.pk))


@pytest.fixture
def runner(manager, monkeypatch) -> JobRunner:
    # Turns are taken by hand, without a thread: every look happens at once.
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "SWEEP_S", "MIN_AGE_ELSEWHERE_S"):
        monkeypatch.setattr(job_runner, name, 0.0)
    monkeypatch.setattr(following, "POLL_S", 0.02)
    return JobRunner(manager, owner="w")


def submit(client, **members):
    return client.responses.create(model="tiny", input="Hi", background=True, **members)


def claim(runner: JobRunner, manager: ScriptedManager) -> str:
    """Let the runner take the only job; its request id."""
    runner.turn()
    return list(manager.messages)[-1]


def say_hello(runner: JobRunner, manager: ScriptedManager, request_id: str) -> None:
    """Two deltas, stored in two chunks, and the end."""
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hel", 1)
    runner.turn()
    manager.tokens(request_id, "lo", 2, finish_reason="stop", stop_reason=None)
    manager.done(request_id)
    runner.turn()


def events_of(client, response_id: str, **members) -> list[dict]:
    return [event.to_dict() for event in client.responses.retrieve(response_id, stream=True, **members)]


def test_a_reached_limit_of_lines_is_refused_before_the_grammar_is_compiled(live_url, checkpoint, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    _, key = api_key_create(name="one line", limits=KeyLimits(lines=1))
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
    bad = {"text": {"format": {"type": "json_schema", "name": "bad", "schema": schema}}}
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key=key, max_retries=0) as limited:
        with pytest.raises(openai.BadRequestError):
            submit(limited, **bad)
        submit(limited)
        with pytest.raises(openai.RateLimitError, match="1 lines of this API key are queued"):
            submit(limited, **bad)


@pytest.mark.parametrize("text", [{}, {"format": {"type": "json_object"}}])
def test_a_retry_gets_its_response_although_the_limits_are_reached(
    live_url, checkpoint, settings, monkeypatch, redis_server, text
):
    settings.BLAZR_API_KEY_REQUIRED = True
    monkeypatch.setattr(stored_responses, "USED_CACHE_S", 0.0)
    _, key = api_key_create(name="one line", limits=KeyLimits(lines=1))
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "retry"}
    body = {"model": "tiny", "input": "Hi", "background": True, "text": text}

    def send(**members) -> httpx.Response:
        answer = httpx.post(f"{live_url}/v1/responses", json=body | members, headers=headers, timeout=60)
        # As when the process ends before it stores the answer.
        with redis.Redis.from_url(redis_server.client) as kept:
            for name in kept.scan_iter(f"{redis_keys.PREFIX}idem:*"):
                kept.delete(name)
        return answer

    first = send()
    assert first.status_code == 200
    assert send().json() == first.json()
    monkeypatch.setattr(stored_responses, "MAX_BYTES_PER_TENANT", 1)
    assert send().json() == first.json()
    assert send(input="Ho").json()["error"]["code"] == "idempotency_key_reused"
    assert GenerationJob.objects.count() == 1


def test_from_queued_to_completed(client, runner, manager):
    response = submit(client, metadata={"a": "b"})
    assert (response.status, response.background, response.output) == ("queued", True, [])
    assert client.responses.retrieve(response.id).status == "queued"
    request_id = claim(runner, manager)
    assert client.responses.retrieve(response.id).status == "in_progress"
    say_hello(runner, manager, request_id)
    for _ in range(2):  # as the first reader sees it, and as it was written then
        done = client.responses.retrieve(response.id)
        assert (done.status, done.output_text, done.metadata) == ("completed", "Hello", {"a": "b"})
        assert (done.usage.input_tokens, done.usage.output_tokens) == (3, 2)
    follow_up = submit(client, previous_response_id=response.id)
    assert follow_up.status == "queued"
    runner.turn()
    assert [item["content"] for item in manager.messages[list(manager.messages)[-1]]["prompt"]["messages"]] == [
        "Hi",
        "Hello",
        "Hi",
    ]


def test_a_stream_is_the_same_during_and_after_and_from_any_event(client, runner, manager):
    response = submit(client)
    request_id = claim(runner, manager)
    live: list[dict] = []
    reader = threading.Thread(target=lambda: live.extend(events_of(client, response.id)))
    reader.start()
    say_hello(runner, manager, request_id)
    reader.join(60)
    assert not reader.is_alive()
    told = events_of(client, response.id)
    assert told == live
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert told[-1]["type"] == "response.completed"
    assert "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta") == "Hello"
    for number in range(len(told)):
        assert events_of(client, response.id, starting_after=number) == told[number + 1 :]


def test_a_crash_between_two_attempts_does_not_show(client, runner, manager, monkeypatch):
    response = submit(client)
    request_id = claim(runner, manager)
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hel", 1)
    runner.turn()
    GenerationJob.objects.update(lease_until="2000-01-01T00:00:00Z")
    second = JobRunner(manager, owner="v")
    second.turn()  # sweeps
    second.turn()
    again = list(manager.messages)[-1]
    assert again != request_id
    assert manager.messages[again]["delivered"] == [[1]]
    manager.event(again, "start", prompt_tokens=3)
    manager.tokens(again, "lo", 2, finish_reason="stop", stop_reason=None)
    manager.done(again)
    second.turn()
    told = events_of(client, response.id)
    assert [event["type"] for event in told].count("response.in_progress") == 1
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"


def test_streaming_at_once_and_leaving_does_not_stop_it(client, runner, manager):
    stream = submit(client, stream=True)
    first = next(iter(stream))
    assert (first.type, first.response.status) == ("response.created", "queued")
    stream.close()
    request_id = claim(runner, manager)
    say_hello(runner, manager, request_id)
    assert manager.cancelled == []
    assert client.responses.retrieve(first.response.id).output_text == "Hello"


def test_cancel_while_it_waits(client, runner):
    response = submit(client)
    cancelled = client.responses.cancel(response.id)
    assert (cancelled.status, cancelled.output) == ("cancelled", [])
    assert client.responses.cancel(response.id).status == "cancelled"
    assert [event["type"] for event in events_of(client, response.id)][-1] == "response.cancelled"


def test_cancel_while_it_runs_keeps_what_there_is(client, runner, manager):
    response = submit(client)
    request_id = claim(runner, manager)
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hel", 1)
    runner.turn()
    found: list = []
    caller = threading.Thread(target=lambda: found.append(client.responses.cancel(response.id)))
    caller.start()
    deadline = time.monotonic() + 60
    while not manager.cancelled and time.monotonic() < deadline:
        runner.turn()
        time.sleep(0.01)
    runner.turn()
    caller.join(60)
    assert manager.cancelled == [request_id]
    assert (found[0].status, found[0].output_text) == ("cancelled", "Hel")
    assert found[0].output[0].status == "incomplete"


def test_a_failure_is_told(client, runner, manager):
    response = submit(client)
    manager.error(claim(runner, manager), PromptTooLong("max_tokens is too much", param="max_tokens"))
    runner.turn()
    failed = client.responses.retrieve(response.id)
    assert (failed.status, failed.error.code) == ("failed", "invalid_prompt")
    assert failed.error.message == "max_output_tokens is too much"
    told = events_of(client, response.id)
    assert [event["type"] for event in told][-1] == "response.failed"
    assert [event["sequence_number"] for event in told] == list(range(len(told)))


@pytest.mark.parametrize("column", ["plan", "events"])
def test_a_damaged_job_fails_its_response(client, runner, manager, column):
    response = submit(client)
    say_hello(runner, manager, claim(runner, manager))
    damage((JobChunk if column == "events" else GenerationJob).objects.first(), column, '["cut')
    failed = client.responses.retrieve(response.id)
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert "damaged" in failed.error.message
    assert [event["type"] for event in events_of(client, response.id)][-1] == "response.failed"


def test_a_reader_reads_the_plan_once(client, runner, manager):
    """A plan may have megabytes, and a stream reads its job four times a second."""
    submit(client)
    background = BackgroundResponse(StoredResponse.objects.get())

    def plan_reads() -> int:
        with CaptureQueriesContext(connection) as queries:
            background.read()
        return sum('"plan"' in query["sql"] for query in queries)

    assert plan_reads() == 0
    request_id = claim(runner, manager)
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hel", 1)
    runner.turn()
    assert [plan_reads() for _ in range(2)] == [1, 0]
    manager.tokens(request_id, "lo", 2, finish_reason="stop", stop_reason=None)
    manager.done(request_id)
    runner.turn()
    assert (plan_reads(), background.is_over) == (0, True)


def test_deleting_stops_it_and_leaves_nothing(client, runner, manager):
    response = submit(client)
    request_id = claim(runner, manager)
    client.responses.delete(response.id)
    runner.turn()
    assert manager.cancelled == [request_id]
    assert not StoredResponse.objects.exists()
    assert not GenerationJob.objects.exists()
    assert not JobChunk.objects.exists()


def test_deleting_ends_a_stream_that_follows_it(client, runner):
    stream = client.responses.create(model="tiny", input="Hi", background=True, stream=True)
    created = next(iter(stream))
    client.responses.delete(created.response.id)
    *_, last = stream
    assert last.type == "response.failed"
    assert "was deleted" in last.response.error.message


def test_the_sweep_takes_the_job_along(client, runner, manager):
    submit(client)
    say_hello(runner, manager, claim(runner, manager))
    assert JobChunk.objects.exists(), "kept, unlike those of other jobs"
    assert GenerationJob.objects.get().state == JobState.SUCCEEDED
    StoredResponse.objects.update(created_at="2000-01-01T00:00:00Z")
    assert responses_sweep() == 1
    assert not GenerationJob.objects.exists()
    assert not JobChunk.objects.exists()


def test_what_can_not_be_done(live_url, client, worker, runner):
    foreground = client.responses.create(model="tiny", input="Hi")
    background = submit(client)
    for method, path, status, param in (
        ("post", f"{foreground.id}/cancel", 400, "response_id"),
        ("post", "resp_none/cancel", 404, "response_id"),
        ("get", f"{foreground.id}?stream=true", 400, "stream"),
        ("get", f"{background.id}?stream=maybe", 400, "stream"),
        ("get", f"{background.id}?starting_after=1", 400, "starting_after"),
        ("get", f"{background.id}?stream=true&starting_after=-1", 400, "starting_after"),
        ("get", f"{background.id}?stream=true&include_obfuscation=true", 400, "include_obfuscation"),
        ("get", f"{background.id}?frobnicate=1", 400, "frobnicate"),
    ):
        answer = httpx.request(method, f"{live_url}/v1/responses/{path}", timeout=60)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == param
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="Hi", previous_response_id=background.id)
    assert "queued" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        submit(client, extra_body={"model": "missing"})


def test_background_needs_store():
    from inference.dialects.responses.serializers import ResponseRequestSerializer

    with pytest.raises(InvalidRequest, match="store"):
        ResponseRequestSerializer.shared().read({"model": "m", "input": "x", "background": True, "store": False})


def test_a_caller_streams_a_share_of_all_streams(live_url, client, runner, monkeypatch):
    wait_for(lambda: following.STREAMS.num_held == 0)
    monkeypatch.setattr(following.STREAMS, "per_caller", 2)
    streams = [submit(client, stream=True) for _ in range(2)]
    response_id = next(iter(streams[0])).response.id
    refused = httpx.get(f"{live_url}/v1/responses/{response_id}?stream=true", timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    with pytest.raises(openai.RateLimitError, match="2 streams of background responses"):
        submit(client, stream=True)
    assert GenerationJob.objects.count() == 2, "the refused one has no job"
    _, key = api_key_create(name="other")
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key=key, max_retries=0) as other:
        submit(other, stream=True).close()
    for stream in streams:
        stream.close()
    wait_for(lambda: following.STREAMS.num_held == 0)
    assert BYTES_READ.num_held == 0
    submit(client, stream=True).close()
    wait_for(lambda: following.STREAMS.num_held == 0)


def test_all_callers_share_the_streams(live_url, client, runner, monkeypatch):
    wait_for(lambda: following.STREAMS.num_held == 0)
    response = submit(client)
    monkeypatch.setattr(following.STREAMS, "total", 0)
    refused = httpx.get(f"{live_url}/v1/responses/{response.id}?stream=true", timeout=60)
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (503, True)
    assert (following.STREAMS.num_held, BYTES_READ.num_held) == (0, 0)


def test_responses_above_the_limit_of_bytes_are_refused_unless_they_are_not_stored(
    client, worker, checkpoint, monkeypatch
):
    monkeypatch.setattr(stored_responses, "USED_CACHE_S", 0.0)
    client.responses.create(model="tiny", input="Hi")
    monkeypatch.setattr(stored_responses, "MAX_BYTES_PER_TENANT", 10)
    for members in ({}, {"background": True}):
        with pytest.raises(openai.APIStatusError, match="the limit is 10 bytes") as refused:
            client.with_options(max_retries=0).responses.create(model="tiny", input="Hi", **members)
        assert refused.value.status_code == 507
    assert client.responses.create(model="tiny", input="Hi", store=False).status == "completed"
    assert StoredResponse.objects.count() == 1


def test_kept_events_count_in_the_bytes_of_their_job(client, runner, manager, checkpoint):
    submit(client)
    before = GenerationJob.objects.get().size_bytes
    say_hello(runner, manager, claim(runner, manager))
    job = GenerationJob.objects.get()
    events = sum(len(text) for text in JobChunk.objects.values_list("events", flat=True))
    assert job.size_bytes == before + len(job.result.encode()) + events
    assert events > 0
